"""A cell's rows as other engines are timed: from outside, ours and theirs alike.

As peers/measure.py has it: the whole call, prompt included; and decoding, where all tokens but the
first count, over the seconds of the whole call less those in which the same engine *plainly* writes
one token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from foretoken.bench.record import BASELINE
from real_table.folder import Round, shared
from real_table.lineup import PLAIN
from real_table.ratios import Spent, rate, ratio

Lines = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""(engine, method) -> answers."""


def peers(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Rows of the other engines, and ours beside them by the same two definitions."""
    if not rounds[0].about["cell"]["peers"]:
        return []
    timed = {("foretoken", m): lines for m, lines in _ours(rounds).items()}
    for one in rounds:
        for line in one.peers:
            key = line["engine"], line["method"]
            out = (line["group"], line["turn"]) in one.stalled
            timed.setdefault(key, []).append({**line, "round": one.number, "stalled": out})
    notes = rounds[0].peer_rows
    ours = [key for key in timed if key[0] == "foretoken"]
    in_order = ours + [key for key in notes if key in timed]
    return [_peer(key, timed, notes.get(key, (key[1], {})), rounds) for key in in_order]


def _ours(rounds: Sequence[Round]) -> dict[str, list[dict[str, Any]]]:
    """Our answers as the other engines' lines."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in rounds:
        for a in one.answers:
            seconds = {"first": a.seconds["ttft"], "whole": a.seconds["total"]}
            where = {"round": one.number, "group": a.group, "id": a.id, "turn": a.turn}
            where["stalled"] = (a.group, a.turn) in one.stalled
            line = {**where, "task": a.task, "token_ids": a.token_ids, "error": a.error, **seconds}
            found.setdefault(a.method, []).append(line)
    return found


def _peer(
    key: tuple[str, str], timed: Lines, about: tuple[str, Any], rounds: Sequence[Round]
) -> dict[str, Any]:
    engine, method = key
    plain = _plain(engine)
    mine, base = timed[key], timed.get(plain, [])
    good = [line for line in mine if line["error"] is None]
    same = {_place(line): line["token_ids"] for line in base if line.get("token_ids")}
    tasks = dict.fromkeys(line["task"] for line in mine)
    numbers = shared(rounds)
    over = {part: _against(key, timed, part, numbers) for part in ("decoding", "whole")}
    return {
        "engine": engine,
        "method": method,
        "kind": about[0],
        "options": about[1],
        "version": rounds[0].about["versions"].get(engine),
        "rounds": len({line["round"] for line in mine}),
        "prompts": len({line["id"] for line in good}),
        "tokens": sum(len(line["token_ids"]) for line in good),
        "failed": len(mine) - len(good),
        "errors": sorted({line["error"] for line in mine if line["error"]}),
        "same_as_own_plain": sum(same.get(_place(x)) == x["token_ids"] for x in good)
        if same
        else None,
        "answers": len(good),
        **over,
        "by_task": {t: _against(key, _only(timed, t), "decoding", numbers) for t in tasks},
    }


def _only(timed: Lines, task: str) -> Lines:
    return {key: [x for x in lines if x["task"] == task] for key, lines in timed.items()}


def _place(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["round"], line["id"], line["turn"]


def _plain(engine: str) -> tuple[str, str]:
    """The engine's plain row."""
    return engine, BASELINE if engine == "foretoken" else PLAIN


def _against(
    key: tuple[str, str], timed: Lines, part: str, numbers: Collection[int]
) -> dict[str, Any]:
    """Speed in rounds of these numbers, over the same engine's plain row, and over our plain
    row."""
    rows = (key, _plain(key[0]), _plain("foretoken"))
    own, base, foretoken = (_spent(row, timed, part) for row in rows)
    return {
        "tokens_per_second": rate({at: spent for at, spent in own.items() if at[0] in numbers}),
        "over_own_plain": ratio(own, base),
        "over_foretoken_plain": ratio(own, foretoken),
    }


def _spent(key: tuple[str, str], timed: Lines, part: str) -> Spent:
    """Tokens and seconds by what was served together; prompts that failed, there or plainly, are
    left out."""
    plainly = timed.get(_plain(key[0]), [])
    first = {_place(x): x["first"] for x in plainly if x["error"] is None}
    lines = [x for x in timed.get(key, []) if x["error"] is not None or x["whole"] is not None]
    bad = {(x["round"], x["group"]) for x in lines if x["error"] is not None}
    bad |= {(x["round"], x["group"]) for x in lines if _place(x) not in first}
    spent: Spent = {}
    for line in lines:
        group = line["round"], line["group"]
        if group in bad:
            continue
        count, seconds = len(line["token_ids"]), line["whole"]
        if part == "decoding":
            count, seconds = count - 1, seconds - first[_place(line)] if count > 1 else 0.0
        if line["stalled"]:
            count, seconds = 0, 0.0
        tokens, before = spent.get(group, (0.0, 0.0))
        spent[group] = tokens + count, before + seconds
    return spent
