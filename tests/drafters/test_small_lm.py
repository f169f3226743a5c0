"""A small model that drafts chains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import SamplingParams
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import GreedyDraws
from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, native, serve, tiny_transformers
from foretoken.testing.checks import greedy_reference
from foretoken.tree import Kind
from foretoken.verify.speculative import Speculative


def draft_of(drafter: SmallLM, text: list[int], budget: int) -> list[int]:
    """What a bound drafter drafts greedily after a text."""
    sequence = Sequence.start(text, SamplingParams(temperature=0))
    drafter.begin(sequence)
    tree = drafter.draft([sequence], [budget], GreedyDraws())
    drafter.end([sequence])
    assert tree.kind == Kind.CHOSEN
    return tree.tokens[0, : tree.counts[0]].tolist()


def test_a_greedy_draft_is_the_small_models_text(pair: Pair) -> None:
    """Of the given length, or as long as the budget allows."""
    drafter = SmallLM(pair.draft, 4)
    drafter.bind(ModelTarget(pair.target, 1, 64))
    expected = greedy_reference(pair.draft, [5, 9, 2], 4)
    assert draft_of(drafter, [5, 9, 2], 9) == expected
    assert draft_of(drafter, [5, 9, 2], 2) == expected[:2]


def test_its_model_can_be_replaced(pair: Pair) -> None:
    """From the next draft on another model of the same shape drafts, and is declared."""
    drafter = SmallLM(pair.draft, 3)
    drafter.bind(ModelTarget(pair.target, 1, 64))
    assert drafter.pass_per_token and [*drafter.small_models] == [pair.draft]
    drafter.replace_model(pair.target)
    assert [*drafter.small_models] == [pair.target]
    assert draft_of(drafter, [5, 9, 2], 3) == greedy_reference(pair.target, [5, 9, 2], 3)


def test_the_target_itself_is_always_right(pair: Pair) -> None:
    """Drafts of the target's own weights are all accepted, greedy and sampled."""
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, max_tokens=20, seed=1, ignore_eos=True)
        [output] = serve(pair.target, SmallLM(pair.target, 3), Speculative(), [[5, 9, 2]], params)
        assert 0 < output.stats.accepted == output.stats.drafted


def test_a_model_is_needed() -> None:
    """Without one the message shows how to name it."""
    with pytest.raises(ForetokenError, match="drafts with a small model; name it"):
        SmallLM()


def test_a_model_of_another_vocabulary_is_refused(pair: Pair) -> None:
    """Both sizes are named."""
    drafter = SmallLM(pair.draft)
    access = SimpleNamespace(
        vocab_size=354,
        max_length=10,
        slots=1,
        backend="plain",
        budget=CacheBudget(),
        amateur=None,
        opening=(),
    )
    with pytest.raises(ForetokenError, match="97 tokens and the target's 354"):
        drafter.bind(access)  # type: ignore[arg-type]


def test_a_draft_that_ends_before_a_token_has_cost_its_pass(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So drafting isn't a pass for each drafted token, which is declared."""
    for rule, more in (("confidence", False), ("fallback", True)):
        drafter = SmallLM(
            pair.draft,
            4,
            num_assistant_tokens_schedule=rule,
            assistant_confidence_threshold=0.9,
        )
        drafter.bind(ModelTarget(pair.target, 1, 64))
        passes: list[Any] = []
        forward = drafter._lm._forward
        monkeypatch.setattr(
            drafter._lm,
            "_forward",
            lambda feed, of=forward, to=passes: (to.append(feed), of(feed))[1],
        )
        drafted = draft_of(drafter, [5, 9, 2], 9)
        assert len(drafted) < 4
        assert (len(passes) > len(drafted)) is more
        assert drafter.pass_per_token is not more


def test_another_model_than_the_amateur_hands_nothing_over(pair: Pair) -> None:
    """Then drafting is a pass for each token again, which is declared."""
    drafter, target = SmallLM(pair.draft, 3), ModelTarget(pair.target, 1, 64)
    target.amateur = pair.draft
    drafter.bind(target)
    assert drafter.hands_over and not drafter.pass_per_token
    drafter.replace_model(pair.target)
    assert not drafter.hands_over and drafter.pass_per_token


@torch.inference_mode()
def test_a_long_draft_beside_a_text_whose_context_ends(pair: Pair) -> None:
    """That row has room to run along."""
    drafter = SmallLM(pair.draft, 90)
    drafter.bind(ModelTarget(pair.target, 2, 100))
    texts = ([1, 2, 3] * 33, [4, 5, 6])
    sequences = [Sequence.start(text, SamplingParams(temperature=0)) for text in texts]
    for sequence in sequences:
        drafter.begin(sequence)
    assert drafter.draft(sequences, [1, 90], GreedyDraws()).counts == [1, 90]


def test_no_draft_passes_the_models_context(pair: Pair) -> None:
    drafter, text = SmallLM(native(tiny_transformers(max_length=12)), 20), [5, 9, 2, 5, 9, 2, 5]
    drafter.bind(ModelTarget(pair.target, 1, 64))
    assert len(draft_of(drafter, text, 30)) == 13 - len(text)
