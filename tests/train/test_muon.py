"""The matrices' optimiser: orthogonal updates, and who is moved by which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from foretoken.drafters.medusa import MedusaHeads
from foretoken.drafters.mlp_speculator import MlpSpeculatorStages
from foretoken.drafters.specdec import SpecDecModel
from foretoken.train import muon
from foretoken.train.muon import Muon, alike, optimizers_for, orthogonal, precision
from foretoken.train.recipe import Recipe
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.selected_blocks import SelectedModule


class Module(Trained):
    def __init__(self) -> None:
        super().__init__(Facts(4, 9, 1))
        self.up = nn.Linear(4, 6)
        self.lm_head = nn.Linear(4, 9, bias=False)
        self.embed_tokens = nn.Embedding(9, 4)
        self.norm = nn.RMSNorm(4)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters()), "factor": 0.5}]


def test_updates_are_orthogonal() -> None:
    """All singular values of an update are near 1, for wide and tall matrices."""
    for shape in ((24, 60), (60, 24)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert float(values.min()) > 0.6 and float(values.max()) < 1.3


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (3, 24, 60)], ids=str)
def test_rounds_on_the_gram_matrix_are_the_rounds(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For singular values that are spread over four orders of magnitude, too."""
    monkeypatch.setattr(muon, "precision", lambda device: torch.float32)
    left, values, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    matrix = left * torch.logspace(0, -4, values.shape[-1]) @ right
    found = orthogonal(matrix)
    monkeypatch.setattr(muon, "WIDE", 99)
    assert torch.allclose(found, orthogonal(matrix), atol=2e-4)
    monkeypatch.setattr(muon, "QUINTIC", (3.4, -4.775, 2.0315))
    assert not torch.allclose(found, orthogonal(matrix), atol=2e-3)


def test_matrices_between_states_are_its_own() -> None:
    """Rows a token, biases and norms stay AdamW's; every parameter is moved by just one."""
    made = Module()
    other, matrices = optimizers_for(made, Recipe(lr=1e-3, matrix_lr=0.02))
    assert isinstance(matrices, Muon) and isinstance(other, torch.optim.AdamW)
    assert [id(p) for p in matrices.param_groups[0]["params"]] == [id(made.up.weight)]
    assert matrices.param_groups[0]["peak"] == 0.02 and other.param_groups[0]["peak"] == 1e-3
    assert all(each.param_groups[0]["factor"] == 0.5 for each in (other, matrices))
    assert len(other.param_groups[0]["params"]) == len(list(made.parameters())) - 1


@pytest.mark.parametrize(
    ("made", "between"),
    [
        (MedusaHeads(Facts(8, 9, 1), num_heads=2), {"0.0.linear.weight", "1.0.linear.weight"}),
        (MlpSpeculatorStages(Facts(8, 9, 1), num_heads=2), {"proj.0.weight", "proj.1.weight"}),
    ],
    ids=["medusa", "mlp_speculator"],
)
def test_heads_and_embeddings_by_any_name(made: Trained, between: set[str]) -> None:
    """Published names of embeddings and heads say nothing of what they are."""
    [matrices] = [
        each for each in optimizers_for(made, Recipe(matrix_lr=0.02)) if isinstance(each, Muon)
    ]
    moved = {id(p) for group in matrices.param_groups for p in group["params"]}
    assert {name for name, p in made.named_parameters() if id(p) in moved} == between


def test_masks_are_embeddings() -> None:
    made = SpecDecModel(Facts(8, 9, 1), masks=2)
    assert any(weight is made.masks for weight in made.of_vocabulary())


def test_a_selector_s_codebooks_are_embeddings() -> None:
    made = SelectedModule(Facts(8, 9, 4), num_layers=1, block_size=4, selector_rank=4)
    found = {id(weight) for weight in made.of_vocabulary()}
    assert found >= {id(p) for n, p in made.named_parameters() if n.endswith("codebook")}


def test_without_a_rate_one_optimiser_moves_all() -> None:
    """AdamW has every parameter."""
    made = Module()
    (only,) = optimizers_for(made, Recipe(lr=1e-3))
    assert len(only.param_groups[0]["params"]) == len(list(made.parameters()))


def test_a_step_moves_by_the_rate_and_the_shape() -> None:
    """As far along every direction, whatever the gradient's size; decayed beforehand."""
    weight = nn.Parameter(torch.randn(40, 10))
    before, lr = weight.detach().clone(), 0.1
    weight.grad = 1e-3 * torch.randn(40, 10)
    Muon([weight], lr, weight_decay=0.5).step()
    moved = torch.linalg.svdvals((before * (1 - lr * 0.5) - weight.detach()) / (lr * 2))
    assert moved.min() > 0.6 and moved.max() == pytest.approx(1, abs=0.3)


def test_the_momentum_looks_ahead() -> None:
    """Nesterov's: a step follows the new gradient more than its mean does."""
    weight, lr = nn.Parameter(torch.zeros(8, 8)), 0.1
    optimizer, mean = Muon([weight], lr), torch.zeros(8, 8)
    for gradient in torch.randn(2, 8, 8):
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        optimizer.step()
        mean = 0.95 * mean + 0.05 * gradient
        expected = orthogonal(0.05 * gradient + 0.95 * mean)
        torch.testing.assert_close((before - weight.detach()) / lr, expected, atol=2e-2, rtol=0)


def test_matrices_of_one_shape_are_moved_together() -> None:
    """Not those of as many numbers in another shape, nor any without a gradient."""
    matrices = [nn.Parameter(torch.ones(shape)) for shape in ((2, 6), (3, 4), (2, 6), (2, 6))]
    for matrix in matrices[:3]:
        matrix.grad = torch.ones_like(matrix)
    found = [[id(matrix) for matrix in some] for some in alike(matrices)]
    first, second, third, _ = map(id, matrices)
    assert found == [[first, third], [second]]


@pytest.mark.parametrize("own", [False, True])
def test_gpus_that_only_emulate_bfloat16(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply in float32, as fast and finer."""

    def supported(including_emulation: bool = True) -> bool:
        return own or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert precision("cuda") == (torch.bfloat16 if own else torch.float32)
