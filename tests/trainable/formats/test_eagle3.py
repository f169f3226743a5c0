"""EAGLE-3 as SafeAILab, its followers and speculators publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import consumers
from drafted import Prediction, predictions
from eagle3_files import HEAD, SPECULATORS, VLLM, several
from foreign import check_drafts_as_ours, check_refused, of_module, target_of, written
from foretoken import ForetokenError
from foretoken.testing import Pair
from foretoken.trainable.eagle3 import Eagle3Module


@pytest.mark.parametrize("name", of_module(Eagle3Module))
def test_it_drafts_what_our_own_checkpoint_does(name: str, small: Pair, tmp_path: Path) -> None:
    """The same trees and acceptances, and the same tensors."""
    check_drafts_as_ours(name, small, tmp_path)


@pytest.mark.parametrize("name", ["layer", "width", "no such tensor", "shape"])
def test_what_does_not_fit_is_refused(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence, with both values where there are two."""
    check_refused(name, small, tmp_path)


def check_predictions(read: consumers.Read, found: list[Prediction], small: Pair) -> None:
    """They are the program's own, at every node."""
    ids = read.tensors["d2t"] + torch.arange(HEAD)
    for each in found:
        tokens = torch.tensor([*each.text[1:], *each.path])
        known = len(each.text) - 1
        embedded = small.target.embed(tokens)
        states = dict(enumerate(each.hidden))
        logits = consumers.logits_after(read, states, embedded[:known], embedded[known:])
        torch.testing.assert_close(each.probs[ids], logits.softmax(-1))
        assert float(each.probs.sum()) == pytest.approx(1.0)


SMALL = {"depth": 3, "top_k": 2, "tree_nodes": 8}


@pytest.mark.parametrize("first", ["midlayer", "layers.0"])
def test_several_layers_as_vllm_runs_them(first: str, small: Pair, tmp_path: Path) -> None:
    """Distributions at the root and at drafted nodes, while serving, in float64."""
    folder = several(tmp_path, VLLM, first)
    found = predictions("eagle3", folder, small, **SMALL)
    assert max(len(each.path) for each in found) == 2
    check_predictions(consumers.vllm(folder), found, small)


@pytest.mark.parametrize(
    "norms",
    [[], ["norm_before_residual", "norm_output", "norm_before_fc"], ["fc_norm", "norm_before_fc"]],
    ids=str,
)
def test_several_layers_as_speculators_runs_them(
    norms: list[str], small: Pair, tmp_path: Path
) -> None:
    """The same, with normed queries and any of the optional norms."""
    folder = several(tmp_path, SPECULATORS | {norm: True for norm in norms})
    found = predictions("eagle3", folder, small, **SMALL)
    check_predictions(consumers.speculators(folder), found, small)


@pytest.mark.parametrize(
    ("changed", "renamed", "message"),
    [
        ({"num_hidden_layers": 2}, None, "a tensor 'layers.2.input_layernorm.weight'"),
        ({"num_hidden_layers": 4}, None, "no tensor 'layers.3.input_layernorm.weight'"),
        ({"num_hidden_layers": 0}, None, "num_layers is 0"),
        ({"num_hidden_layers": 10**9}, None, "num_layers is 1000000000"),
        ({"intermediate_size": 10**13}, None, "and its configuration calls for"),
        ({"logit_scale": 0.5}, None, "logit_scale is 0.5"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 0, -5]}, None, "after layer -5 and this target"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 0, "1"]}, None, "after layer '1' and this"),
        ({}, ("layers.1.", "additional_layers.0."), "'additional_layers'"),
    ],
)
def test_other_layers_are_refused(
    changed: dict[str, Any],
    renamed: tuple[str, str] | None,
    message: str,
    small: Pair,
    tmp_path: Path,
) -> None:
    """Too many, too few, and those that another program runs in another way."""
    tensors = consumers.load_file(several(tmp_path, VLLM) / "model.safetensors")
    if renamed:
        tensors = {name.replace(*renamed): tensor for name, tensor in tensors.items()}
    written(tmp_path, {**VLLM, **changed}, tensors)
    with pytest.raises(ForetokenError, match=message) as refused:
        Eagle3Module.load(tmp_path, target_of(small))
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
