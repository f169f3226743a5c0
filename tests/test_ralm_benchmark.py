"""benchmarks/ralm.py: no way of writing lends another its prompts, and no gain is unexplained."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import kept  # noqa: E402
import ralm  # noqa: E402

WAYS = ["plain", "synchronous", "asynchronous"]


def taken(seconds: float, search: float = 0.0) -> dict[str, Any]:
    counts = {"searches": 12, "matched": 10, "wrong": 1}
    return {"seconds": seconds, "search_seconds": search, **counts}


def cell(plain: float, guessed: float, search: float) -> dict[str, Any]:
    return {
        "plain": taken(plain, search),
        "synchronous": taken(guessed),
        "asynchronous": taken(plain),
        "same": True,
    }


def test_of_a_prompt_the_median_round_counts() -> None:
    slow = cell(90.0, 1.0, 1.0)
    found = ralm.compared(WAYS, [[cell(2.0, 1.0, 1.0), slow, cell(2.0, 1.0, 1.0)]] * 2)
    assert found["plain"]["seconds_of_prompts"] == [2.0, 2.0] and found["plain"]["searches"] == 24
    assert found["synchronous"]["times_plain"] == found["most"] == 2.0
    assert found["synchronous"]["times_plain_ci95"] == [2.0, 2.0]
    slow["same"] = False
    assert ralm.compared(WAYS, [[slow]])["different"] == 1


def test_what_is_wanted() -> None:
    """Guessing can't save more than the retrievals took."""
    good = ralm.compared(WAYS, [[cell(1.0, 0.5, 0.6)]] * 3)
    even = ralm.compared(WAYS, [[cell(1.0, 0.99, 0.03)]] * 3)
    assert ralm.missed({"bm25": 0}, {"expensive": good, "cheap": even}) == []
    [told] = ralm.missed({"bm25": 0}, {"expensive": even, "cheap": even})
    assert told == "expensive retriever: 1.01 times, 1.5 asked for"
    unlike = ralm.compared(WAYS, [[cell(0.910, 0.695, 0.027)]] * 3)
    [told] = ralm.missed({"bm25": 0}, {"expensive": good, "cheap": unlike})
    assert told == (
        "cheap retriever, synchronous: at least 1.31 times, of which retrievals explain 1.03"
    )
    different = {"expensive": good, "cheap": even | {"different": 2}}
    assert ralm.missed({"bm25": 1}, different) == ["bm25: 1 texts", "cheap: 2 texts"]


def test_all_begin_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The caches are emptied before each way of each round, and every round is written down."""
    resets: list[LLM] = []
    reset = LLM.reset_prefix_cache
    monkeypatch.setattr(LLM, "reset_prefix_cache", lambda llm: (resets.append(llm), reset(llm)))
    given = Namespace(model="mini", corpus=[], inflate=0, max_document_tokens=16)
    given.max_tokens, given.rounds = 8, 3
    work = kept.Kept(tmp_path / "work.jsonl", {})
    found = ralm.speed(given, work, ["Who lives here?", "Where is it?"])
    assert len(resets) == 2 * 2 * 3 * len(WAYS)
    assert work.get("cheap, prompt 1, round 2")["same"]
    for own in found.values():
        assert own["different"] == 0 and own["plain"]["searches"] == 4
        assert own["plain"]["times_plain"] == 1.0 < own["most"]


def test_a_record_says_how_large_the_corpus_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = ralm.compared(WAYS, [[cell(1.0, 0.5, 0.6)]] * 3)
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(ralm, "identity", lambda *_: {})
    monkeypatch.setattr(ralm, "speed", lambda *_: {"expensive": found, "cheap": found})
    arguments = ["--out", str(tmp_path), "--inflate", "500", "--limit", "3", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["ralm.py", *arguments])
    assert ralm.main() == 0
    record = json.loads((tmp_path / "ralm.json").read_text())
    numbers = {"rounds": 1, "limit": 3, "max_tokens": 48, "inflate": 500, "prompts": 3}
    assert {name: record[name] for name in numbers} == numbers
    assert record["corpus"] == ["bundled prompts"] and record["max_document_tokens"] == 64
    assert record["passages"] == len(ralm.passages(Namespace(corpus=[]))) > 100
