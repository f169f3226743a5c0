"""benchmarks/collect_drafters.py: runs of the benchmark become the record of a page's table."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from foretoken import METHODS, zoo
from foretoken.errors import ForetokenError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import collect_drafters  # noqa: E402
import page_tables  # noqa: E402


def a_run(folder: Path, name: str) -> Path:
    """A folder as `foretoken bench` leaves it, of a target with this name."""
    results = json.loads((BENCHMARKS / "results" / "spec-bench.json").read_text("utf-8"))
    results["target"]["name"] = name
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return folder


def test_a_record_is_what_the_table_is_made_of(tmp_path: Path) -> None:
    """A column a target, a row a method; batch size 1 alone; plain decoding is the measure."""
    folders = [a_run(tmp_path / name, name) for name in ("small", "large")]
    record = collect_drafters.record(folders)
    assert all(len(part["runs"]) < 26 for part in record["parts"])
    assert {(run["repeats"], run["prompts"]) for run in record["parts"][0]["runs"]} == {(3, 10)}
    lines = page_tables.drafters(lambda name: record).splitlines()
    assert lines[0].endswith("| small | large |")
    assert sorted(line.split(" | ")[0] for line in lines[2:]) == ["| `pld`", "| `sps`"]
    assert "0.52 (0.48–0.59) | 0.52 (0.48–0.59) |" in "\n".join(lines)


def test_what_is_no_part_is_refused(tmp_path: Path) -> None:
    """No results, two runs of one target, none at batch size 1, or another suite."""
    one = a_run(tmp_path / "one", "mini")
    with pytest.raises(ForetokenError, match=r"has no results\.json; run foretoken bench"):
        collect_drafters.record([tmp_path])
    with pytest.raises(ForetokenError, match="targets are mini, mini; give one run a target"):
        collect_drafters.record([one, Path(shutil.copytree(one, tmp_path / "two"))])
    results = json.loads((one / "results.json").read_text("utf-8"))
    longer = a_run(tmp_path / "longer", "large")
    suite = results["suite"] | {"max_tokens": 64}
    (longer / "results.json").write_text(
        json.dumps(results | {"suite": suite, "target": {"name": "large"}}), encoding="utf-8"
    )
    with pytest.raises(
        ForetokenError, match="suite of large has max_tokens 64, and that of mini 128"
    ):
        collect_drafters.record([one, longer])
    results["runs"] = [run for run in results["runs"] if run["batch_size"] > 1]
    (one / "results.json").write_text(json.dumps(results), encoding="utf-8")
    with pytest.raises(ForetokenError, match="one has no run at batch size 1"):
        collect_drafters.record([one])


def test_the_trained_drafters_are_there() -> None:
    """The page's command names each drafter bundled for its target, by methods that exist."""
    rows = yaml.safe_load((BENCHMARKS / "drafters.yaml").read_text("utf-8"))
    there = {name for name in zoo.names() if name.startswith("mini-")}
    assert {row["model"] for row in rows.values()} == there
    names = [name for row in rows.values() for name in row["method"].replace("|", "+").split("+")]
    assert set(names) <= set(METHODS)
