"""Joules from the machine's counters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretoken.bench.measure.energy import Energy


def counters(folder: Path, *values: int) -> None:
    for i, value in enumerate(values):
        package = folder / f"intel-rapl:{i}"
        package.mkdir(exist_ok=True, parents=True)
        (package / "energy_uj").write_text(f"{value}\n")
        (package / "max_energy_range_uj").write_text("1000000\n")
        part = folder / f"intel-rapl:{i}:0"  # already in the package's own count
        part.mkdir(exist_ok=True)
        (part / "energy_uj").write_text("5\n")


def test_energy_adds_packages_and_survives_a_wrap(tmp_path: Path) -> None:
    """Packages add up, their parts are not counted twice, and a counter may start over."""
    counters(tmp_path, 100_000, 900_000)
    energy = Energy(torch.device("cpu"), tmp_path)
    energy.reset()
    counters(tmp_path, 400_000, 100_000)
    assert energy.joules() == pytest.approx(0.3 + 0.2)


def test_no_counter_is_no_energy(tmp_path: Path) -> None:
    """Without one the number is None."""
    assert Energy(torch.device("cpu"), tmp_path).joules() is None


def test_only_what_came_after_the_reset_counts(tmp_path: Path) -> None:
    counters(tmp_path, 100_000)
    energy = Energy(torch.device("cpu"), tmp_path)
    counters(tmp_path, 400_000)
    energy.reset()
    counters(tmp_path, 450_000)
    assert energy.joules() == pytest.approx(0.05)
