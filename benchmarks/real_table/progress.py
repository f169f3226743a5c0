"""What a working folder has, what the screen decided, what is left and how long that will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretoken.bench.record import BASELINE
from foretoken.bench.run.resume import check_same
from foretoken.bench.suites.suite import Suite
from foretoken.files import read_json, write_json
from real_table import figures, prompts
from real_table.cells import (
    GUESS,
    OF_TRAINED,
    Cell,
    Choice,
    LeftOut,
    Pace,
    halved,
    screen,
    seconds,
    settle,
)
from real_table.folder import read
from real_table.lineup import PEERS, PLAIN
from real_table.serve import CELL, CLOCK, read_lines

PLAN, SETTLED, OPENED, DONE = "plan.json", "settled.json", "trained.json", "done"
STAGES = ("screen", "grid", "whole", "precision", OF_TRAINED)


def check_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Raise `ForetokenError` where a folder is for another plan. Once the screen has decided what
    the hours suffice for, more or fewer change nothing but when it ends."""
    free = {"hours"} if (folder / SETTLED).is_file() else set()
    both = (read_json(folder / PLAN, "this benchmark's plan"), plan)
    before, now = ({k: v for k, v in each.items() if k not in free} for each in both)
    check_same(folder, before, now)


@dataclass(frozen=True)
class Whole:
    """All that a working folder is for. limit: prompts of a stage, None for all."""

    work: Path
    targets: tuple[str, ...]
    peers: tuple[str, ...]
    suite: Suite
    hours: float
    limit: int | None = None

    def keep(self, hashes: Mapping[str, str]) -> None:
        """Note what is measured. Raises `ForetokenError` where the folder is for something else."""
        plan = {
            "targets": list(self.targets),
            "peers": list(self.peers),
            "hours": self.hours,
            "limit": self.limit,
            "models": dict(hashes),
            "suite": self.suite.sha256,
        }
        if (self.work / PLAN).is_file():
            check_plan(self.work, plan)
        write_json(self.work / PLAN, plan)

    def prompts(self, stage: str) -> list[prompts.Prompt]:
        return prompts.of_stage(stage, self.suite, self.limit)

    def asked(self, cell: Cell) -> list[prompts.Prompt]:
        return prompts.of_stage(cell.stage, self.suite, self.limit, halved(cell))

    @property
    def works(self) -> dict[str, tuple[int, int]]:
        """What there is to read and to answer in each stage."""
        found = {}
        for stage in STAGES:
            asked, tokens = self.prompts(stage), Cell(stage, "", ()).tokens
            turns = sum(len(prompt.turns) for prompt in asked)
            found[stage] = (prompts.tokens_to_read(asked, tokens), turns)
        return found

    def screened(self) -> list[Cell]:
        return screen(self.targets, self.peers)

    def done(self, cell: Cell) -> bool:
        return (self.work / cell.name / DONE).is_file()

    def cells(self) -> list[Cell]:
        """Everything to run, in order: the screen, the trained drafters that there are, and once
        the screen is done the rest."""
        screened = self.screened()
        cells = [*screened, *(Cell.from_json(one) for one in self.trained()["cells"])]
        if all(map(self.done, screened)):
            cells += [Cell.from_json(one) for one in self.settled()["cells"]]
        return cells

    def trained(self) -> dict[str, Any]:
        """What `trained.settle` found, with no cells where it was never asked for."""
        path = self.work / OPENED
        nothing: dict[str, Any] = {"cells": [], "drafters": {}, "missing": []}
        return read_json(path, "the trained drafters") if path.is_file() else nothing

    def settled(self) -> dict[str, Any]:
        """What follows from the screen: made once, then read. Raises `ForetokenError`."""
        path = self.work / SETTLED
        if not path.is_file():
            write_json(path, self._settle())
        return read_json(path, "what the screen decided")

    def _settle(self) -> dict[str, Any]:
        found = {cell: figures.cell([read(self.work / cell.name)]) for cell in self.screened()}
        choices = {
            t: choice([c for at, c in found.items() if at.target == t])
            for t in dict.fromkeys(cell.target for cell in found)
        }
        paces = {t: pace([c for at, c in found.items() if at.target == t]) for t in choices}
        left = 3600 * self.hours - self.spent()
        works = {target: self.works for target in GUESS}
        cells, left_out = settle(choices, paces, works, left)
        return {
            "choices": {t: {"rows": one.rows, **asdict(one)} for t, one in choices.items()},
            "paces": {t: asdict(one) for t, one in paces.items()},
            "cells": [cell.to_json() for cell in cells],
            "left_out": [asdict(one) for one in left_out],
        }

    def left_out(self) -> list[LeftOut]:
        if not (self.work / SETTLED).is_file():
            return []
        return [
            LeftOut(o["cell"], tuple(o["rows"]), o["hours"]) for o in self.settled()["left_out"]
        ]

    def spent(self) -> float:
        """Seconds of measuring so far."""
        return sum(_seconds(path.parent) for path in self.work.glob(f"*/{CLOCK}"))

    def expected(self, cell: Cell) -> float:
        """Seconds until a cell is done: estimated, at the pace of another round where there is one,
        which may have had more rows."""
        folder, pace = self.work / cell.name, self._pace(cell.target)
        whole = seconds(cell, pace, self.works)
        alike = [p for p in self.work.glob(f"{cell.kind}_round*") if (p / DONE).is_file()]
        if alike:
            known = Cell.from_json(read_json(alike[0] / CELL, "a cell")["cell"])
            whole *= _seconds(alike[0]) / seconds(known, pace, self.works)
        if not (folder / CELL).is_file():
            return whole
        units = read_json(folder / CELL, "a cell")["units"]
        served = {line["unit"] for line in read_lines(folder / CLOCK) if "unit" in line}
        return whole * (1 - len(served) / max(1, units))

    def _pace(self, target: str) -> Pace:
        """As settled; before that, by the target's own screen, or a guess."""
        if (self.work / SETTLED).is_file() and target in (own := self.settled()["paces"]):
            return Pace(**own[target])
        for cell in self.screened():
            if cell.target == target and not cell.peers and self.done(cell):
                return pace([figures.cell([read(self.work / cell.name)])])
        return GUESS[target]


