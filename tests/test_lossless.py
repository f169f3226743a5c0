"""The command that compares every method with plain decoding on a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from foretoken.methods import METHODS

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import lossless  # noqa: E402


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*more: str) -> tuple[int, dict[str, Any]]:
        arguments = ["--draft-backend", "auto", "--prompts", "2", "--max-tokens", "6", "--check"]
        places = ["--work", str(tmp_path / "work.jsonl"), "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["lossless.py", *arguments, *places, *more])
        code = lossless.main()
        return code, json.loads((tmp_path / "lossless.json").read_text())

    return run


def test_a_record_that_goes_on_where_it_was(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done isn't done again; other options and another source begin anew."""
    code, record = run("--methods", "pld", "sps")
    assert (code, record["met"]) == (0, True)
    cells = {cell["cell"] for cell in record["cells"]}
    assert cells == {f"{name}, batch {batch}" for name in ("pld", "sps") for batch in (1, 4)}
    written: list[Any] = []
    texts = lossless.Bench.texts
    monkeypatch.setattr(lossless.Bench, "texts", lambda *a: written.append(a) or texts(*a))
    assert run("--methods", "pld", "sps")[1]["cells"] == record["cells"] and not written
    run("--methods", "pld", "--max-tokens", "4", "--batches", "2")
    assert len(written) == 2
    monkeypatch.setattr(lossless, "code", lambda *files: "another")
    run("--methods", "pld", "--max-tokens", "4", "--batches", "2")
    assert len(written) == 4


def test_another_token_is_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = lossless.Bench.texts

    def wrong(bench: Any, config: Any, batch: int) -> Any:
        found, length = texts(bench, config, batch)
        if config is not None and batch == 4:
            found[1][-1] += 1
        return found, length

    monkeypatch.setattr(lossless.Bench, "texts", wrong)
    code, record = run("--methods", "pld")
    assert (code, record["met"]) == (1, False)
    assert [cell["identical"] for cell in record["cells"]] == [2, 1]


def test_the_methods_that_are_compared() -> None:
    """All that are lossless and need at most a draft model; as many as the table has."""
    names = {row.name for row in lossless.rows(lossless.Namespace(methods=[]))}
    assert {"sps", "pld", "substitute", "swift", "specinfer", "tli", "auto"} <= names
    assert all(METHODS[name].lossless and not METHODS[name].trained for name in names)
