"""Cascades: what is copied, who writes what, and that the distribution handed on is the one drawn
from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters import cascade
from foretoken.drafters.cascade import Cascade
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import KeyedDraws
from foretoken.lookup.longest_match import copy_after
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.params import LogitsProcessor
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.testing import (
    Pair,
    TableModel,
    check_distribution,
    check_greedy,
    check_independence,
    chi_square,
    logits_after,
    native,
    related,
    sampled_counts,
    serve,
    table_pair,
    target_distribution,
    tiny_transformers,
)
from foretoken.testing.checks import SAMPLED
from foretoken.tree import DraftTree, Kind
from foretoken.verify.block import Block
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

PROMPT = [5, 9, 2, 5, 9, 2, 5, 9]
WARM = SamplingParams(temperature=0.7)
GREEDY = SamplingParams(temperature=0)


def drafted(
    pair: Pair,
    drafter: Drafter,
    params: SamplingParams,
    budget: int = 30,
    prompt: list[int] = PROMPT,
) -> DraftTree:
    """The first draft after the prompt."""
    target = ModelTarget(pair.target, 1, 128)
    drafter.bind(target)
    sequence = Sequence.start(prompt, params, seed=3)
    drafter.begin(sequence)
    with torch.inference_mode():
        return drafter.draft([sequence], [budget], draws_for([sequence], target.device))


def test_staged_writes_the_small_models_text_in_fewer_passes() -> None:
    """Where its text repeats itself, n-grams save the small model passes and change no token."""
    turn = TableModel.markov(torch.eye(10).roll(1, 1) * 0.9 + 0.01)
    pair, passes = Pair(turn, turn), 0
    staged = Cascade(turn, k_matrix=((6, 0), (0, 4)))
    forward = turn.forward

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args, **options)

    turn.forward = counted  # type: ignore[method-assign]
    prompt = [*range(10), *range(4)]
    found = drafted(pair, staged, GREEDY, prompt=prompt)
    assert passes == 2
    expected = drafted(pair, SmallLM(turn, 6), GREEDY, prompt=prompt)
    assert found.tokens.tolist() == expected.tokens.tolist() == [[4, 5, 6, 7, 8, 9]]


def test_horizontal_cascade(pair: Pair) -> None:
    """So many tokens of each model, then copied ones; each model's are what it writes alone."""
    other = native(related(pair.transformers, 0.1, 9))
    both = Cascade(models=[pair.draft, other], k_matrix=((2, 3, 4), (0, 1, 2), (0, 0, 2)))
    tree = drafted(pair, both, GREEDY)
    assert [*both.small_models] == [pair.draft, other]
    first = drafted(pair, SmallLM(pair.draft, 2), GREEDY).tokens[0].tolist()
    text = [*PROMPT, *first]
    for _ in range(3):
        text.append(int(logits_after(other, text).argmax()))
    text += copy_after(text, 4)
    assert tree.tokens[0].tolist() == text[len(PROMPT) :] and tree.kind == Kind.CHOSEN
    warm = drafted(pair, both, WARM)
    assert warm.kinds is not None
    drawn = [Kind.INDEPENDENT] * 5 + [Kind.CHOSEN] * (warm.nodes - 5)
    assert warm.kinds[0].tolist() == drawn
    assert drafted(pair, both, WARM, budget=4).nodes == 4


