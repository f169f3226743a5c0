"""What is run in which order, how long it takes, and what is left out where time is short.

A cell is a set of rows that are measured together, prompt by prompt, in one process. The screen
runs every method once; from it follows what the other stages run, and that is settled once:

- Rows of the grid: plain, the fastest row of the screen, `auto`, then the other three of the best
  four and sps with 2, 4, 6 and 8 tokens, the faster before the slower. Beside them each other
  engine's best row, and of all engines the fastest plain one.
- Other engines stand beside the first round only, as their rows take more than half of a round.
- Where that would take more than the hours that are left, rows are cut, never prompts, tokens or
  rounds. The cells of one sequence, greedy and cold, come first, with five rows and the other
  engines. Then each other cell, those of the faster target first and in the order of `ORDER`, with
  its first three rows and without other engines, if that fits. What is left of the time widens the
  cells in the order of `ORDER`, to all rows or as many as fit. Whatever is left out is named in the
  record.

All first rounds run before all second ones, so that rounds are hours apart. In a round the faster
target's grid comes first, whose cells take minutes where the other's take hours; then what is left
in the order of `ORDER`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from foretoken.bench.record import BASELINE
from real_table.lineup import (
    COPY,
    NARROW,
    OTHER_SIZE,
    PAPERS,
    PEERS,
    TARGETS,
    TRAINED,
    methods,
)

STORED = "as stored"
"""The precision of weights that are multiplied as their file has them, which is the default."""
ROUNDS = 3
OF_TRAINED = "trained"
"""The stage of drafters that were trained for a target."""
TOKENS = {"screen": 64, OF_TRAINED: 96}
"""Of an answer; in other stages `ANSWER`."""
ANSWER = 128
COLD, WARM = "cold", "warm"
MEMORY = ("suffix", "llma", "token_recycling", "swift", "suffix+sps", "auto")
"""Methods that keep something from prompt to prompt, where it isn't reset."""

_WIDTHS = ((None, True), (5, True), (3, True), (3, False))
"""How wide a cell can be: how many rows, and whether other engines stand beside them."""
_BATCH = {1: 1.0, 2: 0.6, 4: 0.4, 8: 0.3, 16: 0.25}
"""Seconds of a sequence's decoding, as a share of those it takes alone: an estimate."""
_DRAWN, _LOAD = 1.2, 60.0
"""How much longer decoding takes at temperature 1, and seconds to begin with."""
_SLOWER = {STORED: 1.0, "float16": 2.3, "float32": 4.5}
"""How much longer it takes with weights in these."""


@dataclass(frozen=True)
class Cell:
    """Rows measured together. peers: names of `lineup.PEERS`, of which all rows are measured, or
    those that `beside` names with their peer. of: tells cells of other trained drafters apart."""

    stage: str
    target: str
    rows: tuple[str, ...]
    precision: str = STORED
    batch_size: int = 1
    temperature: float = 0.0
    memory: str = COLD
    peers: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    round: int = 1
    of: str = ""

    @property
    def kind(self) -> str:
        """The cell without its round and its rows, as the name of a folder."""
        parts = [self.stage, self.target, self.precision, f"batch{self.batch_size}"]
        parts += [f"t{self.temperature:g}", self.memory, *([self.of] if self.of else [])]
        peers = () if self.beside else self.peers
        return "_".join([*parts, *(peer.replace(" ", "-") for peer in peers)])

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
    seconds a token that is read; written: how much of the most tokens answers have."""

    token: Mapping[str, float]
    prompt: float
    written: float = 1.0

    def of(self, row: str) -> float:
        """A row that was not measured is taken for plain decoding."""
        return self.token.get(row, self.token[BASELINE])


GUESS = {
    "qwen2.5-coder-1.5b": Pace({BASELINE: 0.06}, 0.008),
    "qwen2.5-coder-0.5b": Pace({BASELINE: 0.025}, 0.003),
    "smollm2-135m": Pace({BASELINE: 0.01}, 0.001),
    "mini": Pace({BASELINE: 0.002}, 0.0002),
}
"""Until a target's screen has been run: about twice what two cores with AVX-512 take."""


def screen(targets: Sequence[str], peers: Sequence[str]) -> list[Cell]:
    """All methods of each target, then each peer beside plain decoding and `auto`."""
    cells = [Cell("screen", t, _screened(t)) for t in targets if t != OTHER_SIZE]
    beside = [replace(cell, rows=(BASELINE, "auto")) for cell in cells]
    return cells + [replace(cell, peers=(peer,)) for cell in beside for peer in peers]


def _screened(target: str) -> tuple[str, ...]:
    return tuple(row for row in methods(TARGETS[target]) if row not in (NARROW, COPY))


@dataclass(frozen=True)
class Choice:
    """What a target's screen decides. best: rows from the fastest on, plain and auto left out.
    beside: (peer, row) to measure further."""

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
        cell = Cell("grid", target, choice.rows, batch_size=batch_size, temperature=temperature)
        alone = batch_size > 1  # as the other engines' workers answer one prompt at a time
        yield cell if alone else replace(cell, peers=choice.peers, beside=choice.beside)

    return make


def _small(target: str) -> bool:
    return TARGETS[target].draft is None or target == "mini"


def _whole(target: str, choice: Choice) -> Iterator[Cell]:
    if _small(target):
        yield Cell("whole", target, choice.few)


def _warm(target: str, choice: Choice) -> Iterator[Cell]:
    yield Cell("grid", target, choice.warm, memory=WARM)


