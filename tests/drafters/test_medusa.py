"""Medusa: what is estimated is served; typical acceptance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foretoken import SamplingParams
from foretoken.drafters.blockwise import Blockwise, BlockwiseHeads
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.protocols import Verifier
from foretoken.testing import Pair, serve
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.typical import Typical
from lessons import check_estimate, packed, randomised

CHAIN = ((0,), (0, 0), (0, 0, 0))


@pytest.mark.parametrize(
    ("heads_cls", "options"),
    [
        (MedusaHeads, {"tree": CHAIN}),
        (MedusaHeads, {"tree": "paper"}),
        (MedusaHeads, {"tree": ((0,), (1,), (1, 0))}),
    ],
)
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, heads_cls: Any, options: dict[str, Any]
) -> None:
    """Steps and accepted places, one by one, ends of texts and full budgets included."""
    heads = randomised(heads_cls(Facts.of(small.target), own_lm_heads=False), scale=0.03)
    check_estimate(Medusa(heads, **options), heads, small.target, records, TargetOnly())


def test_heads_start_as_the_target(small: Pair, records: Records) -> None:
    """Untrained heads say what the target says, with a head of their own or the target's."""
    frozen = FrozenTarget(small.target)
    states = frozen.lesson(packed(records), (-1,)).hidden[-1]
    for own in (True, False):
        heads = MedusaHeads(Facts.of(small.target), own_lm_heads=own).double()
        heads.copy_from(frozen)
        logits = heads.logits(heads.states(states), frozen.head)
        torch.testing.assert_close(logits[:, :, 2], frozen.head(states))


def test_typical_acceptance_takes_more(small: Pair) -> None:
    """At temperature 0 it is greedy decoding; above, drafts stray and more of them are kept."""
    heads = randomised(MedusaHeads(Facts.of(small.target), own_lm_heads=False), scale=0.03)
    prompts = [[1, 2, 3], [4, 5], [9] * 6]

    def passes(rule: Verifier, params: SamplingParams) -> tuple[int, int, list[list[int]]]:
        outputs = serve(small.target, Medusa(heads, tree="paper"), rule, prompts, params)
        stats = [output.stats for output in outputs]
        ids = [output.token_ids for output in outputs]
        return sum(s.passes for s in stats), sum(s.strayed for s in stats), ids

    cold = SamplingParams(temperature=0, max_tokens=40)
    assert passes(Typical(), cold)[2] == passes(TargetOnly(), cold)[2]
    warm = SamplingParams(temperature=1.0, max_tokens=40, seed=1, ignore_eos=True)
    typical, exact = passes(Typical(), warm), passes(TargetOnly(), warm)
    assert typical[0] < exact[0] and typical[1] > 0 == exact[1]


def test_heads_that_the_tree_doesnt_ask_are_not_run(small: Pair) -> None:
    """Neither their blocks nor their language-model heads."""
    heads = randomised(MedusaHeads(Facts.of(small.target)), scale=0.03)
    run: set[str] = set()
    for name, layer in heads.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda *_, name=name: run.add(name.split(".")[0]))
    params = SamplingParams(temperature=0, max_tokens=6)
    for drafter in (
        Medusa(heads, tree=((0,), (1,), (1, 0))),
        Medusa(heads, tree="paper", num_speculative_tokens=2),
    ):
        run.clear()
        serve(small.target, drafter, TargetOnly(), [[1, 2, 3]], params)
        assert run == {"0", "1"}


def test_heads_of_requests_that_draft_nothing_are_not_run(small: Pair) -> None:
    """Alone, and beside a request that drafts: then for its row only."""
    rows: list[int] = []
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    nothing = replace(params, max_draft_tokens=0)
    medusa = randomised(MedusaHeads(Facts.of(small.target)), scale=0.03)
    blockwise = randomised(BlockwiseHeads(Facts.of(small.target)), scale=0.03)
    drafters = (Medusa(medusa, tree="paper"), medusa), (Blockwise(blockwise), blockwise)
    for drafter, heads in drafters:
        first = next(layer for layer in heads.modules() if isinstance(layer, torch.nn.Linear))
        first.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
        for together, expected in (([nothing], set()), ([nothing, params], {1})):
            rows.clear()
            prompts = [[1, 2]] * len(together)
            outputs = serve(small.target, drafter, TargetOnly(), prompts, together)
            assert set(rows) == expected
            assert outputs[0].token_ids == outputs[-1].token_ids


@torch.inference_mode()
def test_heads_of_several_blocks(small: Pair) -> None:
    """Each block reads the one before it."""
    shape: dict[str, Any] = {"num_heads": 2, "num_layers": 3, "own_lm_heads": False}
    heads = randomised(MedusaHeads(Facts.of(small.target), **shape))
    x = torch.randn(small.target.width, dtype=torch.float64)
    for head, found in zip(heads.children(), heads.states(x), strict=True):
        state = x
        for block in head:
            state = state + F.silu(block.linear(state))
        torch.testing.assert_close(found, state)
