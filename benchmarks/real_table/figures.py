"""The numbers of a cell, from the answers of all of its rounds.

- Ours: tokens/s while decoding, by the engine's own clock, as in every record of this project
  (docs/metrics.md), and over plain decoding's in the same rounds and prompts.
- Against other engines, ours and theirs alike, as peers/measure.py has it: the whole call, prompt
  included; and decoding, where all tokens but the first count, over the seconds of the whole call
  less those in which the same engine *plainly* writes one token.

Intervals (95 %) are over prompts and rounds: both are drawn with replacement, the ratio is made
again of the totals of the prompts drawn in the rounds drawn. What was served together, the turns of
a conversation or a batch, is drawn as one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foretoken.bench.measure.bootstrap import Floats
from foretoken.bench.measure.costs import Costs
from foretoken.bench.measure.metrics import looping, measure, without_failures
from foretoken.bench.record import BASELINE, Answer
from foretoken.bench.run.resume import Samples
from real_table.cells import OF_TRAINED, Cell
from real_table.ideals import ideal_of_rounds, typical
from real_table.lineup import TRAINED
from real_table.serve import CELL, COSTS, PEERS, read_lines

RESAMPLES = 2_000
Spent = dict[tuple[int, str], tuple[float, float]]
"""(round, prompts served together) -> tokens and seconds."""

OfRounds = dict[int, Costs | None]
"""Round -> what passes cost in it."""


@dataclass(frozen=True)
class Round:
    """One round of a cell, as its folder has it."""

    number: int
    answers: list[Answer]
    peers: list[dict[str, Any]]
    costs: list[dict[str, Any]]
    about: dict[str, Any]

    @property
    def complete(self) -> bool:
        return len({a.group for a in self.answers}) == self.about["units"]

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Of every piece in which it was served."""
        return [*self.about.get("earlier", []), self.about["environment"]]


def read(folder: Path) -> Round:
    """Raises `ForetokenError` for damaged answers."""
    about = json.loads((folder / CELL).read_text(encoding="utf-8"))
    number = Cell.from_json(about["cell"]).round
    costs = {line["piece"]: line for line in read_lines(folder / COSTS)}  # the last of each piece
    answers = Samples(folder).answers
    return Round(number, answers, read_lines(folder / PEERS), list(costs.values()), about)


def cell(rounds: Sequence[Round]) -> dict[str, Any]:
    """The record of a cell. `rounds`: those that are complete, or what there is of the first."""
    about, first = rounds[0].about, Cell.from_json(rounds[0].about["cell"])
    plain = [a for r in rounds for a in _of(r, BASELINE)]
    costs = {r.number: typical(r.costs) for r in rounds}
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
        "dates": [where["date"] for where in pieces],
        "machines": _machines(pieces),
        "commits": list(dict.fromkeys(str(where["git_commit"]) for where in pieces)),
        "max_tokens": first.tokens,
        "prompts": len({a.id for a in plain}),
        "turns": len(read_tokens),
        "groups": len({a.group for a in _of(rounds[0], BASELINE)}),
        "prompt_tokens": sum(read_tokens.values()),
        "written": _written(plain, first.tokens),
        "skipped": about["skipped"],
        "looping": looping(plain),
        "not_run": about["not_run"],
        "costs": costs[max(costs)],
        "rows": [_row(method, rounds, costs) for method in methods],
        "best_trained": _best_trained(rounds, methods) if first.stage == OF_TRAINED else None,
        "peers": _peers(rounds),
    }


def _best_trained(rounds: Sequence[Round], methods: Sequence[str]) -> dict[str, Any] | None:
    """The fastest row of a trained drafter, and its speed over each row of none; None where no
    answer of one is there."""
    answers = {m: [a for r in rounds for a in _of(r, m)] for m in methods}
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


def _of(one: Round, method: str) -> list[Answer]:
    """A row's answers in a round; groups of different rounds have different names."""
    return [replace(a, group=f"{one.number} {a.group}") for a in one.answers if a.method == method]


