"""What is run in which order, how long it takes, and what is left out where time is short.

A cell is a set of rows that are measured together, prompt by prompt, in one process. The screen
runs every method once; from it follows what the other stages run, and that is settled once:

- Rows of the grid: plain, the fastest row of the screen, `auto`, then the other three of the best
  four and sps with 2, 4, 6 and 8 tokens, the faster before the slower.
- Cells are taken in the order of `ORDER`, all rounds of one together, as long as what they are
  expected to take fits the hours that are left. A cell that doesn't fit whole is tried with its
  first five rows, then with its first three, else it is left out. Whatever is left out is named in
  the record. Prompts, tokens and rounds are never cut.

All first rounds run before all second ones, so that rounds are hours apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from foretoken.bench.record import BASELINE
from real_table.lineup import OTHER_SIZE, PEERS, TARGETS, methods

ROUNDS = 3
TOKENS = {"screen": 64}
"""Of an answer; in other stages `ANSWER`."""
ANSWER = 128
COLD, WARM = "cold", "warm"
MEMORY = ("suffix", "llma", "token_recycling", "swift", "suffix+sps", "auto")
"""Methods that keep something from prompt to prompt, where it isn't reset."""

_FEWER = (None, 5, 3)
"""How many rows a cell is tried with."""
_BATCH = {1: 1.0, 2: 0.6, 4: 0.4, 8: 0.3, 16: 0.25}
"""Seconds of a sequence's decoding, as a share of those it takes alone: an estimate."""
_DRAWN, _FLOAT32, _LOAD = 1.2, 1.9, 60.0
"""How much longer decoding takes at temperature 1 and in float32, and seconds to begin with."""


@dataclass(frozen=True)
class Cell:
    """Rows measured together. peers: names of `lineup.PEERS`, whose rows `beside` names by engine;
    where it doesn't, all of them."""

    stage: str
    target: str
    rows: tuple[str, ...]
    precision: str = "float16"
    batch_size: int = 1
    temperature: float = 0.0
    memory: str = COLD
    peers: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    round: int = 1

    @property
    def kind(self) -> str:
        """The cell without its round and its rows, as the name of a folder."""
        parts = [self.stage, self.target, self.precision, f"batch{self.batch_size}"]
        parts += [f"t{self.temperature:g}", self.memory, *(p.replace(" ", "-") for p in self.peers)]
        return "_".join(parts)

    @property
    def name(self) -> str:
        return f"{self.kind}_round{self.round}"

    @property
    def tokens(self) -> int:
        return TOKENS.get(self.stage, ANSWER)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Cell:
        lists = {"rows": tuple(given["rows"]), "peers": tuple(given["peers"])}
        return cls(**{**given, **lists, "beside": tuple(map(tuple, given["beside"]))})


@dataclass(frozen=True)
class Pace:
    """How fast a target is. token: seconds a written token, by row and by peers' rows; prompt:
    seconds a token that is read."""

    token: Mapping[str, float]
    prompt: float

    def of(self, row: str) -> float:
        """A row that was not measured is taken for plain decoding."""
        return self.token.get(row, self.token[BASELINE])


GUESS = {
    "qwen2.5-coder-1.5b": Pace({BASELINE: 0.12}, 0.012),
    "qwen2.5-coder-0.5b": Pace({BASELINE: 0.045}, 0.004),
    "smollm2-135m": Pace({BASELINE: 0.02}, 0.0014),
    "mini": Pace({BASELINE: 0.002}, 0.0002),
}
"""Until a target's screen has been run: seen on two cores with AVX-512 and without AMX."""


def screen(targets: Sequence[str], peers: Sequence[str]) -> list[Cell]:
    """All methods of each target, then each peer beside plain decoding."""
    cells = [Cell("screen", t, tuple(methods(TARGETS[t]))) for t in targets if t != OTHER_SIZE]
    plain = [replace(cell, rows=(BASELINE,)) for cell in cells]
    return cells + [replace(cell, peers=(peer,)) for cell in plain for peer in peers]


@dataclass(frozen=True)
class Choice:
    """What a target's screen decides. best: rows from the fastest on, plain and auto left out.
    beside: (peer, row) to measure further: the plain and the best row of each engine."""

    best: tuple[str, ...]
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        lengths = [row for row in self.best if row.startswith("sps-") and row.count("-") == 1]
        others = [row for row in self.best if row in self.best[:4] or row in lengths]
        return (BASELINE, *others[:1], "auto", *others[1:])

    @property
    def few(self) -> tuple[str, ...]:
        return self.rows[:3]

    @property
    def warm(self) -> tuple[str, ...]:
        """Those that remember, whether or not they are among the best."""
        return (BASELINE, *(row for row in (*self.best, "auto") if row in MEMORY))

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(peer for peer, _ in self.beside))


