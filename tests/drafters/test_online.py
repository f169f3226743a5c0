"""Learning while serving: what is noted, when weights change, and that no text and no distribution
does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import LLM, SamplingParams
from foretoken.config import build
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.drafters.online import Online
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.shared.mistakes import Buffer, Example, Recording, lesson
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Scores, Step
from foretoken.testing import Pair, check_distribution, logits_after, native, related, tiny_pair
from foretoken.testing.checks import PROMPTS, greedy_reference
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.tree import DraftTree, chains
from foretoken.trees.from_lists import from_paths
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small() -> Pair:
    return tiny_pair(23)


@pytest.fixture(scope="module")
def folder(small: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model that agrees with the target now and then."""
    path = tmp_path_factory.mktemp("draft")
    related(small.transformers, 0.15).float().save_pretrained(path)
    return path


def served(
    drafter: Drafter, pair: Pair, prompts: Any, params: Any = GREEDY, rule: Any = None
) -> Any:
    """An engine that has answered the prompts one by one, waiting for each step of learning."""
    engine = Engine(ModelTarget(pair.target, 2, 128), drafter, rule or Speculative())
    return engine, [answered(engine, prompt, params) for prompt in prompts]


def answered(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> Any:
    engine.reset_stats()
    request = engine.add(prompt, params)
    while engine.busy:
        engine.step()
    engine.drafter.learner.turn()  # type: ignore[attr-defined]
    engine.drafter.learner.settle()  # type: ignore[attr-defined]
    return request.snapshot()


def done(tree: DraftTree, path: list[int], states: Tensor, read: int = 0) -> Step:
    none = torch.empty(1, 0)
    scores = Scores(none, none, none, {-1: states[None]})
    return Step([0] * (len(path) + 1) if not read else [], path, 0, 0, tree, scores, read=read)


def numbered(first: int, count: int) -> Tensor:
    """States that say at which place they stand."""
    return torch.arange(first, first + count, dtype=torch.float64)[:, None].expand(-1, 3)


def test_where_a_draft_was_wrong() -> None:
    """The first refused place of a chain and of a tree; what was accepted whole, or not drafted, is
    no mistake; states stand at their tokens."""
    recording, nothing = Recording(100), chains([[]], CPU)
    recording.add(done(nothing, [], numbered(0, 4), read=4))  # the root is token 4
    recording.add(done(chains([[7, 8, 9]], CPU), [1], numbered(4, 4)))  # 5 right, 6 wrong
    recording.add(done(chains([[7, 8]], CPU), [1, 2], numbered(6, 3)))  # 7 and 8 right, 9 beyond
    recording.add(done(nothing, [], numbered(9, 1)))  # 10 not drafted
    tree = from_paths([[[1, 2], [3, 4]]], CPU)
    slots = [tree.tokens[0].tolist().index(3) + 1]
    states = torch.zeros(5, 3, dtype=torch.float64)
    states[[0, *slots]] = numbered(10, 2)
    recording.add(done(tree, slots, states))  # 11 right, 12 wrong
    assert recording.wrong == [6, 12]
    example = recording.example(list(range(100, 113)), 5)
    assert example is not None
    assert (list(example.wrong), example.first, len(example.tokens)) == ([6, 12], 0, 13)
    assert example.written == 5
    assert torch.equal(example.hidden[-1], numbered(0, 12))
    cut = recording.example(list(range(100, 112)), 5)  # the text ended before
    assert cut is not None and list(cut.wrong) == [6] and list(cut.tokens)[-1] == 106
    assert recording.example([1, 2, 3], 1) is None


def test_a_window_of_a_long_text() -> None:
    """Old states go; places are still the text's."""
    recording = Recording(4)
    recording.add(done(chains([[]], CPU), [], numbered(0, 6), read=6))
    for place in range(6, 12):
        recording.add(done(chains([[1]], CPU), [], numbered(place, 2)))
    example = recording.example(list(range(50, 63)), 6)
    assert example is not None
    assert example.first >= 6 and list(example.tokens)[-1] == 62 and example.written == 1
    assert torch.equal(example.hidden[-1], numbered(example.first, 12 - example.first))
    assert [example.tokens[i] - 50 for i in example.wrong] == list(range(example.first + 1, 13))
    young, late = recording.copy(6), recording.copy(10)
    assert (young.read, young.wrong) == (6, [])
    assert late.read == 10 and late.example(list(range(11)), 6) is None


def test_the_buffer_is_bounded() -> None:
    """By bytes; the oldest go, and a lesson has a row for each that is left, whose right tokens
    count less than its wrong ones and whose prompt counts nothing."""
    examples = [Example([1, 2, 3 + i], 5, 1, [2], {-1: numbered(i, 2)}) for i in range(4)]
    each = examples[0].bytes
    buffer = Buffer(2 * each + 1)
    for example in examples:
        buffer.add(example)
    assert (len(buffer), buffer.bytes) == (2, 2 * each)
    taken = buffer.take()
    assert [example.tokens[2] for example in taken] == [5, 6]
    assert (len(buffer), buffer.bytes) == (0, 0)
    made = lesson(taken, torch.exp, torch.exp, torch.float64, known=0.25)
    assert made.positions.tolist() == [[5, 6, 7]] * 2
    assert made.weight.tolist() == [[0, 0.25, 1]] * 2
    assert torch.equal(made.hidden[-1][1, :2], numbered(3, 2))


def test_text_stays_and_acceptance_rises(small: Pair, folder: Path) -> None:
    """The same few prompts again and again: greedy texts are plain decoding's under every version,
    and more of each draft is accepted."""
    drafter = Online([SmallLM(str(folder), 3)], every=2, lr=3e-3)
    engine, _ = served(drafter, small, [])
    rates = []
    expected = [greedy_reference(small.target, prompt, 24) for prompt in ([5, 9, 2], [4, 3, 3, 17])]
    for _ in range(15):
        outputs = [answered(engine, prompt) for prompt in ([5, 9, 2], [4, 3, 3, 17])]
        assert [output.token_ids for output in outputs] == expected
        rates.append(sum(o.stats.accepted for o in outputs) / sum(o.stats.drafted for o in outputs))
    assert drafter.learner.version >= 10
    assert sum(rates[-3:]) / 3 > sum(rates[:3]) / 3 + 0.1
    before = drafter.learner.version - 1  # the last step was taken after the last answer
    assert outputs[0].stats.chosen == {f"online {before}": outputs[0].stats.passes}


def test_decoding_never_waits(small: Pair, folder: Path) -> None:
    """While a step of learning hangs, requests are served by the old weights to their end; the new
    ones serve from the first draft after it is done."""
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])
    learner, go = drafter.learner, threading.Event()
    made: Callable[[], Any] = learner.weights.build
    learner.weights.build = lambda: (go.wait(60), made())[1]  # type: ignore[method-assign]
    before = drafter.parts[0].small_models[0]
    for prompt in PROMPTS_OF_23 * 2:
        request = engine.add(prompt, GREEDY)
        while engine.busy:
            engine.step()
        assert request.finished
    assert learner.version == 0 and drafter.parts[0].small_models[0] is before
    go.set()
    learner._job.exception()  # type: ignore[union-attr]
    assert learner.version == 0  # not before a draft begins
    engine.add([1, 2], GREEDY)
    engine.step()
    engine.step()
    assert learner.version == 1 and drafter.parts[0].small_models[0] is not before
    learner.settle()


