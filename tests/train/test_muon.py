"""The matrices' optimiser: orthogonal updates, and who is moved by which."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foretoken.train.muon import Muon, optimizers_for, orthogonal
from foretoken.train.recipe import Recipe


def module() -> nn.Module:
    made = nn.Module()
    made.up = nn.Linear(4, 6)
    made.lm_head = nn.Linear(4, 9, bias=False)
    made.embed_tokens = nn.Embedding(9, 4)
    made.norm = nn.RMSNorm(4)
    return made


def test_updates_are_orthogonal() -> None:
    """All singular values of an update are near 1, for wide and tall matrices."""
    for shape in ((24, 60), (60, 24)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert float(values.min()) > 0.6 and float(values.max()) < 1.3


def test_matrices_between_states_are_its_own() -> None:
    """Rows a token, biases and norms stay AdamW's; every parameter is moved by just one."""
    made = module()
    groups = [{"params": list(made.parameters()), "factor": 0.5}]
    other, matrices = optimizers_for(made, groups, Recipe(lr=1e-3, matrix_lr=0.02))
    assert isinstance(matrices, Muon) and isinstance(other, torch.optim.AdamW)
    assert [id(p) for p in matrices.param_groups[0]["params"]] == [id(made.up.weight)]
    assert matrices.param_groups[0]["peak"] == 0.02 and other.param_groups[0]["peak"] == 1e-3
    assert all(each.param_groups[0]["factor"] == 0.5 for each in (other, matrices))
    assert len(other.param_groups[0]["params"]) == len(list(made.parameters())) - 1


def test_without_a_rate_one_optimiser_moves_all() -> None:
    """AdamW has every parameter."""
    made = module()
    groups = [{"params": list(made.parameters()), "factor": 1.0}]
    (only,) = optimizers_for(made, groups, Recipe(lr=1e-3))
    assert len(only.param_groups[0]["params"]) == len(list(made.parameters()))


def test_a_step_moves_by_the_rate_and_the_shape() -> None:
    """As far along every direction, whatever the gradient's size; decayed beforehand."""
    weight = nn.Parameter(torch.randn(40, 10))
    before, lr = weight.detach().clone(), 0.1
    weight.grad = 1e-3 * torch.randn(40, 10)
    Muon([weight], lr, weight_decay=0.5).step()
    moved = torch.linalg.svdvals((before * (1 - lr * 0.5) - weight.detach()) / (lr * 2))
    assert moved.min() > 0.6 and moved.max() == pytest.approx(1, abs=0.3)
