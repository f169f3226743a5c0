"""DFlash: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.drafters.dflash import DFlash
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.block_layers import BlockModule
from foretoken.verify.speculative import Speculative
from lessons import check_estimate, check_expectation
from modules import block_module, learned_block_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> BlockModule:
    """Trained for a few steps, on the very texts."""
    return learned_block_module(small, records)


@pytest.mark.parametrize("options", [{}, {"num_speculative_tokens": 2}])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: BlockModule, options: dict[str, Any]
) -> None:
    """Steps and accepted places of chains."""
    drafter = DFlash(learned, **options)
    total = check_estimate(drafter, learned, small.target, records, Speculative())
    assert total.accepted[1] > 0


def test_the_expectation_of_drawn_chains(small: Pair, learned: BlockModule) -> None:
    check_expectation(DFlash(learned), learned, small.target, Speculative())


def check_other(small: Pair, records: Records, learned: BlockModule, **shape: Any) -> None:
    """What is estimated is served, and isn't what the module would do without."""
    module = block_module(small, **shape)
    module.load_state_dict(learned.state_dict(), strict=False)
    module.set_token_counts(records.counts(small.target.vocab_size))
    module.copy_from(small.target)
    total = check_estimate(DFlash(module), module, small.target, records, Speculative())
    assert total != check_estimate(DFlash(learned), learned, small.target, records, Speculative())


@pytest.mark.parametrize("causal", [False, True])
def test_layers_with_a_window(
    small: Pair, records: Records, learned: BlockModule, causal: bool
) -> None:
    check_other(small, records, learned, window=5, causal=causal)


@pytest.mark.parametrize("causal", [False, [False, True], [True, False]], ids=str)
def test_one_layer_with_a_window(
    small: Pair, records: Records, learned: BlockModule, causal: Any
) -> None:
    """And one that sees all, each with blocks of its kind."""
    check_other(small, records, learned, window=[None, 5], causal=causal)


def test_blocks_that_are_causal(small: Pair, records: Records, learned: BlockModule) -> None:
    check_other(small, records, learned, causal=True)


def test_a_head_of_few_tokens(small: Pair, records: Records, learned: BlockModule) -> None:
    check_other(small, records, learned, draft_vocab_size=9)
