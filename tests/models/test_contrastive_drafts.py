"""Speculative contrastive decoding: an amateur that drafts hands its logits over, and the text is
that of contrastive decoding."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from contrasts import PROMPTS, contrastive, slow_distribution, slow_text
from foretoken import LLM, RequestOutput, SamplingParams
from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.draws import Draws
from foretoken.models.contrastive import Contrastive
from foretoken.models.feed import Feed
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Verifier
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Pair,
    check_faults,
    check_greedy,
    distance,
    joint_distribution,
    native,
    related,
    serve,
    table_pair,
    tiny_pair,
    tiny_transformers,
)
from foretoken.testing.checks import texts
from foretoken.tree import DraftTree
from foretoken.verify.gumbel import Gumbel
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

FOUR = [*PROMPTS, [60, 61, 62, 63, 60]]
WARM = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=24, ignore_eos=True)
COLD = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


class Silent(SmallLM):
    """Keeps the logits to itself in the steps whose number `every` divides: 1 for all of them."""

    every = 1
    steps = 0

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        self.steps += 1
        return replace(tree, amateur_logits=None) if self.steps % self.every == 0 else tree


class NowAndThen(Silent):
    every = 3


@pytest.fixture
def models() -> Pair:
    """A real expert, and an amateur that agrees with it about half of the time."""
    return tiny_pair(noise=0.05)


def passes_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of a row in each of the model's passes that asks for logits, from now on."""
    seen: list[int] = []
    forward = model.forward

    def noted(feed: Feed, *given: Any) -> Any:
        seen.extend([feed.tokens.shape[1]] if feed.logits else [])
        return forward(feed, *given)

    monkeypatch.setattr(model, "forward", noted)
    return seen


