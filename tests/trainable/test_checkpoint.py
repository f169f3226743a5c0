"""Checkpoints are written, read and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.models.target import ModelTarget
from foretoken.registry import drafter_class
from foretoken.testing import Pair, tiny_pair
from foretoken.train.drafter import trainable
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.checkpoint import Facts
from lessons import randomised
from modules import block_module, glimpse_module


def heads_for(pair: Pair, seed: int = 0, scale: float = 0.3, **shape: object) -> MedusaHeads:
    return randomised(MedusaHeads(Facts.of(pair.target), **shape), seed, scale)  # type: ignore[arg-type]


def test_checkpoints(small: Pair, tmp_path: Path) -> None:
    """Written and read again; another target, method, shape or file is refused in a sentence."""
    heads, access = heads_for(small, num_heads=2), ModelTarget(small.target, 1, 32)
    heads.notes["rates"] = [[0.5], [0.25]]
    heads.save(tmp_path / "a", {"target_name": "tiny"})
    read = MedusaHeads.load(tmp_path / "a", access)
    assert read.notes == heads.notes and read.shape == heads.shape
    assert not read.training and not any(weight.requires_grad for weight in read.parameters())
    with pytest.raises(ForetokenError, match="doesn't hold the tensors"):
        heads_for(small, num_heads=1).check_weights(tmp_path / "a")
    for name, weight in heads.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight)
    assert {"0.0.linear.weight", "0.0.linear.bias", "1.1.weight"} <= set(heads.state_dict())
    other = ModelTarget(tiny_pair(23, width=16).target, 1, 32)
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        MedusaHeads.load(tmp_path / "a", other)
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        MedusaHeads.load(heads, other)
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"foretoken_method": "hydra"}, "of method 'hydra' and not of 'medusa'"),
        ({"shape": {"num_heads": 3}}, "doesn't hold the tensors"),
        ({"shape": {"heads": 3}}, "doesn't fit"),
        ({"target": {}}, "is no checkpoint"),
    ):
        path.write_text(json.dumps({**config, **change}))
        with pytest.raises(ForetokenError, match=message):
            MedusaHeads.load(tmp_path / "a", access)
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        Medusa()


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("peagle", {"num_layers": 10**9}, "num_layers is 1000000000"),
        ("peagle", {"num_layers": 7}, "doesn't hold the tensors"),
        ("peagle", {"intermediate": 10**13}, "doesn't hold the tensors"),
        ("dflash", {"num_layers": 10**9}, "num_layers is 1000000000"),
        ("dflash", {"intermediate": 10**13}, "doesn't hold the tensors"),
        ("hydra", {"num_layers": 10**30}, "num_layers is 1000000"),
        ("medusa", {"num_heads": 2**31}, "num_heads is 2147483648"),
        ("medusa", {"num_heads": [3]}, r"num_heads is \[3\]"),
        ("mlp_speculator", {"num_heads": 10**9}, "num_heads is 1000000000"),
        ("mlp_speculator", {"inner_width": 10**5}, "doesn't hold the tensors"),
        ("mlp_speculator", {"inner_width": 10**13}, "doesn't fit"),
        ("eagle", {"intermediate": 10**13}, "doesn't hold the tensors"),
    ],
)
def test_numbers_that_no_tensor_has(
    small: Pair, tmp_path: Path, method: str, change: dict[str, object], message: str
) -> None:
    """They are refused at once, before anything is allocated for them."""
    access, kind = ModelTarget(small.target, 1, 32), drafter_class(method).module
    kind(Facts.of(small.target)).save(tmp_path, {})
    kind.load(tmp_path, access)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "shape": {**config["shape"], **change}}))
    with pytest.raises(ForetokenError, match=message):
        kind.load(tmp_path, access)


def test_numbers_that_a_checkpoint_does_not_give(small: Pair, tmp_path: Path) -> None:
    """Are the target's: an earlier version noted no heads."""
    module, access = glimpse_module(small), ModelTarget(small.target, 1, 32)
    module.save(tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("kv_heads", "head_dim"):
        del config["target"][name]
    config["target"]["layers"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(module).load(tmp_path, access).facts == module.facts


def test_the_last_layer_may_be_read(small: Pair, tmp_path: Path) -> None:
    """Its states are there, before the norm."""
    block_module(small, target_layer_ids=(1,)).save(tmp_path, {})
    read = BlockModule.load(tmp_path, ModelTarget(small.target, 1, 32))
    assert read.hidden == (2, -1) and small.target.layers == 2


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("medusa", "num_heads"),
        ("hydra", "num_heads"),
        ("eagle3", "unroll"),
        ("eagle3", "draft_vocab_size"),
        ("dflash", "anchors"),
        ("pass", "num_tokens"),
        ("specdec", "blocks"),
    ],
)
def test_shapes_of_nothing(small: Pair, method: str, name: str) -> None:
    """They would learn nothing, or end a training's first step with a traceback."""
    kind = trainable(method).module
    for wrong in (0, -1, 2.5):
        with pytest.raises(ForetokenError, match=f"{name} is {wrong}"):
            kind.from_shape(Facts.of(small.target), {name: wrong}, "the recipe")


def test_notes_that_are_none(small: Pair, tmp_path: Path) -> None:
    """The sentence names the folder."""
    heads_for(small).save(tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "notes": ["a"]}))
    with pytest.raises(ForetokenError, match=r"notes of .* is \['a'\]; it must be a dict"):
        MedusaHeads.load(tmp_path, ModelTarget(small.target, 1, 32))
