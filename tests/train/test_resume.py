"""What a training resumes from."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from foretoken import ForetokenError
from foretoken.train.job import Progress
from foretoken.train.resume import Resumable
from train.test_loop import train_heads


def state_of(folder: Path, step: int) -> Resumable:
    torch.manual_seed(step)
    module = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1 * step)
    optimizer.param_groups[0]["peak"] = 7.0 * step
    for _ in range(step):
        module(torch.ones(1, 300)).sum().backward()
        optimizer.step()
    return Resumable(folder, module, [optimizer], Progress(step=step, best=0.5, loss=0.25))


def test_all_of_it_is_found_again(tmp_path: Path) -> None:
    """Weights, the optimiser's numbers and settings, and the progress; only the last is kept."""
    for step in (1, 2):
        state_of(tmp_path, step).save()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002.pt"]
    old, new = state_of(tmp_path, 2), state_of(tmp_path, 5)
    new.resume()
    assert new.progress == old.progress
    assert torch.equal(new.module.weight, old.module.weight)
    one, two = (state.optimizers[0].state_dict() for state in (old, new))
    [wanted], [found] = one["param_groups"], two["param_groups"]
    assert found["peak"] == 14.0 and {**found, "betas": wanted["betas"]} == wanted
    for number, kept in one["state"].items():
        assert all(torch.equal(kept[name], two["state"][number][name]) for name in kept)


def test_of_two_states_the_newer_one_is_resumed(tmp_path: Path) -> None:
    """A process may be killed before it has removed the other."""
    for step in (1, 2):
        state_of(tmp_path / str(step), step).save()
    older = tmp_path / "1" / "step-00000001.pt"
    older.rename(tmp_path / "2" / older.name)
    state = state_of(tmp_path / "2", 5)
    state.resume()
    assert state.progress.step == 2


def test_a_state_is_on_the_disk_before_it_takes_anothers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may follow at any moment."""
    seen: list[tuple[int, list[str]]] = []

    def sync(number: int) -> None:
        names = sorted(path.name for path in tmp_path.iterdir())
        seen.append((os.fstat(number).st_size, names))

    state_of(tmp_path, 1).save()
    monkeypatch.setattr(os, "fsync", sync)
    state_of(tmp_path, 2).save()
    [(size, names)] = seen
    assert names == ["step-00000001.pt", "unfinished"]
    [after] = tmp_path.iterdir()
    assert after.name == "step-00000002.pt" and after.stat().st_size == size


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    """A disk that takes no more (here: no larger file) is one sentence; the state before stays."""
    state = state_of(tmp_path, 1)
    state.save()
    state.progress.step = 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ForetokenError, match=f"in {tmp_path} can't be written"):
            state.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "step-00000001.pt" in {path.name for path in tmp_path.iterdir()}
    assert state._files()[-1].name == "step-00000001.pt"


def test_a_damaged_state_is_not_resumed(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The message names the folder and what to do."""
    assert train_heads(checkpoints[0], tmp_path).step == 1
    [state] = (tmp_path / "resume").iterdir()
    state.write_bytes(b"damaged")
    with pytest.raises(ForetokenError, match=r"step-00000001\.pt can't be resumed from"):
        train_heads(checkpoints[0], tmp_path)
