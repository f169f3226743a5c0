"""What a run of the tests left out, at its end; and the record of a run of all of them."""

from __future__ import annotations

import json
import platform
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from foretoken.machine import cores, processor

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
FEATURES = (
    "asimd",
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "f16c",
)
"""Of a CPU, those that decide which kernels are built and tested."""

_deselected = pytest.StashKey[int]()
_began = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-run", type=Path, help="write the run's result to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_deselected], config.stash[_began] = 0, perf_counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        items[0].config.stash[_deselected] += len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several tells the first one what it left out."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["deselected"] = session.config.stash[_deselected]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process collects all tests, so that each has left out the same."""
    stash = node.config.stash
    stash[_deselected] = max(stash[_deselected], node.workeroutput.get("deselected", 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    stats, deselected = terminalreporter.stats, config.stash[_deselected]
    skipped = reasons(stats.get("skipped", ()))
    if skipped or deselected:
        terminalreporter.section("not run")
        for line in lines(skipped, deselected, config.option.markexpr):
            terminalreporter.line(line)
    if config.option.record_run is not None:
        counts = {name: len(stats.get(name, ())) for name in OUTCOMES}
        counts["deselected"] = deselected
        seconds = perf_counter() - config.stash[_began]
        write(config.option.record_run, counts, skipped, seconds)


def reasons(reports: Any) -> Counter[str]:
    """Why tests were skipped -> how many."""
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)


def lines(skipped: Counter[str], deselected: int, expression: str) -> list[str]:
    """A line for each reason, the most frequent first."""
    found = [f"{count:5}  {reason}" for reason, count in skipped.most_common()]
    if deselected:
        why = f"-m {expression!r}; make test-all runs them" if expression else "not asked for"
        found.append(f"{deselected:5}  {why}")
    return found


def write(path: Path, counts: dict[str, int], skipped: Counter[str], seconds: float) -> None:
    """Record a run: when, of what, on which machine, with what result."""
    import torch  # each process of a run loads this file

    changed = _git("status", "--porcelain", "--", ".", f":!{path}")
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD").strip(),
        "clean": not changed.strip(),
        "seconds": round(seconds),
        "counts": counts,
        "skipped": dict(sorted(skipped.items())),
        "processor": processor(),
        "cores": cores(),
        "features": [name for name in FEATURES if name in _flags()],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _git(*arguments: str) -> str:
    """What git says here; "" where there is none."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout
    except OSError:
        return ""


def _flags() -> set[str]:
    """The processor's features, as Linux names them."""
    try:
        found = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    named = [line for line in found.splitlines() if line.lower().startswith(("flags", "features"))]
    return set(named[0].partition(":")[2].split()) if named else set()
