"""`foretoken demo`: from nothing to a report."""

from __future__ import annotations

from pathlib import Path

from command_line import Pair, model, run
from foretoken.bench.record import read_results


def test_demo(checkpoints: Pair, tmp_path: Path) -> None:
    """The whole of it on two prompts a task and tiny models, without the inflated part."""
    found = run(
        "demo",
        *model(checkpoints),
        "--draft-model",
        checkpoints[1],
        "--limit",
        1,
        "--shape",
        "none",
        "--out",
        tmp_path / "demo",
    )
    assert found.exit_code == 0, found.output
    files = {p.name for p in (tmp_path / "demo").iterdir()}
    assert files == {"results.json", "samples.jsonl", "report.md", "report.html"}
    results = read_results(tmp_path / "demo" / "results.json")
    assert len(results["runs"]) == 6 and results["suite"]["prompts"] == 7
    assert "autoregressive" in found.stdout and "same" in found.stdout