@pytest.mark.parametrize("params", [COLD, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("slots", [1, 4])
def test_amateur_passes(
    slots: int, params: SamplingParams, models: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass of one token for each drafted token, and one a step. The old way, the amateur reads
    every tree once more."""
    both = contrastive(models)
    expert, amateur = (passes_of(m, monkeypatch) for m in (models.target, models.draft))
    done = serve(both.target, SmallLM(both.draft, 3), Speculative(), FOUR, params, slots=slots)
    assert amateur == [1] * sum(expert)  # a step's pass of the expert: the root, and each node
    if slots == 1:
        assert sum(expert) == sum(o.stats.drafted + o.stats.passes for o in done)
    assert sum(o.stats.accepted for o in done) > 10
    once = sum(amateur)
    expert.clear()
    amateur.clear()
    old = serve(both.target, Silent(both.draft, 3), Speculative(), FOUR, params, slots=slots)
    assert texts(old) == texts(done)
    assert sum(amateur) == once + sum(expert)  # its passes over the trees are wide


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_assistant_tokens_schedule": "fallback", "assistant_confidence_threshold": 0.05},
        {"num_assistant_tokens_schedule": "confidence", "assistant_confidence_threshold": 0.05},
        {"num_assistant_tokens_schedule": "heuristic"},
    ],
    ids=lambda options: options.get("num_assistant_tokens_schedule", "constant"),
)
def test_greedy_text(
    options: dict[str, Any], slots: int, models: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contrastive decoding's, whatever ends a draft: also before its first token, and with drafts
    of different lengths in a batch. What a rule has looked at is not run again."""
    expected = [slow_text(models, prompt, 20) for prompt in FOUR]
    expert, amateur = (passes_of(m, monkeypatch) for m in (models.target, models.draft))

    def make(pair: Pair) -> Drafter:
        return SmallLM(pair.draft, 3, **options)

    check_greedy(
        make,
        Speculative(),
        contrastive(models),
        slots=slots,
        tokens=20,
        prompts=FOUR,
        expected=expected,
    )
    if options.get("num_assistant_tokens_schedule") != "confidence":
        assert len(amateur) == sum(expert) and max(amateur) == 1


@cache
def plainly_and_of_old() -> tuple[list[list[int]], list[list[int]]]:
    """The texts of plain contrastive decoding, and those that the old way writes."""
    both = contrastive(tiny_pair(noise=0.05))
    old = written(both, Silent(both.draft, 3), Speculative())
    return written(both, Nothing(), Gumbel()), old


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("make", [SmallLM, Silent, NowAndThen])
def test_seeded_text(make: Callable[..., Drafter], slots: int, models: Pair) -> None:
    """Where drafter and target share the noise, the text is plain contrastive decoding's; drawn
    independently, it is the one that the old way writes."""
    both, (plain, old) = contrastive(models), plainly_and_of_old()
    assert written(both, make(both.draft, 3), Gumbel(), slots) == plain
    assert written(both, make(both.draft, 3), Speculative(), slots) == old


def written(pair: Pair, drafter: Drafter, rule: Verifier, slots: int = 1) -> list[list[int]]:
    """Six texts of different lengths at a temperature."""
    params = [replace(WARM, max_tokens=limit) for limit in (5, 24, 9, 24, 17, 24)]
    prompts = [*FOUR, [7], [8, 8]]
    return texts(serve(pair.target, drafter, rule, prompts, params, slots=slots))


def test_steps_without_logits(models: Pair) -> None:
    """The amateur reads what it has missed, also of sequences that have moved to another slot."""
    both = contrastive(models)
    plain = written(both, Nothing(), Gumbel())
    assert written(both, NowAndThen(both.draft, 3), Gumbel(), 3) == plain


def test_a_row_that_drafts_nothing(models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its root's logits, and costs the batch no pass of the amateur over the trees."""
    both = contrastive(models)
    expert, amateur = (passes_of(m, monkeypatch) for m in (models.target, models.draft))
    params = [replace(COLD, max_tokens=limit) for limit in (1, 6, 24)]
    serve(both.target, SmallLM(both.draft, 3), Speculative(), PROMPTS, params)
    assert amateur == [1] * sum(expert)


def test_a_row_that_copies_a_prediction(models: Pair) -> None:
    """While it does, the amateur's drafts for others are none of its text."""
    both = contrastive(models)
    params = replace(COLD, max_tokens=60, logprobs=0)
    plain = serve(both.target, Nothing(), TargetOnly(), PROMPTS[:2], params)

    def logprobs(output: RequestOutput) -> list[float]:
        entries = output.outputs[0].logprobs or []
        return [e[t].logprob for e, t in zip(entries, output.token_ids, strict=True)]

    for cut in range(4, 40, 8):
        predicting = replace(params, prediction=plain[0].token_ids[:cut])
        rows = [predicting, params]
        drafted = serve(both.target, SmallLM(both.draft, 3), Speculative(), PROMPTS[:2], rows)
        for found, expected in zip(drafted, plain, strict=True):
            assert found.token_ids == expected.token_ids
            assert logprobs(found) == pytest.approx(logprobs(expected), abs=1e-9)


@pytest.mark.parametrize("make", [SmallLM, NowAndThen])
def test_distribution(make: Callable[..., Drafter]) -> None:
    """The joint distribution of three tokens is the contrastive law spelled out."""
    models, prompt, params = table_pair(4, seed=3), [0, 1, 0], SamplingParams(temperature=0.9)
    both = contrastive(models)
    found = joint_distribution(
        both.target, lambda: make(both.draft, 2), Speculative(), prompt, params, 3, rows=256
    )
    assert distance(found, slow_distribution(models, prompt, params, 3)) < 1e-12


def test_samples_of_one_prompt(models: Pair) -> None:
    """Copies begin with what the amateur has read of the prompt, all of it or less."""
    both = contrastive(models)
    for drafter in (SmallLM, NowAndThen):
        written = []
        for slots in (1, 4):
            params = replace(WARM, n=3, max_tokens=12)
            [output] = serve(
                both.target, drafter(both.draft, 3), Speculative(), FOUR[:1], params, slots=slots
            )
            written.append([sample.token_ids for sample in output.outputs])
        assert written[0] == written[1]


def test_long_drafts_at_the_end_of_the_context() -> None:
    """A row that may draft nothing more follows the others, over the end of its context."""
    models = tiny_pair(noise=0.05, max_length=48)
    both, prompts = contrastive(models), [[5] * 46, [3, 1, 4]]
    expected = [
        texts(serve(both.target, Nothing(), TargetOnly(), [p], replace(COLD, max_tokens=m)))[0]
        for p, m in zip(prompts, (2, 40), strict=True)
    ]
    params = [replace(COLD, max_tokens=m) for m in (2, 40)]
    long = SmallLM(both.draft, 44)
    assert texts(serve(both.target, long, Speculative(), prompts, params)) == expected


def test_trees_are_scored_by_both(models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token tree comes without logits, and the amateur reads it as the expert does."""
    both = contrastive(models)
    expert, amateur = (passes_of(m, monkeypatch) for m in (models.target, models.draft))
    expected = [slow_text(models, prompt, 12) for prompt in FOUR]
    expert.clear()
    amateur.clear()
    check_greedy(
        lambda pair: SmallTree(pair.draft, widths=(2, 2)),
        MultiCandidate(),
        both,
        slots=2,
        tokens=12,
        prompts=FOUR,
        expected=expected,
    )
    assert max(expert) == max(amateur) > 3


@pytest.mark.parametrize("method", ["pld+sps", "pld|sps", "auto:pld,sps"])
def test_joined_with_others(method: str, models: Pair) -> None:
    """Steps in which the amateur drafts alone, in part, or not at all."""
    config = {"method": method, "model": models.draft}
    check_greedy(
        lambda pair: build(config).drafter,
        build(config).verifier,
        contrastive(models),
        slots=2,
        tokens=20,
        prompts=FOUR,
        expected=[slow_text(models, prompt, 20) for prompt in FOUR],
    )


def test_only_the_amateur_hands_over(models: Pair) -> None:
    """Not another model, nor the amateur of a target that isn't contrastive, nor one that learned
    something else; and then the pass per drafted token is all that drafting costs."""
    other = native(related(models.transformers, 0.02, seed=7))
    plain, both = (ModelTarget(m, 1, 64) for m in (models.target, contrastive(models).target))
    for model, target, hands_over in (
        (models.draft, both, True),
        (other, both, False),
        (models.target, both, False),
        (models.draft, plain, False),
    ):
        drafter = SmallLM(model, 3)
        drafter.bind(target)
        assert (drafter.hands_over, drafter.pass_per_token) == (hands_over, not hands_over)
    drafter = SmallLM(models.draft, 3)
    drafter.bind(both)
    drafter.replace_model(other)
    assert not drafter.hands_over and drafter.pass_per_token
    check_greedy(
        lambda pair: SmallLM(other, 3),
        Speculative(),
        contrastive(models),
        tokens=16,
        prompts=FOUR[:2],
        expected=[slow_text(models, prompt, 16) for prompt in FOUR[:2]],
    )


# `NowAndThen` makes the calls of both kinds of steps.
@pytest.mark.parametrize("make", [pytest.param(SmallLM, marks=pytest.mark.slow), NowAndThen])
def test_faults(make: Callable[..., Drafter], models: Pair) -> None:
    """A call that fails, also a pass of which logits were handed over, harms no other request."""
    both = contrastive(models)
    assert check_faults(build({"method": make(both.draft, 2)}), both) > 80


def test_a_folder_is_loaded_once(tmp_path: Path) -> None:
    """The folder that the amateur is from means the amateur; with a backend of its own, or another
    folder, it is another model."""
    expert = tiny_transformers(61, dtype=torch.float32, max_length=128)
    for name, model in (("e", expert), ("a", related(expert, 0.03)), ("b", related(expert, 0.04))):
        model.save_pretrained(tmp_path / name)
    target = Contrastive(tmp_path / "e", tmp_path / "a")
    params = SamplingParams(temperature=0, max_tokens=24)
    [plain] = LLM(target).generate([[3, 1, 4, 1, 5]], params)
    for name, options, same in (
        ("a", {}, True),
        ("a", {"draft_backend": "plain"}, False),
        ("b", {}, False),
    ):
        config = {"method": "sps", "model": str(tmp_path / name), **options}
        llm = LLM(target, speculative_config=config)
        [small] = llm.engine.drafter.small_models
        assert (small is target.amateur) == same
        [output] = llm.generate([[3, 1, 4, 1, 5]], params)
        assert output.token_ids == plain.token_ids and llm.stats.accepted > 0


def test_the_amateur_catches_up_in_passes_of_a_bounded_size(
    models: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has read nothing."""
    monkeypatch.setattr("foretoken.models.contrastive._CHUNK", 8)
    both, widths = contrastive(models), []
    forward = models.draft.forward

    def noted(feed: Feed, cache: Any, hidden: Any = ()) -> Any:
        if not feed.logits:
            widths.append(feed.tokens.numel())
        return forward(feed, cache, hidden)

    drafter = NowAndThen(both.draft, 3)
    drafter.every = 7
    prompts = [[5, 9], [40, 3]]
    expected = [slow_text(models, prompt, 40) for prompt in prompts]
    monkeypatch.setattr(models.draft, "forward", noted)
    params = replace(COLD, max_tokens=40)
    assert texts(serve(both.target, drafter, Speculative(), prompts, params)) == expected
    assert len(widths) > 6 and max(widths) <= 8
