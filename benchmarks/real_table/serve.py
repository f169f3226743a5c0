"""Serves one cell, prompt by prompt, into a folder that any interruption leaves usable.

cell.json says what the folder holds, and where each piece of it was served; samples.jsonl has our
answers and peers.jsonl the other engines'; costs.jsonl what passes cost, measured between the
prompts; clock.jsonl the seconds spent. Methods that keep something from prompt to prompt keep it in
memory-N, after N units.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch
from lineup import PLAIN, Row
from measure import PAUSE, ended
from protocol import Failed, Worker

from foretoken.bench.measure.environment import environment
from foretoken.bench.plan import Plan, Unit, seed_of
from foretoken.bench.record import BASELINE, Answer
from foretoken.bench.run.resume import Samples, answer_keys
from foretoken.bench.run.runner import Runner
from foretoken.bench.suites.suite import Prompt
from foretoken.files import write_json
from foretoken.models.load import load_model
from real_table.cells import OF_TRAINED, STORED, WARM, Cell
from real_table.engines import checkpoint, drafter, started
from real_table.lineup import DRAFT, DRAFTERS, INT8, LYING, TARGETS, TRAINED, methods, rows

CELL, PEERS, COSTS, CLOCK = "cell.json", "peers.jsonl", "costs.jsonl", "clock.jsonl"
HOLD, RESTING = "pause", "resting"
CONTEXT = 2048
_BACKENDS = {STORED: "auto", "float16": "half", "float32": "panels"}
"""`auto` multiplies blocks as they lie, where the processor can."""
_WARM_UP_TOKENS = 8
_NO_END = -1
"""For a model without an end-of-text."""
_COST_ROUNDS = 8
"""In which passes are timed over a whole cell, beside two at the beginning of each piece."""


@dataclass
class Bench:
    """Where models and answers are. drafters: the folder of trained ones, by default the zoo."""

    models: Path
    work: Path
    threads: int
    until: float | None = None
    drafters: Path | None = None
    longest: float = field(default=0.0, init=False)

    def folder(self, cell: Cell) -> Path:
        return self.work / cell.name

    def rest(self) -> None:
        """Wait while somebody needs the machine, with a mark that says that it is free."""
        mark = self.work / RESTING
        while (self.work / HOLD).exists():
            mark.touch()
            sleep(1)
        mark.unlink(missing_ok=True)

    def left(self) -> bool:
        """Whether a unit as long as the longest so far would end in time."""
        return self.until is None or perf_counter() + self.longest < self.until


def serve(cell: Cell, prompts: Sequence[Prompt], bench: Bench) -> bool:
    """Serve what the cell's folder lacks; whether it is complete. Raises `ForetokenError`."""
    folder = bench.folder(cell)
    folder.mkdir(parents=True, exist_ok=True)
    began = perf_counter()
    torch.set_num_threads(bench.threads)
    with ExitStack() as stack:
        runner = _runner(cell, bench)
        runner.warm_up(prompts[0])
        end = min(runner.plain.engine.eos_ids, default=_NO_END)
        workers = stack.enter_context(started(cell, bench, folder, end))
        served = _Serving(cell, runner, workers, folder)
        todo = served.open(prompts)
        served.warm_up(prompts[0])
        append(folder / CLOCK, [{"began": _now(), "seconds": perf_counter() - began}])
        return served.go(todo, bench)


