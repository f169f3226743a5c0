"""The list of what wasn't run, and the record of the last full run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from run_report import FEATURES, OUTCOMES

RECORD = Path(__file__).with_name("last-full-run.json")
SUITE = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_of_gold(case):
    pytest.skip("there is no gold")

@pytest.mark.skip(reason="it is raining")
def test_outside(): ...

@pytest.mark.slow
def test_slowly(): ...

def test_now(): ...
"""


def well_formed(record: dict[str, Any]) -> None:
    """Every field is there, of its kind."""
    assert datetime.fromisoformat(record["date"]).tzinfo is not None
    assert re.fullmatch(r"[0-9a-f]{40}|", record["commit"]) and record["clean"] in (True, False)
    assert set(record["counts"]) == {*OUTCOMES, "deselected"}
    assert all(isinstance(count, int) and count >= 0 for count in record["counts"].values())
    assert sum(record["skipped"].values()) == record["counts"]["skipped"]
    assert set(record["features"]) <= set(FEATURES)
    assert record["processor"] and record["cores"] >= 1 and record["seconds"] >= 0
    assert {"gpu", "python", "torch"} <= set(record)


def listed(folder: Path, *options: str) -> list[str]:
    """What such a suite's run lists as not run."""
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "run_report", "-m", "not slow"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.strip() for line in done.stdout.split("not run")[1].splitlines()[1:4]]


LISTED = ["3  there is no gold", "1  it is raining", "1  -m 'not slow'; make test-all runs them"]


def test_what_was_not_run_is_listed_and_recorded(tmp_path: Path) -> None:
    """With its reason and how often."""
    assert listed(tmp_path, "--record-run", "record.json") == LISTED
    record = json.loads((tmp_path / "record.json").read_text())
    well_formed(record)
    counts = {name: count for name, count in record["counts"].items() if count}
    assert counts == {"passed": 1, "skipped": 4, "deselected": 1}
    assert record["skipped"] == {"it is raining": 1, "there is no gold": 3}


def test_what_several_processes_did_not_run(tmp_path: Path) -> None:
    """The same list: each of them leaves out the same."""
    assert listed(tmp_path, "-n", "2") == LISTED


def test_the_last_full_run() -> None:
    """It left nothing out that could run."""
    if not RECORD.exists():
        pytest.skip("no full run has been recorded yet: make test-all writes one")
    record = json.loads(RECORD.read_text("utf-8"))
    well_formed(record)
    assert record["counts"]["deselected"] == 0 and record["counts"]["passed"] > 3000
