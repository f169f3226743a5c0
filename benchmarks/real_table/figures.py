"""The numbers of a cell, from the answers of all of its rounds.

Ours are tokens/s while decoding, by the engine's own clock, as in every record of this project
(docs/metrics.md), and over plain decoding's in the same rounds and prompts; outside.py has those
that stand against other engines.

Intervals (95 %) are over prompts and rounds: both are drawn with replacement, the ratio is made
again of the totals of the prompts drawn in the rounds drawn. What was served together, the turns of
a conversation or a batch, is drawn as one, and compared where both rows answered the same of it.

Turns in which the machine stood still (stalls.py) count in no ratio and in no speed. Later rounds
may have fewer rows: a row's ratio is over all rounds that it has, and tokens a second, which are to
be compared with other rows', are of those that every row has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretoken.bench.measure.costs import Costs
from foretoken.bench.measure.metrics import group_by, looping, measure, without_failures
from foretoken.bench.record import BASELINE, Answer
from real_table.cells import OF_TRAINED, Cell
from real_table.folder import Round, shared
from real_table.ideals import has_ideal, ideal_of_rounds, mistimed, typical
from real_table.lineup import TRAINED
from real_table.outside import peers
from real_table.ratios import Spent, rate, ratio


@dataclass(frozen=True)
class _Setting:
    """What holds for all rows. costs: of each round, None where they are not known or not to be
    trusted. shared: the rounds that every row has."""

    costs: Mapping[int, Costs | None]
    shared: Collection[int]
    batch_size: int


def cell(rounds: Sequence[Round]) -> dict[str, Any]:
    """The record of a cell. `rounds`: those that are complete, or what there is of the first."""
    about, first = rounds[0].about, Cell.from_json(rounds[0].about["cell"])
    plain = [a for r in rounds for a in r.of(BASELINE)]
    costs = {r.number: typical(r.costs) for r in rounds}
    off = list(_not_judged(rounds, costs))
    trusted = costs | {one["round"]: None for one in off}
    setting = _Setting(trusted, shared(rounds), first.batch_size)
    methods = list(dict.fromkeys(a.method for r in rounds for a in r.answers))
    read_tokens = {(a.id, a.turn): a.prompt_tokens for a in plain}
    pieces = [where for r in rounds for where in r.environments]
    return {
        "stage": first.stage,
        "target": first.target,
        "precision": first.precision,
        "backend": about["backend"],
        "parameters": about["parameters"],
        "batch_size": first.batch_size,
        "temperature": first.temperature,
        "memory": first.memory,
        "complete": all(r.complete for r in rounds),
        "rounds": len(rounds),
        "speed_rounds": sorted(setting.shared),
        "dates": sorted(where["date"] for where in pieces),
        "machines": _machines(pieces),
        "commits": list(dict.fromkeys(str(where["git_commit"]) for where in pieces)),
        "max_tokens": first.tokens,
        "prompts": len({a.id for a in plain}),
        "turns": len(read_tokens),
        "groups": len({a.group for a in rounds[0].of(BASELINE)}),
        "prompt_tokens": sum(read_tokens.values()),
        "written": _written(plain, first.tokens),
        "skipped": about["skipped"],
        "looping": looping(plain),
        "stalled": _stalled(rounds),
        "timed": sum(len(r.taken) for r in rounds),
        "not_run": about["not_run"],
        "costs": costs[max(costs)],
        "not_judged": off,
        "rows": [_row(method, rounds, setting) for method in methods],
        "best_trained": _best_trained(rounds, methods) if first.stage == OF_TRAINED else None,
        "peers": peers(rounds),
    }


def _stalled(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    return [
        {"round": r.number, "group": group, "turn": turn, "rows": rows}
        for r in rounds
        for (group, turn), rows in r.stalled.items()
    ]


def _not_judged(
    rounds: Sequence[Round], costs: Mapping[int, Costs | None]
) -> Iterator[dict[str, Any]]:
    """The rounds whose timed passes are not to be trusted, with the rows that need them."""
    for one in rounds:
        known, plain = costs[one.number], one.timed(BASELINE)
        if off := mistimed(known, plain):
            methods = dict.fromkeys(a.method for a in one.answers)
            rows = [m for m in methods if has_ideal(m, known, plain[0].batch_size)]
            if rows:
                yield {"rows": rows, "round": one.number, **off}


def _best_trained(rounds: Sequence[Round], methods: Sequence[str]) -> dict[str, Any] | None:
    """The fastest row of a trained drafter, and its speed over each row of none; None where no
    answer of one is there."""
    answers = {m: [a for r in rounds for a in r.timed(m)] for m in methods}
    over = {m: _over(answers[m], answers[BASELINE]) for m in methods if m in TRAINED}
    rated = {method: found["ratio"] for method, found in over.items() if found}
    if not rated:
        return None
    best = max(rated, key=lambda method: rated[method])
    beside = {m: _over(answers[best], answers[m]) for m in methods if m not in TRAINED}
    return {"method": best, "over": {m: found for m, found in beside.items() if found}}


def _machines(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each processor that was measured on, once."""
    names = ("cpu", "cpu_features", "cores")
    found = [{name: where[name] for name in names} for where in pieces]
    return [one for at, one in enumerate(found) if one not in found[:at]]