SETTINGS = {
    "copied for the model": {"k_matrix": ((2, 0), (0, 1))},
    "lenient": {"k_matrix": ((2, 0), (0, 1)), "lenience": 0.4},
    "lenient, two models": {"k_matrix": ((2, 0, 0), (0, 1, 0), (0, 0, 1)), "lenience": 0.5},
    "horizontal": {"k_matrix": ((1, 1, 0), (0, 1, 0), (0, 0, 1))},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("params", [WARM, SamplingParams(top_p=0.6)], ids=["warm", "top_p"])
def test_distribution(name: str, params: SamplingParams) -> None:
    """One step, every outcome of all loops: the target's distribution, to the last digit."""
    small = table_pair(3)
    check_distribution(
        lambda p: made(p, name),
        Speculative(),
        small,
        params,
        3,
        rows=1,
        steps=1,
        budget=2,
        prompt=[0, 1, 2, 0, 1],
    )


def made(pair: Pair, name: str) -> Cascade:
    other = pair.target.noisy(0.4, 3)  # type: ignore[attr-defined]
    models = [pair.draft, other] if len(SETTINGS[name]["k_matrix"]) == 3 else [pair.draft]  # type: ignore[arg-type]
    return Cascade(models=models, **SETTINGS[name])  # type: ignore[arg-type]


def test_distribution_under_block_verification() -> None:
    """A rule that looks at the whole chain needs the very distributions too."""
    check_distribution(
        lambda p: made(p, "lenient, two models"),
        Block(),
        table_pair(3),
        WARM,
        3,
        rows=1,
        steps=1,
        budget=2,
    )


def test_a_lenient_review_must_not_hand_on_the_models_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was written leniently, presented with the reviewer's own distribution, is biased."""
    monkeypatch.setattr(cascade, "written_distributions", lambda trees, probs, lenience: probs)
    with pytest.raises(AssertionError, match="is off by"):
        check_distribution(
            lambda p: made(p, "lenient"),
            Speculative(),
            table_pair(3),
            WARM,
            3,
            rows=1,
            steps=1,
            budget=2,
            prompt=[0, 1, 2, 0, 1],
            tolerance=1e-3,
        )


def seeds_p() -> float:
    """How likely the distribution over seeds is under the target's."""
    small = table_pair(3, seed=2)
    counts = sampled_counts(
        small.target,
        lambda: made(small, "copied for the model"),
        Speculative(),
        [0, 1, 0],
        SamplingParams(),
        2,
        2000,
    )
    return chi_square(counts, target_distribution(small.target, [0, 1, 0], SamplingParams(), 2))


def test_inner_loops_draw_by_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many seeds the distribution is the target's, and isn't if the loops share their
    numbers."""
    assert seeds_p() > 1e-3

    def shared(self: Any, part: int, starts: Any = None) -> KeyedDraws:
        return KeyedDraws(self._given[0], starts, self._given[2])

    monkeypatch.setattr(KeyedDraws, "inner", shared)
    assert seeds_p() < 1e-6


def test_steps_of_a_stage_draw_by_numbers_of_their_own() -> None:
    """A model that writes two tokens in two steps: enumeration, which keeps the keys of requests,
    finds no number twice."""
    check_distribution(
        lambda p: made(p, "copied for the model"),
        Speculative(),
        table_pair(3),
        WARM,
        3,
        rows=1,
        steps=1,
        budget=2,
        prompt=[0, 1, 2, 0, 1],
    )


@pytest.mark.parametrize("name", ["staged", "cs_drafting"])
def test_the_papers_settings(name: str, pair: Pair) -> None:
    """Both rows, the one with two models: the target's text, alone and in company."""
    options: dict[str, Any] = {"model": pair.draft}
    if name == "cs_drafting":
        other = native(related(pair.transformers, 0.1, 9))
        options = {"models": [pair.draft, other], "lenience": 0.5}
    rule = build({"method": name, **options}).verifier
    for slots in (1, 2):
        check_greedy(lambda p: build({"method": name, **options}).drafter, rule, pair, slots=slots)
    params = replace(SAMPLED, max_tokens=12)
    check_independence(lambda p: build({"method": name, **options}).drafter, rule, pair, params)


class Noting:
    """Favours a token by the likeliest ones that it was shown at all places before."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen = 31 * self.seen + int(scores.argmax()) + 1
        favoured = scores.clone()
        favoured[:, self.seen % scores.shape[-1]] += 1.5
        return favoured


def test_processors_of_a_text_outlast_its_drafts(pair: Pair) -> None:
    """While a draft is written, its own copies of the processors move on; those of the text have
    had the calls that plain decoding makes, with the target's scores, and no others."""
    params = replace(
        GREEDY, max_tokens=24, ignore_eos=True, logits_processor_factories=[Noting, Noting]
    )
    [plain] = serve(pair.target, Nothing(), TargetOnly(), [PROMPT], params)
    drafter = Cascade(pair.draft, k_matrix=((4, 3), (0, 2)))
    [output] = serve(pair.target, drafter, Speculative(), [PROMPT], params)
    assert output.token_ids == plain.token_ids


def turning() -> LogitsProcessor:
    """Decides on a token by how often it was called, which it closes over."""
    calls = 0

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        decided = scores.clone()
        decided[:, 7 * calls % scores.shape[-1]] += 1000
        return decided

    return process


@pytest.mark.parametrize("k_matrix", [((1, 0), (0, 0)), ((4, 0), (0, 0)), ((4, 3), (0, 2))])
def test_closures_of_a_text_outlast_its_drafts(k_matrix: Any, pair: Pair) -> None:
    """What a draft was decided by isn't what the text goes on with, if all of it was accepted."""
    params = replace(GREEDY, max_tokens=24, ignore_eos=True, logits_processor_factories=[turning])
    [plain] = serve(pair.target, Nothing(), TargetOnly(), [PROMPT], params)
    drafter = Cascade(pair.draft, k_matrix=k_matrix)
    [output] = serve(pair.target, drafter, Speculative(), [PROMPT], params)
    assert output.token_ids == plain.token_ids and output.stats.passes < 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name one as model"),
        ({"model": "a", "models": ["b"]}, "name one as model"),
        ({"model": "a", "k_matrix": ((1, 2, 3), (0, 1, 1), (0, 0, 1))}, "2 rows of 2 numbers"),
        ({"model": "a", "k_matrix": ((1, -2), (0, 1))}, "none of them negative"),
        ({"models": ["a", "b", "c"]}, "3 models and Max-Gram need 4 rows"),
        ({"model": "a", "lenience": 3}, "above 0 and at most 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError, match=message):
        Cascade(**options)


def test_penalties_of_a_text_do_not_count_its_drafts(pair: Pair) -> None:
    """A rejected token is no part of the text, and an accepted one counts once."""
    penalties = {"frequency_penalty": 1.0, "repetition_penalty": 1.3}
    params = replace(GREEDY, max_tokens=24, ignore_eos=True, **penalties)
    [plain] = serve(pair.target, Nothing(), TargetOnly(), [PROMPT], params)
    drafter = Cascade(pair.draft, k_matrix=((4, 3), (0, 2)))
    [output] = serve(pair.target, drafter, Speculative(), [PROMPT], params)
    assert output.token_ids == plain.token_ids and output.stats.accepted > 0


def test_no_draft_passes_a_models_context(pair: Pair) -> None:
    """One with a shorter context writes as far as that reaches."""
    small = native(related(tiny_transformers(max_length=12), 0.02))
    for written, nodes in ((3, 3), (20, 13 - len(PROMPT))):
        drafter = Cascade(small, k_matrix=((written, 0), (0, 0)))
        assert drafted(pair, drafter, GREEDY).nodes == nodes


def test_reviews_inside_are_as_lenient_as_was_asked() -> None:
    for lenience in (0.5, 1.0):
        stages = Cascade("a", lenience=lenience)._stages
        assert [getattr(stage.rule, "lenience", 1.0) for stage in stages] == [lenience] * 2
