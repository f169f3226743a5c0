"""EAGLE-3: its head, its layers, and what is estimated is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_files import VLLM, several
from foretoken import ForetokenError
from foretoken.drafters.eagle3 import Eagle3
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, tiny_pair
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate, seeded


@pytest.mark.parametrize("layers", [1, 3])
def test_the_estimate_of_a_chain(small: Pair, records: Records, layers: int) -> None:
    """With one path a level the tree is a chain, and the estimate is what is served."""
    module = seeded(Eagle3Module, small, num_layers=layers)
    module.set_token_counts(records.counts(23))
    module.copy_from(FrozenTarget(small.target))
    drafter = Eagle3(module, depth=3, top_k=1, tree_nodes=1000, tree="paper")
    check_estimate(drafter, module, small.target, records, TargetOnly())


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


def test_layers_that_follow_from_the_target(tmp_path: Path) -> None:
    """Where a checkpoint names none they are known once it is bound."""
    named = {key: value for key, value in VLLM.items() if "layer_ids" not in key}
    drafter = Eagle3(several(tmp_path, named))
    assert drafter.wants.hidden == (-1,)
    drafter.bind(ModelTarget(tiny_pair(23, layers=4).target, 1, 32))
    assert drafter.wants.hidden == (1, 2, 3)