def _written(plain: Sequence[Answer], most: int) -> float:
    """How much of the most tokens longer answers would have: what is cut short counts as whole."""
    kept = [1.0 if a.finish_reason == "length" else a.tokens / (2 * most) for a in plain]
    return sum(kept) / max(1, len(kept))


def _in(answers: Iterable[Answer], numbers: Collection[int]) -> list[Answer]:
    """Those of some rounds, by their groups' names."""
    return [a for a in answers if int(a.group.partition(" ")[0]) in numbers]


def _row(method: str, rounds: Sequence[Round], setting: _Setting) -> dict[str, Any]:
    mine = [a for r in rounds for a in r.of(method)]
    own, plain = ([a for r in rounds for a in r.timed(m)] for m in (method, BASELINE))
    loops = looping([a for r in rounds for a in r.of(BASELINE)])
    straight = [[a for a in x if a.id not in loops] for x in (own, plain)]

    def part(task: str | None) -> dict[str, Any]:
        every, timed, base = ([a for a in x if task in (None, a.task)] for x in (mine, own, plain))
        return _part(method, every, timed, base, setting)

    return {
        "engine": "foretoken",
        "method": method,
        "config": rounds[0].about["configs"].get(method),
        "rounds": sum(("foretoken", method) in r.rows for r in rounds),
        **part(None),
        "failed": len({a.id for a in mine if a.error is not None}),
        "errors": sorted({a.error for a in mine if a.error is not None}),
        "without_looping": _over(*straight) if loops and all(straight) else None,
        "whole": _whole(own, plain, setting.shared),
        "margins": sorted({a.margin for a in mine if a.margin is not None}),
        "by_task": {task: part(task) for task in dict.fromkeys(a.task for a in plain)}
        if setting.batch_size == 1
        else {},
    }


def _part(
    method: str,
    every: Sequence[Answer],
    timed: Sequence[Answer],
    plain: Sequence[Answer],
    setting: _Setting,
) -> dict[str, Any]:
    """The numbers over all prompts, or over those of a task. every: the row's answers; timed: the
    same as speeds count them, and so plain decoding's."""
    found = measure(every, every)
    speeds = measure(*(_in(x, setting.shared) for x in (timed, plain)))
    over = _over(timed, plain)
    by_round = [(_in(timed, [n]), _in(plain, [n]), costs) for n, costs in setting.costs.items()]
    best = ideal_of_rounds(method, by_round, setting.batch_size)
    return {
        "prompts": len({a.id for a in without_failures(every)}),
        "tokens": found["tokens"],
        "target_passes": found["target_passes"],
        "tokens_per_second": speeds["tokens_per_second"],
        "over_plain": over,
        "mean_acceptance_length": found["mean_acceptance_length"],
        "draft_acceptance_rate": found["draft_acceptance_rate"],
        "ms_per_step": speeds["ms_per_step"],
        "ideal": best,
        "of_ideal": over["ratio"] / best if over and best else None,
        "identity": found["identical_to_autoregressive"],
        "peak_memory_mib": found["peak_memory_mib"],
        "kv_cache_mib": found.get("kv_cache_mib"),
    }


def _over(mine: Iterable[Answer], plain: Iterable[Answer]) -> dict[str, Any] | None:
    """{"ratio", "ci95"} of decoding by our own clock."""
    return ratio(*(_spent(x, _decoding) for x in _alike(mine, plain)))


def _whole(
    mine: Iterable[Answer], plain: Iterable[Answer], shared: Collection[int]
) -> dict[str, Any]:
    own, base = (_spent(x, _calls) for x in _alike(mine, plain))
    return {
        "tokens_per_second": rate(_spent(_in(mine, shared), _calls)),
        "over_plain": ratio(own, base),
    }


def _alike(mine: Iterable[Answer], plain: Iterable[Answer]) -> list[list[Answer]]:
    """Both rows' answers of what was served together, where both answered the same prompts of it: a
    batch is faster with one less."""
    both = [without_failures(x) for x in (mine, plain)]
    own, base = ({(a.group, a.id) for a in x} for x in both)
    unlike = {group for group, _ in own ^ base}
    return [[a for a in x if a.group not in unlike] for x in both]


def _spent(answers: Iterable[Answer], seconds: Callable[[Sequence[Answer]], float]) -> Spent:
    """Tokens and seconds of what was served together, without prompts that failed."""
    spent: Spent = {}
    for named, members in group_by(lambda a: a.group, without_failures(answers)).items():
        number, _, group = named.partition(" ")
        spent[int(number), group] = sum(a.tokens for a in members), seconds(members)
    return spent


def _decoding(members: Sequence[Answer]) -> float:
    return sum(a.decoding for a in members)


def _calls(members: Sequence[Answer]) -> float:
    """Of each turn until its last request is answered, as a batch's are asked at once."""
    longest: dict[int, float] = {}
    for a in members:
        longest[a.turn] = max(longest.get(a.turn, 0.0), a.seconds["total"])
    return sum(longest.values())
