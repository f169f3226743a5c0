"""benchmarks/alignment.py: what is asked of its record."""

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

import alignment  # noqa: E402


def test_a_record_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that is there is as wanted; one in which nothing is gained is told of."""
    monkeypatch.setattr(sys, "argv", ["alignment.py", "--check"])
    assert alignment.main() == 0 and "all as wanted" in capsys.readouterr().out
    record = json.loads((BENCHMARKS / "results" / "alignment.json").read_text())
    worse = copy.deepcopy(record)
    worse["from_nothing"][alignment.DISTILLED]["1.0"]["ratio"] = 1.01
    (tmp_path / "alignment.json").write_text(json.dumps(worse))
    monkeypatch.setattr(sys, "argv", ["alignment.py", "--check", "--out", str(tmp_path)])
    assert alignment.main() == 1
    assert "T = 1.0: distilled is 1.010 times plain text" in capsys.readouterr().out
