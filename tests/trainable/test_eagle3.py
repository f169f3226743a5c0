"""EAGLE-3's module: its vocabulary, its loss, its layers."""

from __future__ import annotations

import pytest
import torch

from foretoken import ForetokenError
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.eagle3 import Eagle3Module, default_capture
from foretoken.trainable.losses import DIVERGENCES, Objective
from lessons import packed, seeded


def test_eagle3_keeps_to_its_vocabulary(small: Pair, records: Records) -> None:
    """Its head's tokens are the text's likeliest; it drafts no others, and learns of no others."""
    module, frozen = (
        seeded(Eagle3Module, small, draft_vocab_size=6, unroll=2),
        FrozenTarget(small.target),
    )
    counts = records.counts(23)
    module.set_token_counts(counts)
    module.copy_from(frozen)
    known = set(module.ids.tolist())
    assert known == set(counts.sort(descending=True, stable=True).indices[:6].tolist())
    assert module.t2d.nonzero()[:, 0].tolist() == sorted(known)
    layers = tuple(dict.fromkeys((*default_capture(small.target.layers), -1)))
    assert module.hidden == layers
    logits = module.logits(torch.randn(2, 3, 32).double(), frozen.head)
    assert set(logits[0, 0].isfinite().nonzero()[:, 0].tolist()) == known
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 40, 0.0), module.hidden)
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    outputs = module.outputs(lesson, 2)
    total = weight = 0.0
    for b in range(2):
        for n in range(40):
            share, token = float(lesson.weight[b, n]), int(lesson.tokens[b, n])
            weight += share
            for i in range(2):
                if share and token in known and int(lesson.positions[b, n]) >= 2 + i:
                    mine = module.lm_head(module.normed(outputs[b, n - 2 - i, i]))
                    goal = frozen.head(lesson.hidden[-1][b, n - 1])[module.ids]
                    total += share * 0.5**i * float(DIVERGENCES["kl_div"](mine, goal).detach())
    assert total > 0
    assert float(loss.detach()) == pytest.approx(total / weight, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_every_layer_learns(small: Pair, records: Records) -> None:
    """Of several, in a step on the text and one on the layers' own outputs."""
    module, frozen = seeded(Eagle3Module, small, num_layers=3, unroll=2), FrozenTarget(small.target)
    lesson = frozen.lesson(packed(records), module.hidden)
    module(lesson, Objective({"kl_div": 1.0})).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())
    assert module.decoder_layers == 3
    assert module.layers[2].self_attn.q_proj.weight.shape == (32, 32)


@pytest.mark.parametrize("norms", [["fc_norm", "normbefore_fc"], "fc_norm"])
def test_norms_that_there_are_not(small: Pair, norms: object) -> None:
    """They would be left out without a word."""
    with pytest.raises(ForetokenError, match="of the recipe doesn't fit: Unknown norm"):
        Eagle3Module.from_shape(Facts.of(small.target), {"norms": norms}, "the recipe")


def test_what_is_normed_already_goes_to_the_head_as_it_is(small: Pair) -> None:
    """Where a checkpoint norms the outputs before the next entry reads them."""
    outputs = torch.randn(2, 3, 32).double()
    for norms in ([], ["norm_output"]):
        module = seeded(Eagle3Module, small, norms=norms)
        assert torch.equal(module.normed(outputs), outputs) == bool(norms)


def test_a_new_module_begins_with_the_last_captured_state(small: Pair) -> None:
    module = seeded(Eagle3Module, small, capture=[2, 0, 1])
    module.copy_from(FrozenTarget(small.target))
    hidden = {layer: torch.randn(2, 32).double() for layer in range(3)}
    assert torch.equal(module.features(hidden), hidden[1])