def grid(choices: Mapping[str, Choice]) -> Iterator[Cell]:
    """The first round of every cell after the screen, the most important first."""
    for make in ORDER:
        for target, choice in choices.items():
            yield from make(target, choice)


def _rows(batch_size: int, temperature: float) -> Any:
    def make(target: str, choice: Choice) -> Iterator[Cell]:
        yield Cell("grid", target, choice.rows, batch_size=batch_size, temperature=temperature)

    return make


def _beside(temperature: float) -> Any:
    def make(target: str, choice: Choice) -> Iterator[Cell]:
        if choice.beside:
            yield Cell(
                "grid",
                target,
                choice.few,
                temperature=temperature,
                peers=choice.peers,
                beside=choice.beside,
            )

    return make


def _small(target: str) -> bool:
    return TARGETS[target].draft is None or target == "mini"


def _whole(target: str, choice: Choice) -> Iterator[Cell]:
    if _small(target):
        yield Cell("whole", target, choice.few)


def _warm(target: str, choice: Choice) -> Iterator[Cell]:
    yield Cell("grid", target, choice.warm, memory=WARM)


def _precision(target: str, choice: Choice) -> Iterator[Cell]:
    yield Cell("precision", target, choice.few, precision="float32")


def _size(target: str, choice: Choice) -> Iterator[Cell]:
    """The draft model as a target of its own, with what needs no draft model."""
    if TARGETS[target].draft and target != "mini":
        copying = [row for row in choice.best if row in methods(TARGETS[OTHER_SIZE])]
        yield Cell("precision", OTHER_SIZE, (BASELINE, *copying[:1], "auto"))


def _crossover(target: str, choice: Choice) -> Iterator[Cell]:
    if _small(target):
        for size in (16, 8, 2):
            yield Cell("grid", target, choice.few, batch_size=size)


ORDER = (
    _rows(1, 0.0),
    _beside(0.0),
    _rows(1, 1.0),
    _rows(4, 0.0),
    _whole,
    _warm,
    _precision,
    _size,
    _crossover,
    _rows(4, 1.0),
    _beside(1.0),
)


def rounds(cell: Cell) -> list[Cell]:
    """The grid has three; the other stages one."""
    count = ROUNDS if cell.stage == "grid" else 1
    return [replace(cell, round=n) for n in range(1, count + 1)]


Work = Mapping[str, tuple[int, int]]
"""A stage -> the tokens that its prompts have, and the answers."""


def seconds(cell: Cell, pace: Pace, work: Work) -> float:
    """About how long a round of a cell takes."""
    read, turns = work[cell.stage]
    slower = (_DRAWN if cell.temperature else 1.0) * _BATCH[cell.batch_size]
    slower *= _FLOAT32 if cell.precision == "float32" else 1.0
    named = [f"{peer}: {row}" for peer, row in cell.beside] or [
        f"{peer}: {row.method}" for peer in cell.peers for row in _peer_rows(peer, cell.target)
    ]
    rows = [*cell.rows, *named]
    writing = sum(pace.of(row) for row in rows) * turns * cell.tokens * slower
    return _LOAD + writing + len(rows) * read * pace.prompt


def _peer_rows(peer: str, target: str) -> list[Any]:
    from real_table.lineup import rows

    return rows(peer, TARGETS[target])


@dataclass(frozen=True)
class LeftOut:
    """A cell, or the rows of one, that the time doesn't allow."""

    cell: str
    rows: tuple[str, ...]
    hours: float


def settle(
    choices: Mapping[str, Choice], paces: Mapping[str, Pace], works: Mapping[str, Work], left: float
) -> tuple[list[Cell], list[LeftOut]]:
    """The cells that fit into the seconds that are left, round after round, and what doesn't."""
    kept: list[Cell] = []
    left_out: list[LeftOut] = []
    for first in grid(choices):
        pace, work = paces.get(first.target, GUESS[first.target]), works[first.target]
        for count in _FEWER:
            cell = replace(first, rows=first.rows[:count])
            cost = sum(seconds(one, pace, work) for one in rounds(cell))
            if cost <= left:
                kept.append(cell)
                left -= cost
                break
        else:
            cell = replace(first, rows=())
        if missing := first.rows[len(cell.rows) :]:
            whole = sum(seconds(one, pace, work) for one in rounds(first))
            left_out.append(LeftOut(first.kind, missing, whole / 3600))
    in_turn = [rounds(cell)[n] for n in range(ROUNDS) for cell in kept if n < len(rounds(cell))]
    return in_turn, left_out


assert set(GUESS) == set(TARGETS) and PEERS
