"""benchmarks/serving.py and loads.py: loops, their numbers and what is asked of them."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from served import serving, toy

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import loads  # noqa: E402
import serving as benchmark  # noqa: E402
from kept import Kept  # noqa: E402
from loads import Answer, Unserved, Wanted, closed, opened, summary  # noqa: E402

BODY: dict[str, Any] = {
    "max_tokens": 6,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def bodies(count: int) -> list[dict[str, Any]]:
    return [{**BODY, "prompt": [i + 1, 2, 3]} for i in range(count)]


def test_loops_on_a_server() -> None:
    with serving(toy()) as server:
        port = int(server.url.rsplit(":", 1)[1])
        answers, until = asyncio.run(closed(port, bodies(5), 2))
        assert answers[-2].blocks[-1] < until
        assert [a.tokens for a in answers] == [6] * 5
        assert all(a.began < a.blocks[0] <= a.blocks[-1] for a in answers)
        late = asyncio.run(opened(port, bodies(4), 40.0))
        assert [a.tokens for a in late] == [6] * 4
        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(closed(port, [{**BODY, "prompt": [10**6]}], 1))
        assert caught.group_contains(Unserved)


def test_a_closed_loop_has_so_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, order = 0, 0, []

    async def ask(port: int, body: dict[str, Any], began: float) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(body["n"])
        await asyncio.sleep(0.001)
        running -= 1
        return Answer(0.0, [1.0], 1)

    monkeypatch.setattr(loads, "ask", ask)
    asyncio.run(closed(0, [{"n": i} for i in range(7)], 3))
    assert most == 3 and order == list(range(7))
    asyncio.run(closed(0, [{"n": 0}], 3))
    assert order == [*range(7), 0]


def test_rates_end_with_the_first_idle_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second, while the first is busy with a request that ends after all the others."""
    ended, last = dict[int, float](), asyncio.Event()

    async def ask(port: int, body: dict[str, Any], began: float) -> Answer:
        if body["n"] == 0:
            await last.wait()
        elif body["n"] == 2:
            last.set()
        ended[body["n"]] = perf_counter() - began
        return Answer(0.0, [1.0], 1)

    monkeypatch.setattr(loads, "ask", ask)
    _, until = asyncio.run(closed(0, [{"n": n} for n in range(3)], 2))
    assert ended[1] <= ended[2] <= until <= ended[0]


def test_an_open_loop_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of ten requests is answered before the tenth has come."""
    begun, all_begun = [], asyncio.Event()

    async def ask(port: int, body: dict[str, Any], began: float) -> Answer:
        begun.append(body)
        if len(begun) == 10:
            all_begun.set()
        await all_begun.wait()
        return Answer(0.0, [1.0], 1)

    monkeypatch.setattr(loads, "ask", ask)
    answers = asyncio.run(asyncio.wait_for(opened(0, [{}] * 10, 200.0), 60))
    assert len(answers) == 10


def test_numbers() -> None:
    answers = [Answer(0.0, [1.0, 2.0, 3.0], 5), Answer(1.0, [1.5, 5.0], 8)]
    found = summary(answers, Wanted(first=0.6, per_token=0.5))
    assert found["tokens_per_second"] == 13 / 5 and found["requests_per_second"] == 2 / 5
    assert found["ttft_ms"]["p50"] == pytest.approx(750)
    assert found["itl_ms"]["p50"] == pytest.approx(1000 * (2 / 4 + 3.5 / 7) / 2)
    assert found["block_ms"]["p50"] == pytest.approx(1000)
    assert found["goodput"] == 1 / 5  # the other's first token is late
    part = summary(answers, Wanted(first=0.6, per_token=0.5), until=2.0)
    assert part["tokens_per_second"] == pytest.approx((5 * 2 / 3 + 8 / 2) / 2)
    assert part["requests_per_second"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert part["goodput"] == 1 / 4 and part["itl_ms"] == found["itl_ms"]


def results(**speeds: float) -> dict[str, Any]:
    cell = {row: [{"tokens_per_second": speed}] for row, speed in speeds.items()}
    return {"closed": {str(n): cell for n in (1, 8, 16)}, "open": {"1": cell}}


def test_what_is_asked() -> None:
    good = {"plain": 1.0, "auto": 1.01, "llama.cpp": 0.9}
    assert benchmark.missed(results(**good)) == []
    assert len(benchmark.missed(results(**good | {"auto": 0.99}))) == 1  # with one client
    assert len(benchmark.missed(results(**good | {"auto": 0.97}))) == 4
    assert len(benchmark.missed(results(**good | {"llama.cpp": 1.1}))) == 2
    assert len(benchmark.missed(results(plain=1.0, auto=1.1))) == 2  # nothing beside it


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    path, plan = tmp_path / "new" / "work.jsonl", {"model": "mini"}
    first = Kept(path, plan)
    assert first.get("a") is None and first.keep("a", [1]) == [1]
    again = Kept(path, plan)
    assert again.get("a") == [1] and again.get("b") is None
    assert Kept(path, {"model": "other"}).get("a") is None is Kept(path, plan).get("a")


def test_another_source_begins_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the options are the same, and other models of the same name."""
    monkeypatch.setattr(sys, "argv", ["serving.py", "--work", str(tmp_path / "work.jsonl")])
    asked = benchmark.options_of("")
    benchmark.kept(asked).keep("b", 2)
    assert benchmark.kept(asked).get("b") == 2
    monkeypatch.setattr(benchmark, "fingerprint", lambda file: "another")
    assert benchmark.kept(asked).get("b") is None
    benchmark.kept(asked).keep("b", 2)
    monkeypatch.setattr(benchmark, "code", lambda *files: "another")
    assert benchmark.kept(asked).get("b") is None


