"""Chains of places that are predicted in one pass: how long they are, and when they end."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.drafters.lookahead_embeddings import LookaheadEmbeddings, PassTokens
from foretoken.drafters.shared.placed_chain import PlacedChain
from foretoken.drafters.specdec import SpecDec, SpecDecModel
from foretoken.length import Confidence
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair
from lessons import seeded

KINDS: list[Any] = [
    (LookaheadEmbeddings, PassTokens, "num_tokens"),
    (SpecDec, SpecDecModel, "masks"),
]


@pytest.mark.parametrize(("kind", "module", "size"), KINDS)
def test_no_longer_than_its_places(
    kind: type[PlacedChain], module: Any, size: str, small: Pair
) -> None:
    """The text's end and the tokens after it, or fewer, by any rule; more are refused."""
    made = seeded(module, small, **{size: 3})
    assert made.places == 4
    for given, most in ((None, 4), (3, 3)):
        drafter = kind(
            made,
            given,
            num_assistant_tokens_schedule="confidence",
            assistant_confidence_threshold=0.7,
        )
        drafter.bind(ModelTarget(small.target, 1, 32))
        assert drafter.nodes == drafter.depth(made) == most
        assert drafter.length == Confidence(most, 0.7)
    with pytest.raises(ForetokenError, match="the checkpoint predicts 4 places; it must be 1 to 4"):
        kind(made, 5).bind(ModelTarget(small.target, 1, 32))
    with pytest.raises(ForetokenError, match="num_assistant_tokens_schedule"):
        kind(made, num_assistant_tokens_schedule="never")
