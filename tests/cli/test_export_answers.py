"""`foretoken export-answers`: files for the scripts of another benchmark."""

from __future__ import annotations

from pathlib import Path

from command_line import one_sentence, run
from measured_answers import answer, plain


def test_files_are_named(tmp_path: Path) -> None:
    """A line on each file that was written, into the run's folder or another."""
    answers = [answer(), answer(id="b", error="NaN"), plain()]
    (tmp_path / "samples.jsonl").write_text("".join(a.line() + "\n" for a in answers))
    found = run("export-answers", tmp_path, "--to", "spec-bench")
    assert found.exit_code == 0, found.output
    first, second = found.stdout.splitlines()
    pld = tmp_path / "spec-bench" / "t-pld-float32-temp-0.0.jsonl"
    assert first == f"{pld}: 1 question, 1 failed" and pld.is_file()
    assert second.endswith("t-vanilla-float32-temp-0.0.jsonl: 1 question")
    assert run("export-answers", tmp_path, "--to", "spec-bench", "--out", tmp_path / "o").stdout
    assert len([*(tmp_path / "o").iterdir()]) == 2


def test_what_is_refused(tmp_path: Path) -> None:
    """Another benchmark, a folder without a run."""
    one_sentence(run("export-answers", tmp_path, "--to", "mlperf"))
    one_sentence(run("export-answers", tmp_path / "nowhere", "--to", "spec-bench"))