def _precision(target: str, choice: Choice) -> Iterator[Cell]:
    drafting = (row for row in ("sps-4", NARROW, COPY) if row in methods(TARGETS[target]))
    yield Cell(
        "precision", target, tuple(dict.fromkeys((BASELINE, *drafting, *choice.few))), "float16"
    )
    yield Cell("precision", target, choice.few, "float32")


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
    _precision,
    _rows(1, 1.0),
    _rows(4, 0.0),
    _whole,
    _crossover,
    _warm,
    _size,
    _rows(4, 1.0),
)
"""The first is what README shows."""


def rounds(cell: Cell) -> list[Cell]:
    """The grid has three, the first of them with the other engines; the other stages one."""
    count = ROUNDS if cell.stage == "grid" else 1
    later = replace(cell, peers=(), beside=())
    return [cell, *(replace(later, round=n) for n in range(2, count + 1))]


Work = Mapping[str, tuple[int, int]]
"""A stage -> the tokens that its prompts have, and the answers."""


def seconds(cell: Cell, pace: Pace, work: Work) -> float:
    """About how long a round of a cell takes."""
    read, turns = work[cell.stage]
    if halved(cell):
        read, turns = read // 2, turns // 2
    slower = (_DRAWN if cell.temperature else 1.0) * _BATCH[cell.batch_size]
    slower *= _SLOWER[cell.precision]
    named = [f"{peer}: {row}" for peer, row in cell.beside] or [
        f"{peer}: {row.method}" for peer in cell.peers for row in _peer_rows(peer, cell.target)
    ]
    rows = [*cell.rows, *named]
    each = sum(pace.of(row) * _weight(row) for row in rows) * slower
    writing = each * turns * cell.tokens * pace.written
    return _LOAD + writing + (len(rows) + len(cell.peers)) * read * pace.prompt


def _weight(row: str) -> float:
    """How much longer than plain decoding a trained drafter's row may take: an estimate."""
    return 4.0 if row in PAPERS else 1.4 if row in TRAINED else 1.0


def halved(cell: Cell) -> bool:
    """Whether half of the stage's questions are enough: at temperature 1 of trained drafters."""
    return cell.stage == OF_TRAINED and cell.temperature > 0


def _peer_rows(peer: str, target: str) -> list[Any]:
    from real_table.lineup import rows

    return rows(peer, TARGETS[target])


@dataclass(frozen=True)
class LeftOut:
    """A cell or a round of one, or rows of it, that the time doesn't allow; hours: of the whole."""

    cell: str
    rows: tuple[str, ...]
    hours: float


def settle(
    choices: Mapping[str, Choice], paces: Mapping[str, Pace], works: Mapping[str, Work], left: float
) -> tuple[list[Cell], list[LeftOut]]:
    """The cells that fit into the seconds that are left, round after round, and what doesn't."""
    wanted = list(grid(choices))
    speeds = {target: one.of(BASELINE) for target, one in {**GUESS, **paces}.items()}
    first = {cell.kind for make in ORDER[:1] for t, c in choices.items() for cell in make(t, c)}
    kept: dict[str, Cell] = {}

    def of_round(cell: Cell) -> float:
        return seconds(cell, paces.get(cell.target, GUESS[cell.target]), works[cell.target])

    def cost(cell: Cell | None) -> float:
        return sum(map(of_round, rounds(cell))) if cell else 0.0

    def widen(cell: Cell, widths: Sequence[tuple[int | None, bool]]) -> None:
        nonlocal left
        before = cost(kept.get(cell.kind))
        for wider in (narrowed(cell, *width) for width in widths):
            if before < cost(wider) <= before + left:
                left -= cost(wider) - before
                kept[cell.kind] = wider
                return

    for cell in sorted(wanted, key=lambda cell: (cell.kind not in first, speeds[cell.target])):
        widen(cell, _WIDTHS[1:] if cell.kind in first else _WIDTHS[-1:])
    for cell in wanted:
        widen(cell, _WIDTHS)
    fastest = min(choices, key=lambda target: speeds[target])
    chosen = [kept[cell.kind] for cell in wanted if cell.kind in kept]
    chosen.sort(key=lambda cell: (cell.stage, cell.target) != ("grid", fastest))
    in_turn = [rounds(c)[n] for n in range(ROUNDS) for c in chosen if n < len(rounds(c))]
    lacking = ((cell, missing(cell, kept.get(cell.kind))) for cell in wanted)
    left_out = [LeftOut(cell.kind, rows, cost(cell) / 3600) for cell, rows in lacking if rows]
    for cell in (cell for cell in in_turn if cell.round > 1):
        if rows := missing(kept[cell.kind], cell):
            left_out.append(LeftOut(cell.name, rows, of_round(kept[cell.kind]) / 3600))
    return in_turn, left_out


def narrowed(cell: Cell, count: int | None, beside: bool) -> Cell:
    """The cell with so many rows, with or without other engines."""
    cell = replace(cell, rows=cell.rows[:count])
    return cell if beside else replace(cell, peers=(), beside=())


def missing(whole: Cell, kept: Cell | None) -> tuple[str, ...]:
    """The rows of a cell that are not kept."""
    if kept is None:
        return named(whole)
    return tuple(row for row in named(whole) if row not in named(kept))


def named(cell: Cell) -> tuple[str, ...]:
    """A cell's rows, other engines' with their names."""
    return (*cell.rows, *(f"{peer}: {row}" for peer, row in cell.beside))


assert set(GUESS) == set(TARGETS) and PEERS
