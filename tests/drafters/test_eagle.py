"""EAGLE: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.drafters.eagle import TREE, Eagle
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.eagle import EagleModule
from foretoken.verify.multi_candidate import MultiCandidate
from lessons import check_estimate, seeded


@pytest.mark.parametrize("tree", [TREE, ((0,), (0, 0), (0, 0, 0)), ((0,), (1,), (1, 0))])
def test_the_estimate_is_what_is_served(small: Pair, records: Records, tree: Any) -> None:
    """Each step's acceptance, the drafter's own states along the text included."""
    module = seeded(EagleModule, small)
    check_estimate(Eagle(module, tree=tree), module, small.target, records, MultiCandidate())
