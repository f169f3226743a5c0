"""A round of a cell, as its folder has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from foretoken.bench.record import Answer
from foretoken.bench.run.resume import Samples
from real_table.cells import Cell
from real_table.serve import CELL, COSTS, PEERS, read_lines
from real_table.stalls import Place, Taken, of_answers, of_peers, stalled, timeless


@dataclass(frozen=True)
class Round:
    """about: as cell.json has it."""

    number: int
    answers: list[Answer]
    peers: list[dict[str, Any]]
    costs: list[dict[str, Any]]
    about: dict[str, Any]

    @property
    def complete(self) -> bool:
        return len({a.group for a in self.answers}) == self.about["units"]

    @cached_property
    def taken(self) -> list[Taken]:
        """What every row took for every turn."""
        return [*of_answers(self.answers), *of_peers(self.peers)]

    @cached_property
    def stalled(self) -> dict[Place, dict[str, float]]:
        """Turn -> rows that stalled in it, each with the seconds that it took longer."""
        return stalled(self.taken)

    @property
    def peer_rows(self) -> dict[tuple[str, str], tuple[str, Any]]:
        """Other engines' rows: (engine, method) -> kind and options."""
        rows = self.about["peer_rows"]
        return {(e, f"{kind}, {note}" if note else kind): (kind, o) for e, kind, note, o in rows}

    @cached_property
    def rows(self) -> set[tuple[str, str]]:
        """Ours and other engines' that answered something."""
        theirs = {(line["engine"], line["method"]) for line in self.peers}
        return {("foretoken", a.method) for a in self.answers} | (theirs & self.peer_rows.keys())

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Of every piece in which it was served."""
        return [*self.about.get("earlier", []), self.about["environment"]]

    def of(self, method: str) -> list[Answer]:
        """A row's answers; groups of different rounds have different names."""
        own = [a for a in self.answers if a.method == method]
        return [replace(a, group=f"{self.number} {a.group}") for a in own]

    def timed(self, method: str) -> list[Answer]:
        """The same, as speeds count them."""
        out = {(f"{self.number} {group}", turn) for group, turn in self.stalled}
        return [timeless(a) if (a.group, a.turn) in out else a for a in self.of(method)]


def read(folder: Path) -> Round:
    """Raises `ForetokenError` for damaged answers."""
    about = json.loads((folder / CELL).read_text(encoding="utf-8"))
    number = Cell.from_json(about["cell"]).round
    costs = {line["piece"]: line for line in read_lines(folder / COSTS)}  # the last of each piece
    answers = Samples(folder).answers
    return Round(number, answers, read_lines(folder / PEERS), list(costs.values()), about)


def shared(rounds: Sequence[Round]) -> set[int]:
    """The rounds that have every row of the cell, ours and other engines'; all where none has."""
    every = set[tuple[str, str]]().union(*(r.rows for r in rounds))
    return {r.number for r in rounds if r.rows == every} or {r.number for r in rounds}
