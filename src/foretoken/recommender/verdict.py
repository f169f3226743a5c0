"""What follows from measurements: which method pays in which cell, as rows and as a sentence.

A method pays where the whole 95 % interval of its speedup, over groups of prompts that it and plain
decoding answered in turn, lies above 1, and there are at least `LEAST` groups. The intervals of all
methods in a cell hold together: the best of several is also the luckiest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from foretoken.bench.measure.metrics import joint_interval
from foretoken.bench.record import BASELINE
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.prediction import Prediction
from foretoken.recommender.served import Cell, Served

LEAST = 5
"""Groups of prompts below which nothing is concluded: an interval of so few means little."""


@dataclass(frozen=True)
class Row:
    """A method in a cell. config: its `speculative_config`, None for plain decoding. low, high: the
    95 % interval of the speedup, None where there are fewer than two groups. tokens_per_step: the
    mean acceptance length."""

    method: str
    config: Mapping[str, Any] | None
    cell: Cell
    groups: int
    tokens_per_second: float
    tokens_per_step: float
    speedup: float
    low: float | None
    high: float | None

    @property
    def enough(self) -> bool:
        return self.groups >= LEAST and self.low is not None

    @property
    def pays(self) -> bool:
        """As it is printed: an interval from 1.00 on isn't above 1."""
        return self.enough and self.low is not None and round(self.low, 2) > 1

    def __str__(self) -> str:
        """Speedup and interval, as "1.93× (1.71–2.12)"."""
        if self.low is None or self.high is None:
            return f"{self.speedup:.2f}×"
        return f"{self.speedup:.2f}× ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Verdict:
    """method: the row's that is recommended before all others, None for plain decoding. sentence:
    the conclusion. chosen: what the sentence recommends, each once, `method` first."""

    method: str | None
    sentence: str
    chosen: tuple[Row, ...]


def rows(candidates: Seq[Candidate], served: Served, cells: Seq[Cell]) -> list[Row]:
    """Plain decoding and every candidate in each cell where something was measured."""
    found: list[Row] = []
    for cell in cells:
        for label, config in [(BASELINE, None), *((c.label, c.config) for c in candidates)]:
            compared = served.compared(label, cell)
            compared = None if compared is None else compared.without_loops()
            if compared is None or not compared.answers:
                continue
            own, _ = compared.numbers()
            speedup, rate = own["speedup"], own["tokens_per_second"]
            if speedup is None or rate is None:
                continue
            ends = joint_interval(compared.answers, compared.plain, len(candidates))
            low, high = ends or (None, None)
            length = own["mean_acceptance_length"] or 0.0
            found.append(
                Row(label, config, cell, compared.groups, rate, length, speedup, low, high)
            )
    return found


def verdict(measured: Seq[Row], cells: Seq[Cell], predicted: Seq[Prediction] = ()) -> Verdict:
    """The conclusion. predicted: by the screening, where nothing was timed."""
    drafting = [row for row in measured if row.method != BASELINE]
    paying = {cell: _fastest([r for r in drafting if r.cell == cell and r.pays]) for cell in cells}
    known = {cell for cell in cells if any(r.enough for r in drafting if r.cell == cell)}
    best = _best(drafting)
    if not known:
        return Verdict(None, _unknown(measured, predicted), ())
    nowhere = [cell for cell in cells if cell in known and paying[cell] is None]
    clauses = _unsure([cell for cell in cells if cell not in known], cells)
    if best is None:
        fastest = [_fastest([r for r in drafting if r.cell == c and r.enough]) for c in nowhere]
        return Verdict(None, "; ".join([_nothing([r for r in fastest if r]), *clauses]), ())
    own = [row for row in drafting if row.method == best and row.pays]
    ahead = [row for cell in cells for row in own if row.cell == cell]
    others = [row for row in paying.values() if row and row.cell not in {r.cell for r in ahead}]
    told = f"use {best}: " + ", ".join(f"{row} {row.cell}" for row in ahead)
    elsewhere = [f"{row.cell} use {row.method}: {row}" for row in others]
    nothing = [f"{place} nothing pays" for place in _places(nowhere, cells)]
    chosen = {row.method: row for row in [ahead[0], *others]}
    return Verdict(best, "; ".join([told, *elsewhere, *nothing, *clauses]), tuple(chosen.values()))


def _nothing(fastest: Seq[Row]) -> str:
    """That nothing pays; where something may, as far as is known, so much is said."""
    details = ", ".join(f"{row.method} {row} {row.cell}" for row in fastest)
    told = "nothing pays: decode plainly"
    if any(row.speedup > 1 for row in fastest):
        told = "nothing pays for certain: decode plainly, or give it more time"
    return f"{told} (the fastest: {details})"


def _best(drafting: Seq[Row]) -> str | None:
    """The method that pays in most cells; of several, the one that gains most where it does."""
    worth: dict[str, tuple[int, float]] = {}
    for row in drafting:
        if row.pays:
            cells, gain = worth.get(row.method, (0, 0.0))
            worth[row.method] = cells + 1, gain + math.log(row.speedup)
    return max(worth, key=worth.__getitem__, default=None)


def _fastest(some: Seq[Row]) -> Row | None:
    return max(some, key=lambda row: row.speedup, default=None)


def _places(some: Seq[Cell], cells: Seq[Cell]) -> list[str]:
    """Cells as text; all those of a batch size together."""
    texts: list[str] = []
    for size in dict.fromkeys(cell.batch_size for cell in some):
        own = [cell for cell in some if cell.batch_size == size]
        whole = len(own) == sum(cell.batch_size == size for cell in cells) > 1
        texts += [f"at batch {size}"] if whole else [str(cell) for cell in own]
    return texts


def _unsure(some: Seq[Cell], cells: Seq[Cell]) -> list[str]:
    return [
        f"{place} fewer than {LEAST} groups of prompts were timed, which is too little to say"
        for place in _places(some, cells)
    ]


def _unknown(measured: Seq[Row], predicted: Seq[Prediction]) -> str:
    most = max((row.groups for row in measured), default=0)
    said = (
        f"too little was timed to recommend anything: {most} groups of prompts in a cell, and "
        f"{LEAST} are needed; give it more time"
    )
    if not predicted:
        return said
    return f"{said} (by the screening alone, {predicted[0].best.label} promises most)"
