"""benchmarks/real_table: a cell's numbers, of answers whose seconds are known."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.record import Answer
from measured_answers import answer, plain

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]

from real_table import figures  # noqa: E402
from real_table.cells import Cell  # noqa: E402
from real_table.folder import Round  # noqa: E402
from real_table.stalls import Taken, of_answers, of_peers, stalled  # noqa: E402

PLACES = [f"p{i}" for i in range(5)]


def seconds(decoding: float, total: float = 0.0) -> dict[str, float]:
    """Of which the pass takes all; a tenth of a second is read before it."""
    parts = {"prefill": 0.1, "draft": 0.0, "verify": decoding, "other": 0.0, "ttft": 0.1}
    return {**parts, "total": total or 0.1 + decoding}


def both(id: str, plainly: float = 4.0, drafting: float = 2.0, **given: Any) -> list[Answer]:
    """Four tokens of each row, plain decoding's in four passes of a second, the other's in two."""
    base = plain(id=id, seconds=seconds(plainly), engine_steps=4.0, **given)
    return [base, answer(id=id, seconds=seconds(drafting), **given)]


def one_round(number: int, answers: Sequence[Answer], **about: Any) -> Round:
    cell = Cell("grid", "t", ("autoregressive", "pld"), round=number)
    where = {"date": f"2026-01-0{9 - number}", "git_commit": "a", "cpu": "b"}
    given = {
        "cell": {**cell.to_json(), **about.pop("cell", {})},
        "environment": {**where, "cpu_features": [], "cores": 2},
        "units": len({a.group for a in answers}),
        **{"backend": "auto", "parameters": 1, "skipped": [], "not_run": {}, "versions": {}},
        **{"configs": {}, "peer_rows": []},
    }
    peers, costs = about.pop("peers", []), about.pop("costs", [])
    return Round(number, list(answers), peers, costs, {**given, **about})


def rows(rounds: Sequence[Round]) -> dict[str, Any]:
    return {row["method"]: row for row in figures.cell(rounds)["rows"]}


def taken(row: str, *paces: float, passes: float = 1000) -> list[Taken]:
    """A turn of so many passes at each of these milliseconds."""
    return [Taken(row, (f"p{i}", 0), ms * passes / 1000, passes) for i, ms in enumerate(paces)]


def test_what_is_stalled() -> None:
    """More than three times as long a pass as in the row's median, and a second longer in all."""
    found = stalled([*taken("slow", 30, 30, 30, 90, 89), *taken("fast", 1, 1, 1, 2.9, 3.1)])
    assert found == {("p4", 0): {"fast": pytest.approx(2.1)}}
    assert stalled(taken("fast", 1, 1, 1, 9, passes=100)) == {}
    assert stalled(taken("one", 9000)) == {} == stalled([])


def test_a_batch_is_taken_as_one() -> None:
    """Its members' shares of seconds and passes added up, turn by turn; failed ones have none."""
    shares = [answer(id=i, group="a+b", engine_steps=3.0, seconds=seconds(0.5)) for i in "ab"]
    failed = replace(shares[0], id="c", error="no", passes=0, engine_steps=0.0, seconds=seconds(0))
    again = [replace(a, turn=1) for a in shares]
    assert list(of_answers([*shares, failed, *again])) == [
        Taken("pld", ("a+b", turn), 1.0, 6.0) for turn in (0, 1)
    ]


def asked(id: str, method: str, whole: float, first: float | None = None) -> dict[str, Any]:
    place = {"group": id, "id": id, "turn": 0, "task": "a", "engine": "stub", "method": method}
    return {**place, "first": first, "whole": whole, "token_ids": [1] * 11, "error": None}


def test_other_engines_answers_stall_too() -> None:
    """Per token after the first; a draft model may read for as long as the target."""
    lines = [asked(i, "plain", 4.0, first=2.0) for i in PLACES]
    lines += [asked(i, "draft model", 3.0) for i in PLACES[2:]]
    lines += [asked("p0", "draft model", 5.9), asked("p1", "draft model", 6.1)]
    assert stalled(of_peers(lines)) == {("p1", 0): {"stub: draft model": pytest.approx(3.1)}}


def test_a_stalled_turn_counts_for_no_row() -> None:
    """In its round, in decoding, whole calls and from outside; lengths and tokens count it."""
    calm = [a for i in PLACES for a in both(i)]
    rough = [a for i in PLACES for a in both(i, **{"plainly": 64.0} if i == "p3" else {})]
    stub = [asked(i, "plain", 4.0, first=2.0) for i in PLACES]
    stub[1] = asked("p1", "plain", 40.0, first=2.0)
    about = {"cell": {"peers": ["stub"]}, "peer_rows": [["stub", "plain", "", {}]], "peers": stub}
    made = figures.cell([one_round(1, calm, **about), one_round(2, rough, **about)])
    drafting = made["rows"][1]
    assert drafting["over_plain"] == {"ratio": 2.0, "ci95": [2.0, 2.0]}
    assert drafting["tokens_per_second"] == pytest.approx(2.0)
    assert drafting["whole"]["over_plain"]["ratio"] == pytest.approx(4.1 / 2.1)
    assert drafting["by_task"]["a"]["over_plain"]["ratio"] == pytest.approx(2.0)
    assert (drafting["tokens"], drafting["target_passes"], drafting["prompts"]) == (40, 20, 5)
    assert drafting["identity"]["prompts"] == 5
    ours, theirs = made["peers"][1:]
    assert ours["decoding"]["over_own_plain"]["ratio"] == pytest.approx(2.0)
    assert theirs["decoding"]["tokens_per_second"] == pytest.approx(10 / 2.0)
    assert theirs["tokens"] == 110
    assert made["stalled"] == [
        {"round": 1, "group": "p1", "turn": 0, "rows": {"stub: plain": pytest.approx(36.0)}},
        {"round": 2, "group": "p3", "turn": 0, "rows": {"autoregressive": pytest.approx(60.0)}},
        {"round": 2, "group": "p1", "turn": 0, "rows": {"stub: plain": pytest.approx(36.0)}},
    ]
    assert made["timed"] == 30