def _in(answers: Sequence[Answer], number: int) -> list[Answer]:
    """Those of a round, as `_of` names them."""
    return [a for a in answers if a.group.partition(" ")[0] == str(number)]


def _row(method: str, rounds: Sequence[Round], costs: OfRounds) -> dict[str, Any]:
    mine = [a for r in rounds for a in _of(r, method)]
    plain = [a for r in rounds for a in _of(r, BASELINE)]
    size = Cell.from_json(rounds[0].about["cell"]).batch_size
    tasks = dict.fromkeys(a.task for a in plain)

    def part(task: str | None) -> dict[str, Any]:
        own, base = ([a for a in x if task in (None, a.task)] for x in (mine, plain))
        return _part(method, own, base, costs, size)

    loops = looping(plain)
    straight = [[a for a in x if a.id not in loops] for x in (mine, plain)]
    return {
        "engine": "foretoken",
        "method": method,
        "config": rounds[0].about["configs"].get(method),
        **part(None),
        "failed": len({a.id for a in mine if a.error is not None}),
        "errors": sorted({a.error for a in mine if a.error is not None}),
        "without_looping": _over(*straight) if loops and all(straight) else None,
        "whole": _whole(mine, plain),
        "margins": sorted({a.margin for a in mine if a.margin is not None}),
        "by_task": {task: part(task) for task in tasks} if size == 1 else {},
    }


def _part(
    method: str, mine: Sequence[Answer], plain: Sequence[Answer], costs: OfRounds, size: int
) -> dict[str, Any]:
    """The numbers over all prompts, or over those of a task."""
    found = measure(mine, plain)
    over = _over(mine, plain)
    by_round = [(_in(mine, n), _in(plain, n), known) for n, known in costs.items()]
    best = ideal_of_rounds(method, by_round, size)
    return {
        "prompts": len({a.id for a in without_failures(mine)}),
        "tokens": found["tokens"],
        "target_passes": found["target_passes"],
        "tokens_per_second": found["tokens_per_second"],
        "over_plain": over,
        "mean_acceptance_length": found["mean_acceptance_length"],
        "draft_acceptance_rate": found["draft_acceptance_rate"],
        "ms_per_step": found["ms_per_step"],
        "ideal": best,
        "of_ideal": over["ratio"] / best if over and best else None,
        "identity": found["identical_to_autoregressive"],
        "peak_memory_mib": found["peak_memory_mib"],
        "kv_cache_mib": found.get("kv_cache_mib"),
    }


def _over(mine: Iterable[Answer], plain: Iterable[Answer]) -> dict[str, Any] | None:
    """{"ratio", "ci95"} of decoding by our own clock."""
    return ratio(*(_spent(x, lambda a: (a.tokens, a.decoding)) for x in (mine, plain)))


def _whole(mine: Sequence[Answer], plain: Sequence[Answer]) -> dict[str, Any]:
    own, base = (_spent(x, lambda a: (a.tokens, a.seconds["total"])) for x in (mine, plain))
    return {"tokens_per_second": rate(own), "over_plain": ratio(own, base)}


def _spent(answers: Iterable[Answer], of: Callable[[Answer], tuple[float, float]]) -> Spent:
    """Tokens and seconds of what was served together, without prompts that failed."""
    spent: Spent = {}
    for answer in without_failures(answers):
        number, _, group = answer.group.partition(" ")
        tokens, seconds = spent.get((int(number), group), (0.0, 0.0))
        more_tokens, more_seconds = of(answer)
        spent[int(number), group] = tokens + more_tokens, seconds + more_seconds
    return spent


def rate(spent: Spent) -> float | None:
    """Tokens per second over all."""
    tokens, seconds = map(sum, zip(*spent.values(), strict=True)) if spent else (0, 0)
    return tokens / seconds if seconds > 0 else None


