"""Blockwise decoding: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.drafters import blockwise
from foretoken.drafters.blockwise import Blockwise, BlockwiseHeads
from foretoken.draws import GreedyDraws
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, check_estimate, randomised


@pytest.mark.parametrize(
    ("heads_cls", "options"),
    [(BlockwiseHeads, {}), (BlockwiseHeads, {"num_speculative_tokens": 2})],
)
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, heads_cls: Any, options: dict[str, Any]
) -> None:
    """Steps and accepted places, one by one, ends of texts and full budgets included."""
    heads = randomised(heads_cls(Facts.of(small.target)), scale=0.03)
    check_estimate(Blockwise(heads, **options), heads, small.target, records, TargetOnly())


@torch.inference_mode()
def test_each_place_has_units_of_its_own(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the paper's formula; the draft is each place's likeliest token, in their order."""
    heads = randomised(BlockwiseHeads(Facts.of(small.target), num_heads=3))
    x = torch.randn(1, small.target.width, dtype=torch.float64)
    parts = zip(heads.up.weight.chunk(3), heads.up.bias.chunk(3), heads.down, strict=True)
    places = [x + (x @ up.T + bias).relu() @ down for up, bias, down in parts]
    torch.testing.assert_close(heads.states(x), torch.stack(places, 1))
    monkeypatch.setattr(blockwise, "drafting", lambda *given: ([0], x))
    drafter = Blockwise(heads)
    drafter.bind(ModelTarget(small.target, 1, 32))
    drafted = drafter.draft([Sequence.start([1], GREEDY)], [9], GreedyDraws()).tokens[0].tolist()
    assert drafted == [int(small.target.head(place).argmax()) for place in places]
    assert len({*drafted}) > 1