def test_a_batch_calls_once() -> None:
    """Each turn of a group until its last request is answered, and not the requests' sum."""
    members = [
        replace(a, group="x+y", seconds=seconds(1.0, total=total))
        for id, total in (("x", 2.0), ("y", 5.0))
        for a in both(id, batch_size=2)
    ]
    found = rows([one_round(1, members, cell={"batch_size": 2})])["pld"]
    assert found["whole"]["tokens_per_second"] == pytest.approx(8 / 5.0)
    turns = [*members, *(replace(a, turn=1) for a in members)]
    found = rows([one_round(1, turns, cell={"batch_size": 2})])["pld"]
    assert found["whole"]["tokens_per_second"] == pytest.approx(16 / 10.0)


def test_groups_are_compared_where_both_answered_the_same_prompts() -> None:
    """A batch that lost a member is faster than plain decoding's whole one."""
    answers = [
        replace(a, group=f"{first}+{second}")
        for first, second in ("ab", "cd", "ef")
        for id in (first, second)
        for a in both(id, batch_size=2)
    ]
    whole = rows([one_round(1, answers, cell={"batch_size": 2})])["pld"]
    broken = [
        replace(a, error="no", token_ids=[], passes=0, engine_steps=0.0, seconds=seconds(0))
        if (a.method, a.id) == ("pld", "b")
        else replace(a, seconds=seconds(0.2))
        if (a.method, a.id) == ("pld", "a")
        else a
        for a in answers
    ]
    found = rows([one_round(1, broken, cell={"batch_size": 2})])["pld"]
    assert found["over_plain"] == whole["over_plain"] == {"ratio": 2.0, "ci95": [2.0, 2.0]}
    assert found["whole"]["over_plain"] == whole["whole"]["over_plain"]
    assert found["failed"] == 1 and found["tokens_per_second"] != whole["tokens_per_second"]


def test_speeds_are_of_rounds_that_every_row_has() -> None:
    """A row that a later, slower round lacks stands beside plain decoding's of its own round."""
    fast = [a for i in PLACES for a in both(i)]
    fast += [replace(a, method="suffix") for a in fast if a.method == "pld"]
    slow = [a for i in PLACES for a in both(i, 8.0, 2.0)]
    made = figures.cell([one_round(1, fast), one_round(2, slow)])
    assert made["speed_rounds"] == [1] and made["rounds"] == 2
    found = {row["method"]: row for row in made["rows"]}
    assert [found[m]["rounds"] for m in ("autoregressive", "pld", "suffix")] == [2, 2, 1]
    assert found["autoregressive"]["tokens_per_second"] == pytest.approx(1.0)
    assert found["suffix"]["tokens_per_second"] == pytest.approx(2.0)
    assert found["suffix"]["over_plain"]["ratio"] == pytest.approx(2.0)
    assert found["pld"]["over_plain"]["ratio"] == pytest.approx(3.0)
    assert found["pld"]["ms_per_step"]["verify"] == pytest.approx(1000.0)
    assert made["dates"] == ["2026-01-07", "2026-01-08"]


def costs(ms: float) -> dict[str, Any]:
    passes = [{"batch_size": 1, "ms": {"1": ms, "4": ms}}]
    model = {"weight_bytes": 1, "kv_bytes": 0, "passes": passes}
    return {"piece": "a", "context": 1, "target": model, "drafts": {"pld": None}}


def test_rows_are_not_judged_by_passes_that_plain_decoding_had_not() -> None:
    """Where a timed pass differs by more than a tenth, in some round of the row, there is no
    ideal; a stalled answer of plain decoding is no pass that it had."""
    answers = [a for i in PLACES for a in both(i, **{"plainly": 64.0} if i == "p3" else {})]

    def made(*timed: float) -> dict[str, Any]:
        return figures.cell(
            [one_round(n, answers, costs=[costs(ms)]) for n, ms in enumerate(timed, 1)]
        )

    good = made(1090.0, 910.0)
    assert good["not_judged"] == [] and good["rows"][1]["ideal"] == pytest.approx(2.0)
    assert good["rows"][1]["of_ideal"] == pytest.approx(1.0)
    bad = made(1000.0, 1110.0)
    assert bad["not_judged"] == [
        {"rows": ["pld"], "round": 2, "timed_ms": 1110.0, "plain_ms": pytest.approx(1000.0)}
    ]
    assert bad["rows"][1]["ideal"] is bad["rows"][1]["of_ideal"] is None
    assert bad["rows"][1]["over_plain"]["ratio"] == pytest.approx(2.0)
    assert bad["costs"]["target"] == costs(1110.0)["target"]
