"""A drafter shared out over processes learns what a whole one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foretoken import ForetokenError
from foretoken.train import shards
from train.test_processes import train, train_on_two

pytest.importorskip("accelerate")


def last_state(out: Path) -> Any:
    return torch.load(max((out / "resume").glob("step-*.pt")))


@pytest.mark.parametrize(
    "method",
    ["eagle3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sps", "medusa"))],
)
def test_shared_out_over_two_processes(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, method: str
) -> None:
    """Weights, gradients and optimisers' numbers: the same weights as from one process with twice
    the accumulation, also where one half of the steps goes on from a saved state, and where a
    single process goes on with it. Muon's updates and the norm of all gradients need whole ones."""
    changes: dict[str, Any] = {"method": method, "schedule": "constant", "warmup": 0.0, "clip": 0.1}
    changes |= {"matrix_lr": 0.02, "evaluate_every": 3}
    straight, shared = tmp_path / "straight", tmp_path / "shared"
    train(checkpoints[0], prompts, straight, accumulation=4, steps=6, **changes)
    for steps in (3, 4):
        train_on_two(
            checkpoints[0], prompts, shared, shard=True, steps=steps, accumulation=2, **changes
        )
    note = shared / "training.json"
    note.write_text(note.read_text().replace('"accumulation": 2', '"accumulation": 4'))
    train(checkpoints[0], prompts, shared, accumulation=4, steps=6, **changes)
    one, two = (last_state(out)["weights"] for out in (straight, shared))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-12)
    lines = [(out / "metrics.jsonl").read_text().splitlines() for out in (straight, shared)]
    lengths = [[json.loads(line).get("acceptance_length") for line in each] for each in lines]
    assert lengths[1][2] == pytest.approx(lengths[0][2])


def test_one_process_shares_nothing_out(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(ForetokenError, match="this is the only one; start them by torchrun"):
        train(checkpoints[0], prompts, tmp_path, shard=True)


def test_accelerates_own_sharding_is_refused(
    checkpoints: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ForetokenError, match="launch without --use_fsdp"):
        train(checkpoints[0], prompts, tmp_path)


def test_what_is_whole_stays_so() -> None:
    """Where nothing is shared out, weights are taken as they are."""
    one, two = nn.Linear(2, 3), nn.Linear(2, 3)
    shards.gather(one, two)
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    assert shards.whole(one.weight) is one.weight
    assert shards.shared_like(one.weight, two.weight) is one.weight
