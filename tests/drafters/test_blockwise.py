"""Blockwise decoding: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.drafters.blockwise import Blockwise, BlockwiseHeads
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate, randomised


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
