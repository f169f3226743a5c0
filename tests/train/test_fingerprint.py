"""What tells targets of one shape apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.train import fingerprint as module
from foretoken.train.fingerprint import fingerprint


def tuned(target: Path, out: Path) -> Path:
    """A copy of a target of which one matrix in the middle has other numbers."""
    shutil.copytree(target, out)
    weights = load_file(out / "model.safetensors")
    name = next(name for name in sorted(weights) if "mlp.up_proj" in name)
    weights[name] = 1.5 * weights[name]
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out


def test_weights_and_not_places(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Other numbers in a matrix are another target; a copy elsewhere, whose tokenizer was touched,
    is the same."""
    mine = fingerprint(str(checkpoints[0]))
    moved = shutil.copytree(checkpoints[0], tmp_path / "moved")
    (moved / "notes.txt").write_text("moved")
    assert fingerprint(str(moved)) == mine
    assert fingerprint(str(tuned(checkpoints[0], tmp_path / "tuned"))) != mine
    config = moved / "config.json"
    config.write_text(config.read_text().replace("10000", "20000") + " ")
    assert fingerprint(str(moved)) != mine


def test_a_file_is_a_target_too(tmp_path: Path) -> None:
    """As a GGUF file is; not by its name."""
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.write_bytes(b"weights")
    two.write_bytes(b"weights")
    assert fingerprint(str(one)) == fingerprint(str(two))
    two.write_bytes(b"Weights")
    assert fingerprint(str(one)) != fingerprint(str(two))


@pytest.mark.parametrize("at", [0, 300_000, 999_936])
def test_a_large_file_is_read_in_pieces(tmp_path: Path, at: int) -> None:
    """All over it, its end included."""
    numbers = torch.zeros(1_000_000, dtype=torch.uint8)
    file = tmp_path / "model.gguf"
    file.write_bytes(numbers.numpy().tobytes())
    before = fingerprint(str(file))
    assert len(list(module._starts(len(numbers)))) == module._PIECES
    numbers[at : at + 1000] = 1
    file.write_bytes(numbers.numpy().tobytes())
    assert fingerprint(str(file)) != before
