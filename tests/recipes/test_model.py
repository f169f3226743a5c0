"""The model that is trained, its loss and its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from recipe_data import random_llama

transformers = pytest.importorskip("transformers")


def test_export_is_the_same_function_in_transformers(tmp_path: Path) -> None:
    """A saved model computes the same in transformers and when it is read back."""
    import model

    ours = random_llama()
    model.save_hf(ours, tmp_path, torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(256, (2, 30))
    assert (theirs(ids).logits - ours.logits(ids)).abs().max() < 1e-4
    assert (model.load_hf(tmp_path).logits(ids) - ours.logits(ids)).abs().max() == 0


def test_chunked_loss_is_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients are those of torch's cross entropy."""
    import model

    monkeypatch.setattr(model, "CHUNK", 7)
    hidden = torch.randn(20, 8, requires_grad=True)
    head = torch.randn(30, 8, requires_grad=True)
    goal, weight = torch.randint(30, (20,)), torch.rand(20)
    wanted = (F.cross_entropy(hidden @ head.t(), goal, reduction="none") * weight).sum()
    grads = torch.autograd.grad(wanted, (hidden, head))
    loss, _ = model.chunked_loss(hidden, head, goal, weight)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, head)), grads)
