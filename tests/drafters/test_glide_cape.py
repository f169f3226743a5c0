"""CaPE: more candidates where the drafter is unsure; what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.glide import Glide
from foretoken.drafters.glide_cape import GlideCape
from foretoken.draws import GreedyDraws
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill
from foretoken.testing import Pair, serve
from foretoken.train.records import Records
from foretoken.trainable.cross_attention import CrossAttentionModule
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, PROMPTS, check_estimate
from modules import learned_glimpse_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> CrossAttentionModule:
    """Trained for a few steps, on the very texts."""
    return learned_glimpse_module(small, records)


@pytest.mark.parametrize(
    "drafter", [GlideCape, lambda m: GlideCape(m, 3, cape=((0.5, 3), (1.0, 1)))]
)
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: CrossAttentionModule, drafter: Any
) -> None:
    """Steps and accepted places, budgets included."""
    total = check_estimate(drafter(learned), learned, small.target, records, TargetOnly())
    assert total.accepted[1] > 0


def test_cape_widens_where_the_drafter_is_unsure(
    small: Pair, learned: CrossAttentionModule
) -> None:
    """The paper's table, each place's candidates, and tables that make no sense."""
    chances = torch.tensor([[0.1, 0.3, 0.59], [0.6, 0.8, 1.0]])
    assert GlideCape(learned)._candidates(chances).tolist() == [[8, 6, 6], [4, 2, 2]]
    for cape in (
        (),
        ((0.5, 2),),
        ((1.0, 0),),
        ((0.8, 2), (0.3, 4), (1.0, 1)),
        ((0.5, 0), (1.0, 1)),
    ):
        with pytest.raises(ForetokenError, match="cape is"):
            GlideCape(learned, cape=cape)
    params = SamplingParams(temperature=0, max_tokens=80)  # few nodes may be left near the end
    narrow = GlideCape(learned, cape=((1.0, 1),))
    chain = serve(small.target, Glide(learned), Speculative(), PROMPTS, params)
    outputs = serve(small.target, narrow, TargetOnly(), PROMPTS, params)
    assert [o.stats.accepted_at for o in outputs] == [o.stats.accepted_at for o in chain]
    wide = serve(small.target, GlideCape(learned), TargetOnly(), PROMPTS, params)
    assert sum(o.stats.passes for o in wide) < sum(o.stats.passes for o in chain)


@torch.inference_mode()
@pytest.mark.parametrize(
    "make", [lambda m: Glide(m, 90), lambda m: GlideCape(m, 90, cape=((1.0, 1),))]
)
def test_a_long_draft_beside_a_text_whose_context_ends(
    small: Pair, learned: CrossAttentionModule, make: Any
) -> None:
    """Each row has room to run along, and a draft is as long as it was asked for."""
    drafter, target = make(learned), ModelTarget(small.target, 2, 100)
    target.bind(drafter)
    sequences = [Sequence.start(text, GREEDY) for text in ([1, 2, 3] * 33, [4, 5, 6])]
    for sequence in sequences:
        target.begin(sequence)
        drafter.begin(sequence)
    prefill(target, drafter, sequences, 128)
    assert drafter.draft(sequences, [1, 90], GreedyDraws()).counts == [1, 90]
