"""benchmarks/trained.py: what is asked of its record."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import trained  # noqa: E402


def test_a_bar_that_was_not_measured_is_missed() -> None:
    """As where one of a pair's checkpoints isn't there."""
    record = json.loads((BENCHMARKS / "results" / "trained.json").read_text())
    assert trained.failures(record) == []
    less = copy.deepcopy(record)
    del less["ratios"]["hydra / medusa"], less["lengths"]["medusa"], less["cards"]["medusa"]
    assert trained.failures(less) == ["medusa is not there", "hydra / medusa was not measured"]
