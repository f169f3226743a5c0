"""benchmarks/mixed.py: a crowd of clients, its judge, and what is asked of a run."""

from __future__ import annotations

import asyncio
import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from foretoken.serve.server import Server
from served import serving, toy

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import mixed  # noqa: E402

COUNT = 80


def test_a_crowd_and_its_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 every answer is plain decoding's, and no task of the server's loop is left."""
    tasks: list[int] = []

    async def counted(_: Server) -> None:
        tasks.append(len(asyncio.all_tasks()))

    monkeypatch.setattr(Server, "check_health", counted)
    asks = [replace(ask, text=ask.text[:90]) for ask in mixed.made(5, COUNT)]
    with serving(toy(speculative_config={"method": "pld"})) as served:
        httpx.get(f"{served.url}/health")
        heard = asyncio.run(mixed.crowd(served.url, asks, 32))
        while httpx.get(f"{served.url}/load").json()["server_load"]:
            pass
        httpx.get(f"{served.url}/health")
        free, slots = served.llm.worker.call(lambda engine: engine.target.free), 4
    assert tasks[0] == tasks[1] and free == slots
    with toy(speculative_config=None) as plain:
        found = mixed.judged(plain, asks, heard)
        assert set(found) == {"identical", "left", "bad"} and found.total() == COUNT
        assert min(found.values()) >= 5
        for kind, outcome in (("whole", "different"), ("left", "different"), ("bad", "wrong")):
            spoilt = copy.deepcopy(heard)
            place = next(i for i, ask in enumerate(asks) if ask.kind == kind)
            if kind == "bad":
                spoilt[place].wrong = "it was served"
            else:
                spoilt[place].texts[0] = "\x01" + spoilt[place].texts.get(0, "")
                spoilt[place].ids[0] = [1, *spoilt[place].ids.get(0, [])]
            assert mixed.judged(plain, [asks[place]], [spoilt[place]]) == {outcome: 1}, kind
        for kind in ("whole", "streamed"):  # the right ids excuse no other text
            spoilt = copy.deepcopy(heard)
            place = next(i for i, ask in enumerate(asks) if ask.kind == kind)
            spoilt[place].texts[0] += "\x01"
            assert mixed.judged(plain, [asks[place]], [spoilt[place]]) == {"different": 1}, kind


def test_what_is_asked() -> None:
    look = {"resident": 100.0, "threads": 5, "files": 7}
    good: dict[str, Any] = {
        "dtype": "float32",
        "answers": {"identical": 90, "near_tie": 1},
        "after_kill": {"identical": 3},
        "memory": {"first half": look, "second half": look},
        "slots_taken": 8,
        "drained": 8,
    }
    assert mixed.missed(good, 8) == []
    for spoilt in (
        {"dtype": "float64"},
        {"answers": {"different": 1}},
        {"after_kill": {"wrong": 1}},
        {"slots_taken": 7},
        {"drained": 7},
        {"memory": {"first half": look, "second half": look | {"resident": 106.0}}},
        {"memory": {"first half": look, "second half": look | {"threads": 6 + mixed.POOL}}},
        {"memory": {"first half": look, "second half": look | {"files": 8}}},
    ):
        assert len(mixed.missed(good | spoilt, 8)) == 1, spoilt