def ratio(over: Spent, under: Spent) -> dict[str, Any] | None:
    """{"ratio", "ci95"} of two speeds on the prompts that both have in every round; ci95 is None
    with fewer than two prompts. None where nothing is shared or no time passed."""
    numbers = sorted({number for number, _ in over} & {number for number, _ in under})
    shared = [
        group
        for group in dict.fromkeys(group for _, group in over)
        if all((n, group) in over and (n, group) in under for n in numbers)
    ]
    if not numbers or not shared:
        return None
    grid = np.array([[[*over[n, g], *under[n, g]] for g in shared] for n in numbers])
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(_ratios(grid.sum((0, 1))[None])[0])
    return {"ratio": value, "ci95": _interval(grid)} if np.isfinite(value) else None


def _ratios(totals: Floats) -> Floats:
    """[resamples, 4] -> [resamples]."""
    tokens, seconds, plain_tokens, plain_seconds = np.moveaxis(totals, -1, 0)
    found: Floats = (tokens / seconds) / (plain_tokens / plain_seconds)
    return found


def _interval(grid: Floats) -> list[float] | None:
    """grid: [rounds, prompts, 4]. The percentiles of the ratios of prompts × rounds drawn."""
    rounds, prompts, _ = grid.shape
    if prompts < 2:
        return None
    random = np.random.default_rng(0)
    of_prompts = random.multinomial(prompts, np.full(prompts, 1 / prompts), RESAMPLES)
    of_rounds = random.multinomial(rounds, np.full(rounds, 1 / rounds), RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _ratios(np.einsum("sr,sp,rpk->sk", of_rounds, of_prompts, grid, optimize=True))
    ends = np.quantile(found, [0.025, 0.975])
    return [float(end) for end in ends] if np.isfinite(found).all() else None


def _peers(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Rows of the other engines, and ours beside them by the same two definitions."""
    if not rounds[0].about["cell"]["peers"]:
        return []
    timed = {("foretoken", m): lines for m, lines in _ours(rounds).items()}
    for one in rounds:
        for line in one.peers:
            key = line["engine"], line["method"]
            timed.setdefault(key, []).append({**line, "round": one.number})
    notes = {(e, f"{k}, {n}" if n else k): (k, o) for e, k, n, o in rounds[0].about["peer_rows"]}
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
            line = {**where, "task": a.task, "token_ids": a.token_ids, "error": a.error, **seconds}
            found.setdefault(a.method, []).append(line)
    return found


Lines = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


def _peer(
    key: tuple[str, str], timed: Lines, about: tuple[str, Any], rounds: Sequence[Round]
) -> dict[str, Any]:
    engine, method = key
    plain = (engine, BASELINE if engine == "foretoken" else "plain")
    mine, base = timed[key], timed.get(plain, [])
    good = [line for line in mine if line["error"] is None]
    same = {_place(line): line["token_ids"] for line in base if line.get("token_ids")}
    tasks = dict.fromkeys(line["task"] for line in mine)
    over = {part: _against(key, plain, timed, part) for part in ("decoding", "whole")}
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
        "by_task": {task: _against(key, plain, _only(timed, task), "decoding") for task in tasks},
    }


def _only(timed: Lines, task: str) -> Lines:
    return {key: [x for x in lines if x["task"] == task] for key, lines in timed.items()}


def _place(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["round"], line["id"], line["turn"]


def _against(
    key: tuple[str, str], plain: tuple[str, str], timed: Lines, part: str
) -> dict[str, Any]:
    """Speed, over the same engine's plain row, and over our plain row."""
    ours = ("foretoken", BASELINE)
    own, base, foretoken = (_timed(k, timed, part) for k in (key, plain, ours))
    return {
        "tokens_per_second": rate(own),
        "over_own_plain": ratio(own, base),
        "over_foretoken_plain": ratio(own, foretoken),
    }


def _timed(key: tuple[str, str], timed: Lines, part: str) -> Spent:
    """Tokens and seconds by what was served together; prompts that failed, there or plainly, are
    left out."""
    plain = (key[0], BASELINE if key[0] == "foretoken" else "plain")
    first = {_place(x): x["first"] for x in timed.get(plain, []) if x["error"] is None}
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
        tokens, before = spent.get(group, (0.0, 0.0))
        spent[group] = tokens + count, before + seconds
    return spent
