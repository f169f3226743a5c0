"""The target's states, stored once and learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.models.load import load_model
from foretoken.train import processes
from foretoken.train import stored_states as module
from foretoken.train.data import read_conversations
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job
from foretoken.train.recipe import read_recipe
from foretoken.train.records import Records
from foretoken.train.run import make
from train.test_run import HEADS, weights
from trainings import tuned


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKENS", 60)


def train(
    target: Path,
    prompts: Path,
    out: Path,
    states: Path | None,
    method: str = "eagle3",
    source: str = "target",
) -> dict[str, torch.Tensor]:
    changes = {**HEADS, "steps": 5, "evaluate_every": 9, "matrix_lr": 0.0}
    recipe = read_recipe(method, changes)
    given: dict[str, Any] = {"source": source, "show": False, "dtype": "float64", "device": "cpu"}
    make(Job(method, str(target), read_conversations(prompts), recipe, out, states=states, **given))
    return weights(out)


def test_learned_from_as_from_the_target(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights in float64; another training reads them, without a pass over a text that is
    learned from; a file that is missing is written again."""
    states, passes = tmp_path / "states", []
    live = train(checkpoints[0], prompts, tmp_path / "live", None)
    stored = train(checkpoints[0], prompts, tmp_path / "stored", states)
    for name, weight in live.items():
        torch.testing.assert_close(stored[name], weight, rtol=1e-9, atol=1e-12)
    files = sorted(states.iterdir())
    assert len(files) > 3
    read = FrozenTarget._read
    monkeypatch.setattr(FrozenTarget, "_read", lambda *given: passes.append(1) or read(*given))
    again = train(checkpoints[0], prompts, tmp_path / "again", states)
    assert all(torch.equal(stored[name], again[name]) for name in stored)
    held_out = len(passes)
    files[1].unlink()
    train(checkpoints[0], prompts, tmp_path / "third", states)
    assert held_out < len(passes) - held_out <= held_out + 2 and files[1].exists()


def test_states_of_several_files() -> None:
    """Each token's own; 0 where there is padding."""
    nothing: Any = None
    files = [{-1: torch.arange(6.0).view(3, 2)}, {-1: torch.arange(6.0, 14.0).view(4, 2)}]
    states = module.StoredStates(nothing, [0, 3], files)
    found = states._read(torch.tensor([[0, 4, -1], [6, 2, -1]]), -1)
    assert found.tolist() == [[[0, 1], [8, 9], [0, 0]], [[12, 13], [4, 5], [0, 0]]]


def test_states_in_another_precision(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    records = Records.of([([1, 2], [3, 4])], 60, 97)
    one, two = (
        FrozenTarget(load_model(checkpoints[0], dtype=dtype, backend="plain"))
        for dtype in (torch.float32, torch.float64)
    )
    module.stored_states(one, records, (-1,), tmp_path, show=False)
    with pytest.raises(ForetokenError, match="another target or precision"):
        module.stored_states(two, records, (-1,), tmp_path, show=False)


def test_each_process_writes_its_share(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waits for those of the others, which it doesn't compute."""
    frozen = FrozenTarget(load_model(checkpoints[0], backend="plain"))
    records = Records.of([([1, 2], list(range(3, 60)))] * 12, 60, 97)
    waited: list[str] = []

    def wait(path: Path) -> None:
        waited.append(path.name)
        if not path.exists():
            raise KeyboardInterrupt

    def names(*numbers: int) -> list[str]:
        return [f"states-{number:05d}.safetensors" for number in numbers]

    monkeypatch.setattr(processes, "wait_for", wait)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(KeyboardInterrupt):
        module.stored_states(frozen, records, (-1,), tmp_path, show=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == names(1, 3, 5)
    assert waited == names(0)
    monkeypatch.setenv("RANK", "0")
    assert len(module.stored_states(frozen, records, (-1,), tmp_path, show=False).files) == 6
    assert waited[1:] == names(*range(6))


def test_a_target_that_is_shared_out(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is run by each process for every file that the first one misses, whoever writes it, though
    another one sees it already."""
    frozen = FrozenTarget(load_model(checkpoints[0], backend="plain"), together=True)
    records = Records.of([([1, 2], list(range(3, 60)))] * 12, 60, 97)
    alone = FrozenTarget(frozen.model)
    module.stored_states(alone, records, (-1,), tmp_path, show=False)
    passes: list[Any] = []
    states = module._states
    monkeypatch.setattr(module, "_states", lambda *given: passes.append(1) or states(*given))
    monkeypatch.setattr(processes, "as_first", lambda value: [0, 1, 2])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    module.stored_states(frozen, records, (-1,), tmp_path, show=False)
    assert len(passes) == 3
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"states-00001.safetensors"}


def test_states_of_something_else(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Other layers, a damaged file."""
    states = tmp_path / "states"
    train(checkpoints[0], prompts, tmp_path / "one", states)
    with pytest.raises(ForetokenError, match="has states of other texts, another target or"):
        train(checkpoints[0], prompts, tmp_path / "two", states, "medusa")
    next(iter(states.iterdir())).write_bytes(b"damaged")
    with pytest.raises(ForetokenError, match=r"can't be read.*remove it, and it is written again"):
        train(checkpoints[0], prompts, tmp_path / "three", states)


def test_states_of_another_target_of_the_same_shape(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Along the same texts: refused."""
    states, other = tmp_path / "states", tuned(checkpoints[0], tmp_path / "other")
    train(checkpoints[0], prompts, tmp_path / "one", states, source="fixed")
    with pytest.raises(ForetokenError, match="has states of other texts, another target or"):
        train(other, prompts, tmp_path / "two", states, source="fixed")


def test_what_needs_more_than_states(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Drafters that attend to the target's keys, or run it, are refused before any is computed."""
    for method in ("glide", "parallel_prompt"):
        with pytest.raises(ForetokenError, match="learns from more of the target than its states"):
            train(checkpoints[0], prompts, tmp_path / method, tmp_path / "states", method)
        assert not (tmp_path / "states").exists()
        assert not (tmp_path / method / "training.json").exists()  # free for another training
