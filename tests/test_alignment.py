"""benchmarks/alignment.py: what is asked of its record."""

from __future__ import annotations

import copy
import json
import sys
from argparse import Namespace
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


def test_a_folder_is_gone_on_with_by_the_same_settings(tmp_path: Path) -> None:
    """With further arms, and files that have moved; not with others, nor where nothing is noted."""
    (data := tmp_path / "prompts.jsonl").write_text('{"prompt": "the sea"}\n')
    (moved := tmp_path / "moved.jsonl").write_text(data.read_text())
    (other := tmp_path / "other.jsonl").write_text('{"prompt": "a house"}\n')
    work = tmp_path / "work"
    given = {"model": "mini", "draft_model": "mini-draft", "data": [str(data)], "work": work}
    given |= {"lr": 2e-3, "prompts": None, "objectives": ("nll",), "sources": ("fixed",)}
    alignment.begin(Namespace(**given))
    further = {"objectives": ("nll", "tv"), "sources": (), "data": [str(moved)]}
    alignment.begin(Namespace(**given | further))
    for change, said in (
        ({"lr": 1e-3}, "another --lr: 0.002, now 0.001"),
        ({"data": [str(other)]}, "another --data"),
        ({"draft_model": "mini"}, "another --draft-model"),
    ):
        with pytest.raises(SystemExit, match=said):
            alignment.begin(Namespace(**given | change))
    (work / "settings.json").rename(work / "nll-fixed.json")
    with pytest.raises(SystemExit, match=r"no settings\.json that says how they were made"):
        alignment.begin(Namespace(**given))