class _Serving:
    """A cell that is loaded: its methods, the other engines' workers, its folder."""

    def __init__(
        self, cell: Cell, runner: Runner, workers: dict[str, Worker], folder: Path
    ) -> None:
        self.cell, self.runner, self.workers, self.folder = cell, runner, workers, folder
        self.samples = Samples(folder)
        self.units: list[Unit] = []
        self.peers = [
            row
            for peer in cell.peers
            if peer in workers
            for row in rows(peer, TARGETS[cell.target])
            if not cell.beside or (peer, row.method) in cell.beside
        ]
        plain = [Row(peer, PLAIN) for peer in workers]
        self._first_only = [row for row in plain if row not in self.peers]
        self._turn = 0

    def open(self, prompts: Sequence[Prompt]) -> list[Unit]:
        """Write what the folder will hold; the units that it doesn't have yet."""
        kept, skipped = self.runner.fitting(prompts)
        self.units = list(units(kept, self.cell))
        warm = self.cell.memory == WARM
        done = self._resumed(_remembered(self.folder) if warm else len(self.units))
        if warm:
            self._recall(done)
        model = self.runner.plain.model
        about = {
            "cell": self.cell.to_json(),
            "environment": environment(),
            "earlier": _environments(self.folder) if done else [],
            "backend": model.backend,
            "parameters": model.parameters,
            "units": len(self.units),
            "skipped": skipped,
            "not_run": {**self.runner.not_run},
            "versions": {peer: worker.versions for peer, worker in self.workers.items()},
            "configs": _said(_table(self.cell), self.cell),
            "peer_rows": [[row.engine, row.kind, row.note, row.options] for row in self.peers],
        }
        write_json(self.folder / CELL, about)
        return self.units[done:]

    def warm_up(self, prompt: Prompt) -> None:
        """The other engines' first answers, which don't count."""
        ids = self.runner.input_ids(replace(prompt, turns=prompt.turns[:1]), [])
        for row in [*self.peers, *self._first_only]:
            with suppress(Failed):  # which the first answer that counts says
                self.workers[row.engine].ask(row.method, ids, _WARM_UP_TOKENS)

    def _resumed(self, most: int) -> int:
        """How many units are complete, of both kinds of answers; the rest is cut off."""
        name, dtype = self.runner.target["name"], self.runner.target["dtype"]
        keys = [answer_keys(unit, self.runner.labels, name, dtype) for unit in self.units]
        said = read_lines(self.folder / PEERS)
        groups = {unit.group for unit in self.units}
        if self.peers:
            groups = {line["group"] for line in said}
            most = min(
                most,
                next(
                    (n for n, u in enumerate(self.units) if u.group not in groups), len(self.units)
                ),
            )
        done = self.samples.resume(0, keys[:most])
        complete = {unit.group for unit in self.units[:done]}
        if said:
            lines = [line for line in said if line["group"] in complete]
            (self.folder / PEERS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return done

    def go(self, todo: Sequence[Unit], bench: Bench) -> bool:
        """Serve until all is served or the time is over; what passes cost is measured between."""
        meter, piece = self.runner.meter(self._context()), _now()
        every = max(1, len(self.units) // _COST_ROUNDS)
        meter.round()  # the first doesn't count
        for number, unit in enumerate(todo):
            bench.rest()
            if not bench.left():
                return False
            began = perf_counter()
            if number % every == 0:
                meter.round()
                append(self.folder / COSTS, [{"piece": piece, **meter.costs()}])
            self._serve(unit)
            took = perf_counter() - began
            bench.longest = max(bench.longest, took)
            append(self.folder / CLOCK, [{"unit": unit.group, "seconds": took}])
        return True

    def _context(self) -> int:
        """Tokens before those of a pass in the middle of an answer, in the mean."""
        prompts = [prompt for unit in self.units for prompt in unit.prompts]
        read = sum(len(self.runner.input_ids(prompt, [])) for prompt in prompts)
        return read // len(prompts) + self.cell.tokens // 2

    def _serve(self, unit: Unit) -> None:
        answers = self.runner.serve(unit)
        append(self.folder / PEERS, list(self._beside(unit, answers)))
        self.samples.add(answers)
        if self.cell.memory == WARM:
            self._remember()

    def _beside(self, unit: Unit, answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
        """The other engines' answers to the same token ids, in an order that rotates."""
        [prompt] = unit.prompts if self.peers else [None]
        plain = [a for a in answers if a.method == BASELINE]
        if prompt is None or any(a.error is not None for a in plain):
            return
        for turn in range(len(prompt.turns)):
            ids = self.runner.input_ids(prompt, [a.text for a in plain[:turn]])
            self._turn += 1
            at = self._turn % len(self.peers)
            for row in [*self.peers[at:], *self.peers[:at], *self._first_only]:
                said = self._asked(row, ids, seed_of(self.cell.round, prompt.id, turn))
                yield {
                    "group": unit.group,
                    "id": prompt.id,
                    "task": prompt.task,
                    "turn": turn,
                    "engine": row.engine,
                    "method": row.method,
                    **said,
                }

    def _asked(self, row: Row, ids: list[int], seed: int) -> dict[str, Any]:
        """One answer. first: seconds of the first token, which only plain decoding is asked for,
        and nothing else where that is no row of the cell."""
        worker, drawn = self.workers[row.engine], dict[str, float]()
        sleep(PAUSE)
        if self.cell.temperature:
            drawn = {"temperature": self.cell.temperature, "seed": seed}
        try:
            first = worker.ask(row.method, ids, 1, **drawn)[1] if row.kind == PLAIN else None
            if row in self._first_only:
                return {"token_ids": None, "first": first, "whole": None, "error": None}
            text, whole = worker.ask(row.method, ids, self.cell.tokens, **drawn)
        except Failed as error:
            return {"error": str(error)}
        tokens = _up_to(text, self.runner.plain.engine.eos_ids, self.cell.tokens)
        return {"token_ids": tokens, "first": first, "whole": whole, "error": None}

    def _remember(self) -> None:
        """Keep what methods have learned from the units so far."""
        done = len(_groups(self.samples.answers))
        unfinished = self.folder / "memory-unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for label, shared in self._shared():
            shared.save(unfinished / label)
        unfinished.rename(self.folder / f"memory-{done}")
        for old in self.folder.glob("memory-*"):
            if old.name != f"memory-{done}":
                shutil.rmtree(old)

    def _recall(self, done: int) -> None:
        for label, shared in self._shared() if done else ():
            shared.load(self.folder / f"memory-{done}" / label)

    def _shared(self) -> Iterator[tuple[str, Any]]:
        for label, llm in self.runner.llms.items():
            if llm.engine.drafter.shared is not None:
                yield label, llm.engine.drafter.shared


def units(prompts: Sequence[Prompt], cell: Cell) -> Iterator[Unit]:
    """What is served together. Tasks are mixed, as in serving: no task has sixteen prompts; those
    of one turn are apart from those of two, so that no batch runs half empty."""
    by_turns: dict[int, list[Prompt]] = {}
    for prompt in prompts:
        by_turns.setdefault(len(prompt.turns) if cell.batch_size > 1 else 0, []).append(prompt)
    for alike in by_turns.values():
        for at in range(0, len(alike), cell.batch_size):
            yield Unit(tuple(alike[at : at + cell.batch_size]), cell.batch_size, cell.temperature)


def _runner(cell: Cell, bench: Bench) -> Runner:
    """The cell's methods around one copy of the target and one of its draft model."""
    target, table = TARGETS[cell.target], _table(cell)
    drafts = _Drafts(cell, bench)
    configs = {row: drafts.filled(table[row]) for row in cell.rows if row != BASELINE}
    plan = Plan(
        model=checkpoint(target.model, bench),
        name=cell.target,
        methods=configs,
        backend=_BACKENDS[cell.precision],
        temperatures=(cell.temperature,),
        batch_sizes=(cell.batch_size,),
        max_tokens=cell.tokens,
        max_model_len=CONTEXT,
        seed=cell.round,
        warm=cell.memory == WARM,
        lenient=True,
    )
    return Runner(plan)


def _table(cell: Cell) -> dict[str, dict[str, Any]]:
    """Every row's config; the trained drafters' only in their stage."""
    return {**methods(TARGETS[cell.target]), **(TRAINED if cell.stage == OF_TRAINED else {})}


_SIZE = "draft_vocab_size"  # which a model is loaded with


class _Drafts:
    """The draft model, loaded once for all methods, and again for a row that has it otherwise."""

    def __init__(self, cell: Cell, bench: Bench) -> None:
        self._target, self._bench = TARGETS[cell.target], bench
        self._backends = _draft_backends(cell)
        self._loaded: dict[tuple[str, int | None], Any] = {}

    def filled(self, config: dict[str, Any]) -> dict[str, Any]:
        """A row's config with the model in the place of its name."""
        if (named := config.get("model")) is None:
            return config
        if named in DRAFTERS:
            return {**config, "model": str(drafter(named, self._bench.drafters))}
        others = {key: value for key, value in config.items() if key != _SIZE}
        return {**others, "model": self._load(named, config.get(_SIZE))}

    def _load(self, named: str, size: int | None) -> Any:
        if (named, size) not in self._loaded:
            assert self._target.draft is not None
            source, backend = checkpoint(self._target.draft, self._bench), self._backends[named]
            model = load_model(source, backend=backend, draft_vocab_size=size)
            self._loaded[named, size] = model
        return self._loaded[named, size]


def _draft_backends(cell: Cell) -> dict[str, str]:
    """How a draft model is loaded by each of its names."""
    target = _BACKENDS[cell.precision]
    return {DRAFT: "q4" if cell.precision == STORED else target, LYING: target, INT8: "int8"}


def _said(table: dict[str, dict[str, Any]], cell: Cell) -> dict[str, dict[str, Any]]:
    """The rows' configs as a user would give them."""
    return {row: _given(table[row], cell) for row in cell.rows}


def _given(config: dict[str, Any], cell: Cell) -> dict[str, Any]:
    if config.get("model") not in (DRAFT, LYING, INT8):  # none, or a trained one's own name
        return config
    backend = _draft_backends(cell)[config["model"]]
    return {**config, "model": TARGETS[cell.target].draft, "draft_backend": backend}


def _up_to(text: Sequence[int], ends: Collection[int], most: int) -> list[int]:
    """Up to and with the first end of text, of which a model may have several."""
    first = next((token for token in text if token in ends), min(ends, default=_NO_END))
    return ended(text, first, most)


def _remembered(folder: Path) -> int:
    """After how many units the methods' memory was kept last."""
    kept = [path.name.partition("-")[2] for path in folder.glob("memory-*")]
    return max((int(count) for count in kept if count.isdigit()), default=0)


def _environments(folder: Path) -> list[dict[str, Any]]:
    """Of all pieces that were served into the folder, in order."""
    path = folder / CELL
    about = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return [*about.get("earlier", []), about["environment"]] if about else []


def _groups(answers: Sequence[Answer]) -> list[str]:
    return list(dict.fromkeys(a.group for a in answers))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; none where there is no file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def append(path: Path, lines: Sequence[Any]) -> None:
    """Add lines; half a line that an interruption left is cut off first."""
    with path.open("a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