PROMPTS_OF_23 = [[token % 23 for token in prompt] for prompt in PROMPTS]


class Swapping(SmallLM):
    """Two versions take turns, draft by draft."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        self.replace_model(VERSIONS[len(sequences[0].tokens) % 2])
        return super().draft(sequences, budgets, draws)


class Mixed(Swapping):
    """The bug: a draft is verified by distributions that aren't those of the weights that drew
    it."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        if tree.proposals is not None:
            tree.proposals = tree.proposals.roll(1, -1)
        return tree


FOUR = tiny_pair(4, width=8)
VERSIONS = [native(related(FOUR.transformers, noise, seed=1)) for noise in (0.2, 0.3)]


@pytest.mark.parametrize(("kind", "holds"), [(Swapping, True), (Mixed, False)])
def test_distribution_while_weights_change(kind: type[Swapping], holds: bool) -> None:
    """The joint distribution of three tokens, with other weights at every draft of a sequence, and
    keys and values of both; it would be found out if distributions and weights went apart."""
    with nullcontext() if holds else pytest.raises(AssertionError):
        check_distribution(
            lambda _: kind(VERSIONS[0], 1),
            Speculative(),
            FOUR,
            SamplingParams(temperature=0.7),
            3,
            rows=1,
        )


def test_versions(small: Pair, folder: Path, tmp_path: Path) -> None:
    """Rolled back, frozen, saved, loaded, forgotten; numbers are never used twice."""
    drafter = Online([SmallLM(str(folder), 3)], every=1, lr=1e-2, versions=2)
    engine, _ = served(drafter, small, PROMPTS_OF_23[:4])
    learner = drafter.learner
    assert learner.version == 4 and sorted(learner._versions) == [0, 3, 4]
    with pytest.raises(ForetokenError, match="version '1'"):
        learner.rollback(1)
    drafts = [says(drafter, small, [5, 9, 2])]
    learner.rollback(3)
    assert learner.version == 3
    drafts.append(says(drafter, small, [5, 9, 2]))
    learner.freeze()
    answered(engine, PROMPTS_OF_23[0])
    assert learner.version == 3
    learner.save(tmp_path / "learned")
    again = Online([SmallLM(str(tmp_path / "learned"), 3)])
    served(again, small, [])
    assert torch.equal(says(again, small, [5, 9, 2]), drafts[1])
    learner.thaw()
    answered(engine, PROMPTS_OF_23[0])
    assert learner.version == 5
    learner.reset()
    assert learner.version == 0
    first = Online([SmallLM(str(folder), 3)])
    served(first, small, [])
    assert torch.equal(says(drafter, small, [5, 9, 2]), says(first, small, [5, 9, 2]))
    learner.load(tmp_path / "learned")
    assert learner.version == 6
    assert torch.equal(says(drafter, small, [5, 9, 2]), drafts[1])
    assert not torch.equal(drafts[0], drafts[1])


