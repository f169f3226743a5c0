"""benchmarks/online.py: which requests are measured, and what is told of them."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import online  # noqa: E402
import page_tables  # noqa: E402


def test_requests_for_the_settings_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before the ones that are measured: of the task, short enough, up to the last turn of a
    user."""
    rows = [
        {"task": task, "messages": [{"role": "user", "content": "x" * size}, {"role": "assistant"}]}
        for size in range(1, 9)
        for task in ("math", "chat")
    ]
    monkeypatch.setattr(online, "corpus", lambda file: rows if "held" in file else [])
    llm: Any = SimpleNamespace(chat_prompt=lambda turns: [0] * len(turns[-1]["content"]))
    given = Namespace(task="math", suite=None, longest=7, requests=3, skip=0)
    assert [len(ids) for ids in online.prompts(given, llm)] == [1, 2, 3]
    given.skip = 5
    assert [len(ids) for ids in online.prompts(given, llm)] == [6, 7]
    given.skip = 7
    with pytest.raises(SystemExit, match="--skip 7 leaves none of 7 requests"):
        online.prompts(given, llm)


def test_requests_of_a_suite(tmp_path: Path) -> None:
    """Its first turns take the place of a task's."""
    lines = [{"turns": ["x" * size, "more"]} for size in (3, 9, 5)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    llm: Any = SimpleNamespace(chat_prompt=lambda turns: list(turns[-1]["content"]))
    given = Namespace(suite=str(tmp_path / "own.jsonl"), longest=7, requests=9, skip=0)
    assert ["".join(text) for text in online.prompts(given, llm)] == ["xxx", "xxxxx"]


def test_plain_decoding_stands_beside(capsys: pytest.CaptureFixture[str]) -> None:
    """The learner's speed is told as a share of it, over all blocks."""

    def block(seconds: float) -> online.Block:
        return online.Block(seconds, 40, 20, 10, 30, 7, [[1]])

    blocks = [
        {"plain": block(1.0), "frozen": block(4.0), "learning": block(2.0)},
        {"plain": block(3.0), "frozen": block(4.0), "learning": block(3.0)},
    ]
    results = online.summary(blocks)
    online.show(blocks, results)
    said = capsys.readouterr().out
    assert "plain/s" in said and "40" in said and "0.80 of plain decoding" in said


def test_a_last_block_may_be_a_part_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its table counts requests that there were."""

    def block(requests: int) -> dict[str, online.Block]:
        texts = [[1]] * requests
        return {arm: online.Block(1.0, 40, 20, 10, 30, 7, texts) for arm in online.ARMS}

    monkeypatch.setattr(online, "measured", lambda given: iter([block(4), block(4), block(2)]))
    arguments = ["--out", str(tmp_path), "--requests", "50", "--block", "4"]
    monkeypatch.setattr(sys, "argv", ["online.py", *arguments, "--suite", "bundled"])
    assert online.main() == 0
    record = json.loads((tmp_path / "online.json").read_text())
    assert record["settings"]["requests"] == 10 and record["settings"]["task"] == "bundled"
    rows = page_tables.online(lambda name: record).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 4", "| 8", "| 10", "| all"]
