"""Fixtures that several tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarked import Pair, plan
from foretoken.bench.measure import costs
from foretoken.bench.run.runner import Runner
from whole_run import run


@pytest.fixture(autouse=True)
def quick_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of passes have tests of their own."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)
    monkeypatch.setattr(costs, "WIDTHS", (1, 2))


@pytest.fixture(scope="module")
def runner(checkpoints: Pair) -> Runner:
    return Runner(plan(checkpoints, batch_sizes=(1, 2), repeats=3))


@pytest.fixture(scope="session")
def whole(checkpoints: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run(str(checkpoints[0]), str(checkpoints[1]), folder)
    return folder