def says(drafter: Online, pair: Pair, text: list[int]) -> Tensor:
    """What the small model that serves says after a text."""
    return logits_after(drafter.parts[0].small_models[0], text)


def test_heads_learn_too(small: Pair) -> None:
    """Medusa's heads, which read states of the target's: the loss falls, texts stay."""
    with torch.random.fork_rng([]):
        heads = MedusaHeads(Facts.of(small.target), num_heads=2, own_lm_heads=False).double()
    drafter = Online([Medusa(heads.eval().requires_grad_(False))], every=1, lr=3e-3)
    prompts = PROMPTS_OF_23[:2] * 8
    losses = []
    engine, _ = served(drafter, small, [], rule=TargetOnly())
    for prompt in prompts:
        output = answered(engine, prompt)
        assert output.token_ids == greedy_reference(small.target, prompt, 24)
        losses.append(drafter.learner.loss)
    assert drafter.learner.version > 10
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def test_a_loss_that_is_no_number_changes_nothing(
    small: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])
    monkeypatch.setattr(
        Objective, "__call__", lambda self, mine, target, goal: mine.sum(-1) * torch.nan
    )
    answered(engine, PROMPTS_OF_23[0])
    assert drafter.learner.version == 0 and drafter.learner.loss != drafter.learner.loss
    assert all(bool(w.isfinite().all()) for w in drafter.learner.weights.student.parameters())


def test_a_step_that_fails_ends_learning_and_not_serving(small: Pair, folder: Path) -> None:
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])

    def fail() -> None:
        raise RuntimeError("out of memory")

    drafter.learner.weights.build = fail  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="stopped learning: out of memory"):
        answered(engine, PROMPTS_OF_23[0])
    assert drafter.learner.frozen
    expected = greedy_reference(small.target, PROMPTS_OF_23[1], 24)
    assert answered(engine, PROMPTS_OF_23[1]).token_ids == expected


def test_several_samples_are_followed(small: Pair, folder: Path) -> None:
    """Each sample of a request is a text of its own, after the same prompt."""
    params = SamplingParams(n=3, max_tokens=12, seed=1)
    drafter = Online([SmallLM(str(folder), 3)], every=3)
    _, [output] = served(drafter, small, PROMPTS_OF_23[:1], params)
    assert len(output.outputs) == 3
    assert drafter.learner.version == 1


def test_what_cannot_learn_is_refused(small: Pair, folder: Path) -> None:
    target = ModelTarget(small.target, 1, 8)
    with pytest.raises(ForetokenError, match="PromptLookup has no weights"):
        Online([PromptLookup(3)]).bind(target)
    with pytest.raises(ForetokenError, match="already loaded"):
        Online([SmallLM(small.draft)]).bind(target)
    with pytest.raises(ForetokenError, match="every is 0"):
        Online([SmallLM(str(folder))], every=0)


def test_by_name(checkpoints: tuple[Path, Path]) -> None:
    """ "online" learns a small model, "online:medusa" heads; options go to where they belong."""
    built = build({"method": "online", "model": "x", "every": 3})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert isinstance(drafter, Online) and (drafter.every, name) == (3, "online")
    assert isinstance(drafter._part, SmallLM) and isinstance(rule, Speculative)
    with pytest.raises(ForetokenError, match="evry"):
        build({"method": "online", "model": "x", "evry": 3})
    target, draft = checkpoints
    llm = LLM(target, speculative_config={"method": "online", "model": str(draft), "every": 1})
    plain = LLM(target)
    for prompt in ("abcab", "xyz xyz"):
        [mine], [theirs] = (each.generate([prompt], GREEDY) for each in (llm, plain))
        assert mine.token_ids == theirs.token_ids
    assert set(llm.stats.chosen) <= {"online 0", "online 1", "online 2"}
