"""A model that is trained by adapters, and its ordinary checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foretoken.models.load import load_model
from foretoken.trainable.adapted_lm import AdaptedLM
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM
from lessons import random_lesson

pytest.importorskip("peft")


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_has_the_adapters_in_its_weights(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """New ones change nothing, only they are trained, and what is saved computes what was trained,
    also when it is read back."""
    target = checkpoints[0]
    lesson = random_lesson(target, 0.0)
    facts = Facts.of(load_model(target))
    plain = TrainedLM(facts, model=str(target)).eval()
    module = AdaptedLM(facts, str(target), 3).eval()
    with torch.no_grad():
        before = module.states(lesson)
        assert torch.equal(before, plain.states(lesson))
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    assert not any("embed" in name or "lm_head" in name for name in trained)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name in trained:
                weight.add_(0.1 * torch.randn_like(weight))
        wanted = module.states(lesson)
        assert not torch.allclose(wanted, before)
        module.save(tmp_path, {})
        names = load_file(tmp_path / "model.safetensors").keys()
        assert names == load_file(target / "model.safetensors").keys()
        saved = TrainedLM(facts, model=str(tmp_path)).eval()
        torch.testing.assert_close(saved.states(lesson), wanted)
        module.read_weights(tmp_path)
        torch.testing.assert_close(module.states(lesson), wanted)