def test_a_record_of_several_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each says where and when it was measured, and what is written is not kept for the next."""
    work, old = tmp_path / "work.jsonl", {"targets": {"other.gguf": {"settings": {}}}}
    (tmp_path / "serving.json").write_text(json.dumps(old))

    def measured(given: Namespace, done: Kept) -> dict[str, Any]:
        assert done.get("a") is None
        done.keep("a", 1)
        rows = {
            row: [{"tokens_per_second": 1.0, "requests_per_second": 1.0, "goodput": 1.0}]
            for row in ("plain", "auto")
        }
        for [run] in rows.values():
            run |= {name: {"p50": 1.0, "p99": 1.0} for name in ("ttft_ms", "itl_ms")}
        return {"prompts": 1, "closed": {"1": rows}, "open": {}}

    monkeypatch.setattr(benchmark, "measured", measured)
    arguments = ["--quick", "--work", str(work), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["serving.py", *arguments])
    for _ in range(2):
        assert benchmark.main() == 0 and not work.exists()
    targets = json.loads((tmp_path / "serving.json").read_text())["targets"]
    assert targets["other.gguf"] == {"settings": {}}
    assert {"cpu", "git_commit", "date"} <= {*targets["mini"]["environment"]}


def test_what_a_kill_left_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    Kept(path, {}).keep("a", [1])
    for torn in (b'["b", [2', b'["b", [2]]'):
        with path.open("ab") as file:
            file.write(torn)
        again = Kept(path, {})
        assert again.get("a") == [1] and again.get("b") is None
    again.keep("c", 3)
    assert Kept(path, {}).get("c") == 3
    path.write_bytes(path.read_bytes()[:5])
    assert Kept(path, {}).get("a") is None


def test_answers_have_lengths_of_their_own() -> None:
    """The same ones for every row, about as long as is asked for."""
    given = Namespace(max_tokens=64)
    drawn = [
        [body["max_tokens"] for body in benchmark.requests(given, row, [[1]] * 200, 3)]
        for row in ("plain", "llama.cpp")
    ]
    assert drawn[0] == drawn[1] and {min(drawn[0]), max(drawn[0])} <= {32, 33, 34, 94, 95, 96}
    assert 60 < sum(drawn[0]) / 200 < 68


def test_no_prompt_goes_on_from_another() -> None:
    """Neither at our servers nor at llama.cpp's."""
    given = Namespace(max_tokens=64)
    ours, theirs = (
        benchmark.requests(given, row, [[1, 2]] * 3, 0) for row in ("auto", "llama.cpp")
    )
    assert len({body["cache_salt"] for body in ours}) == 3
    assert all(body["cache_prompt"] is False and "cache_salt" not in body for body in theirs)


def test_no_server_sees_a_prompt_twice() -> None:
    given = Namespace(requests=8, each=2, rounds=5, suite="own", longest=512)
    few = benchmark.rounds(given, 102, 1)
    assert few == [{turn: range(8 * turn, 8 * turn + 8) for turn in range(5)}]
    many = benchmark.rounds(given, 102, 20)
    assert many == [
        {0: range(40), 1: range(40, 80)},
        {2: range(40), 3: range(40, 80)},
        {4: range(40)},
    ]
    with pytest.raises(Unserved, match="takes 102 prompts, and 2 come before it; own has 103"):
        benchmark.rounds(given, 103, 51)


def test_commands() -> None:
    given = Namespace(
        slots=4, longest=100, max_tokens=18, threads=2, model="mini", draft_model="mini-draft"
    )
    plain = benchmark.command(given, "plain", 1)
    assert "--method" not in plain and plain[plain.index("--max-model-len") + 1] == "128"
    assert "--draft-model" in benchmark.command(given, "sps", 1)
    assert "--draft-model" not in benchmark.command(given, "suffix", 1)
    theirs = benchmark.command(given, "llama.cpp", 1)
    assert theirs[theirs.index("--ctx-size") + 1] == "512"