def _seconds(folder: Path) -> float:
    return float(sum(line["seconds"] for line in read_lines(folder / CLOCK)))


def choice(screened: Sequence[Mapping[str, Any]]) -> Choice:
    """What a target's screen decides; `screened`: its cells' records."""
    ours = next(c for c in screened if not c["peers"])
    rated = {row["method"]: row["over_plain"]["ratio"] for row in ours["rows"] if row["over_plain"]}
    best = sorted(rated.keys() - {BASELINE, "auto"}, key=lambda row: -rated[row])
    speeds = {
        (row["engine"], row["method"]): row["decoding"]["tokens_per_second"] or 0.0
        for c in screened
        for row in c["peers"]
        if row["engine"] in PEERS
    }
    of_engine: dict[str, list[tuple[str, str]]] = {}
    for key in sorted(speeds, key=lambda key: -speeds[key]):
        of_engine.setdefault(PEERS[key[0]].engine, []).append(key)
    plain = [key for key in speeds if key[1] == PLAIN]
    fastest = sorted(plain, key=lambda key: -speeds[key])[:1]
    beside = dict.fromkeys([*fastest, *(keys[0] for keys in of_engine.values())])
    return Choice(tuple(best), tuple(beside))


def pace(screened: Sequence[Mapping[str, Any]]) -> Pace:
    """How fast a target's rows were in its screen."""
    ours = next(c for c in screened if not c["peers"])
    token = {
        r["method"]: 1 / r["tokens_per_second"] for r in ours["rows"] if r["tokens_per_second"]
    }
    for row in (row for c in screened for row in c["peers"] if row["engine"] in PEERS):
        if row["decoding"]["tokens_per_second"]:
            name = f"{row['engine']}: {row['method']}"
            token[name] = 1 / row["decoding"]["tokens_per_second"]
    plain = next(row for row in ours["rows"] if row["method"] == BASELINE)
    whole = plain["tokens"] / plain["whole"]["tokens_per_second"]
    reading = whole - plain["tokens"] * token[BASELINE]
    return Pace(token, max(0.0, reading) / max(1, ours["prompt_tokens"]), ours["written"])
