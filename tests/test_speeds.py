"""benchmarks/speeds.py: what is measured, and what is made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import speeds  # noqa: E402


def test_which_checkpoints_are_measured(tmp_path: Path) -> None:
    """The bundled ones, or those of a folder by their recipes' names."""
    bundled = speeds.checkpoints(None)
    assert bundled["eagle2"] == {"method": "eagle2", "model": "mini-eagle", "tree": "paper"}
    assert "glide" not in bundled
    (tmp_path / "hydra-plus").mkdir()
    (tmp_path / "hydra-plus" / "config.json").write_text("{}")
    found = {"hydra++": {"method": "hydra", "model": str(tmp_path / "hydra-plus"), "tree": "paper"}}
    assert speeds.checkpoints(tmp_path) == found


def test_speed_over_plain_decoding() -> None:
    """Tokens over seconds, of all prompts together."""
    plain = [[10, 1.0, 10, 0, 0], [30, 3.0, 30, 0, 0], [20, 2.0, 20, 0, 0]]
    own = [[10, 4.0, 5, 0, 0], [30, 4.0, 10, 0, 0], [20, 7.0, 5, 0, 0]]
    found = speeds.compared(plain, own)
    assert found["ratio"] == pytest.approx(0.4) and found["tokens_per_second"] == 4.0
    assert found["mean_acceptance_length"] == 3.0
    low, high = found["interval"]
    assert low < 0.4 < high


def test_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drafters write what plain decoding writes; what isn't there is named."""
    only = {"dflash": ("dflash", "dflash"), "glide": ("glide", "glide")}
    monkeypatch.setattr(speeds, "METHODS", only)
    limits = ["--limit", "1", "--repeats", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["speeds.py", *limits])
    speeds.main()
    record = json.loads((tmp_path / "speeds.json").read_text("utf-8"))
    assert record["left_out"] == ["glide"] and not record["differs"]
    assert record["speeds"]["dflash"]["ratio"] > 0 and record["prompts"] > 1
    assert "left out: glide" in capsys.readouterr().out
