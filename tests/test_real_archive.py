"""benchmarks/real_table/archive.py: what another machine finds of a benchmark that was begun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.machine import features, processor

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]

from real_table.archive import pack, unpack  # noqa: E402


def cell(work: Path, name: str, *, done: bool, cpu: str | None = None) -> Path:
    """A cell's folder, with answers, an engine's log and what methods remember."""
    folder = work / name
    (folder / "memory-2").mkdir(parents=True)
    (folder / "memory-2" / "suffix").write_text("learned")
    (folder / "samples.jsonl").write_text(f'{{"of": "{name}"}}\n')
    (folder / "stub.log").write_text("noise")
    where = {"cpu": cpu or processor(), "cpu_features": features()}
    (folder / "cell.json").write_text(json.dumps({"environment": where}))
    if done:
        (folder / "done").touch()
    return folder


def working(path: Path) -> Path:
    path.mkdir()
    for name in ("plan.json", "settled.json", "memory.json"):
        (path / name).write_text(json.dumps({"of": name}))
    cell(path, "whole_round1", done=True)
    cell(path, "begun_round1", done=False)
    cell(path, "elsewhere_round1", done=False, cpu="another")
    cell(path, "elsewhere_round2", done=True, cpu="another")
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_another_machine_goes_on_with_what_is_done(tmp_path: Path) -> None:
    """Without logs and memories of no more use; what another processor began begins anew."""
    work, there = working(tmp_path / "work"), tmp_path / "there"
    pack(work, tmp_path / "kept")
    unpack(tmp_path / "kept", there)
    left = files(work) - {f"elsewhere_round1/{name}" for name in ("cell.json", "samples.jsonl")}
    left = {name for name in left if not name.endswith(".log")}
    left -= {name for name in left if "memory-2" in name and not name.startswith("begun")}
    assert files(there) == left
    assert (there / "whole_round1/samples.jsonl").read_text() == '{"of": "whole_round1"}\n'


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    """Its answers are newer than the archive's."""
    pack(working(tmp_path / "work"), tmp_path / "kept")
    (tmp_path / "work" / "begun_round1" / "samples.jsonl").write_text("newer")
    unpack(tmp_path / "kept", tmp_path / "work")
    assert (tmp_path / "work" / "begun_round1" / "samples.jsonl").read_text() == "newer"


def test_a_folder_for_another_plan_is_refused(tmp_path: Path) -> None:
    """Before anything is measured, as its cells would be packed among the archive's."""
    work = working(tmp_path / "work")
    pack(work, tmp_path / "kept")
    (work / "plan.json").write_text('{"of": "something else"}')
    with pytest.raises(ForetokenError, match="something else"):
        unpack(tmp_path / "kept", work)


def test_what_is_done_is_written_once(tmp_path: Path) -> None:
    """And what was not yet is written again."""
    work, kept = working(tmp_path / "work"), tmp_path / "kept"
    pack(work, kept)
    written = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.tar.xz")}
    (work / "begun_round1" / "done").touch()
    pack(work, kept)
    again = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.tar.xz")}
    assert {name for name in written if again[name] != written[name]} == {
        "begun_round1.tar.xz",
        "elsewhere_round1.tar.xz",
    }
