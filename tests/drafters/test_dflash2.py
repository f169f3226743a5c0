"""DFlash 2: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.drafters.dflash2 import DFlash2
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.selected_blocks import SelectedModule
from foretoken.verify.speculative import Speculative
from lessons import check_estimate, check_expectation
from modules import learned_selected_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> SelectedModule:
    """Trained for a few steps, on the very texts."""
    return learned_selected_module(small, records)


@pytest.mark.parametrize("options", [{}, {"num_speculative_tokens": 2}])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: SelectedModule, options: dict[str, Any]
) -> None:
    """Steps and accepted places of chains, whose tokens depend on the ones before."""
    drafter = DFlash2(learned, **options)
    total = check_estimate(drafter, learned, small.target, records, Speculative())
    assert total.accepted[1] > 0


def test_the_expectation_of_drawn_chains(small: Pair, learned: SelectedModule) -> None:
    check_expectation(DFlash2(learned), learned, small.target, Speculative())
