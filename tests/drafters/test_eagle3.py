"""EAGLE-3: its head, its layers, and what is estimated is served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.eagle3 import Eagle3, Eagle3Module, default_capture
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate, seeded


def test_the_estimate_of_a_chain(small: Pair, records: Records) -> None:
    """With one path a level the tree is a chain, and the estimate is what is served."""
    module = seeded(Eagle3Module, small)
    module.set_token_counts(records.counts(23))
    module.copy_from(FrozenTarget(small.target))
    drafter = Eagle3(module, depth=3, top_k=1, tree_nodes=1000, tree="paper")
    check_estimate(drafter, module, small.target, records, TargetOnly())


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
                    mine = module.reduced_logits(outputs[b, n - 2 - i, i])
                    goal = frozen.head(lesson.hidden[-1][b, n - 1])[module.ids]
                    total += share * 0.5**i * float(DIVERGENCES["kl_div"](mine, goal).detach())
    assert total > 0
    assert float(loss.detach()) == pytest.approx(total / weight, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_eagle3_says_what_it_reads(small: Pair, tmp_path: Path) -> None:
    """The layers that a checkpoint captures are known before it is bound; its names are public."""
    module = seeded(Eagle3Module, small, capture=(0, 1, 1))
    module.save(tmp_path / "a", {})
    assert Eagle3(tmp_path / "a").wants.hidden == Eagle3(module).wants.hidden == (0, 1)
    own = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    own |= {f"layers.0.{x}.weight" for x in norms}
    own |= {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"}
    own |= {f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    assert set(module.state_dict()) == own
    assert module.layers[0].self_attn.q_proj.weight.shape == (32, 64)
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        Eagle3()
