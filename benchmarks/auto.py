"""What `auto` reaches by the clock of the best fixed choice: every method × length beside it.

In each cell plain decoding, every method at every length, and `auto` answer the same prompts, a
batch at a time, in turn and in a rotating order. Before each batch drafters forget earlier answers,
and `auto` what it knows of acceptance; on the toy, whose answers take 40 ms, that stays, as in a
server. Seconds are of decoding alone; where a target's batches are answered several times, the
median counts. A speed is that over all batches together, with a bootstrap interval over them.

No prompt is one of those from which auto's first beliefs come (real.py's screen): tasks are other
Spec-Bench questions, six tasks in turn; editing is requests to edit code and to correct texts. The
toy, which can't answer these, has the bundled prompts. Each batch is written as it ends, and the
same command goes on where it was, with the same model files. Example:

    python benchmarks/auto.py --list
    FORETOKEN_DATA=folder nice python benchmarks/auto.py --models folder --minutes 25
    python benchmarks/auto.py --check --cells none      (only what is not as wanted)
"""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from real_table import prompts as real
from shared import bundled, exit_with, options, save, stamp, table

from foretoken import LLM, SamplingParams
from foretoken.access import Access
from foretoken.bench.measure.bootstrap import interval
from foretoken.bench.record import BASELINE
from foretoken.bench.suites.suite import Prompt
from foretoken.drafters.auto import Auto
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.files import fingerprint
from foretoken.machine import cache_folder
from foretoken.models import gguf
from foretoken.models.load import find
from foretoken.progress import track
from foretoken.protocols import BaseDrafter, Shared
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, chains

SMALL, PAIR, TOY = "smollm2-135m", "qwen2.5-coder-1.5b", "mini"
MODELS = {
    SMALL: ("smollm2-135m-instruct.gguf", None),
    PAIR: ("qwen2.5-coder-1.5b-instruct.gguf", "qwen2.5-coder-0.5b-instruct.gguf"),
    TOY: ("mini", "mini-draft"),
}
AUTO = "auto"
EDITING = "editing"
CELLS = (
    *("/".join(map(str, c)) for c in product((SMALL, PAIR), (1, 4), (0, 1), ("tasks", EDITING))),
    *("/".join(map(str, c)) for c in product((SMALL, PAIR), (1, 4), (0,), ("wrong",))),
    *("/".join(map(str, c)) for c in product((TOY,), (1, 4), (0, 1), ("tasks",))),
)
"""target/batch/temperature/prompts; in "wrong" the drafters propose what is never written."""
COPIED, COMPUTED = (2, 4, 8, 16), (1, 2, 3, 4, 6)
BATCHES = 24
ANSWERS = {SMALL: 96, PAIR: 48, TOY: 96}
"""A cell has at most so many batches, and batches of at most so many answers."""
ROUNDS = {SMALL: 3, PAIR: 1, TOY: 3}
"""How often each batch is answered: where a pass takes a few milliseconds, one round is too short
to tell two methods apart that differ by three percent."""
TOKENS = 64
"""Of an answer, where nothing else is asked for; of records that don't tell, too."""
BEST, PLAIN, WRONG, ON_TOY = 0.95, 0.99, 0.98, 0.97


class Wrong(BaseDrafter):
    """Proposes a token that is never written; as one that copies, or as one that computes."""

    def __init__(self, token: int, follows: bool) -> None:
        self.token, self.follows = token, follows

    def bind(self, access: Access) -> None:
        self._device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return chains([[self.token] * min(8, budget) for budget in budgets], self._device)


def configs(draft: Any, wrong: int | None) -> dict[str, dict[str, Any]]:
    """Plain decoding, the fixed choices and `auto`, by name."""
    found: dict[str, dict[str, Any]] = {BASELINE: {"method": BASELINE}}
    if wrong is not None:
        parts = [Wrong(wrong, True), Wrong(wrong, False)]
        return {**found, AUTO: {"method": Auto(parts, names=["copies", "computes"])}}
    for name, n in product(("suffix", "pld"), COPIED):
        found[f"{name}-{n}"] = {"method": name, "num_speculative_tokens": n}
    given = {} if draft is None else {"model": draft}
    if draft is not None:
        for n in COMPUTED:
            found[f"sps-{n}"] = {"method": "sps", **given, "num_speculative_tokens": n}
        found["suffix+sps"] = {"method": "suffix+sps", **given}
    return {**found, AUTO: {"method": AUTO, **given}}


def prompts_of(cell: str) -> list[list[Prompt]]:
    """The cell's prompts, a batch each, all full."""
    name, size, _, kind = cell.split("/")
    if name == TOY:
        found = bundled()
    elif kind == EDITING:
        of_task: dict[str, list[Prompt]] = {}
        for prompt in real.own().prompts:
            of_task.setdefault(prompt.task, []).append(prompt)
        rest = [
            p for task in of_task.values() for i, p in enumerate(task) if i not in real.SCREENED
        ]
        found = rest + [p for p in bundled() if p.task == "grammar"]
    else:
        tasks: dict[str, list[Prompt]] = {}
        for prompt in real.official().prompts:
            tasks.setdefault(prompt.task, []).append(prompt)
        places = [i for i in range(max(map(len, tasks.values()))) if i % real.EVERY]
        found = [task[i] for i in places for task in tasks.values() if i < len(task)]
    groups = [found[i : i + int(size)] for i in range(0, len(found), int(size))]
    most = min(BATCHES, ANSWERS[name] // int(size))
    return [group for group in groups if len(group) == int(size)][:most]


class Lineup:
    """A cell's methods, loaded."""

    def __init__(self, cell: str, models: Path) -> None:
        name, size, heat, kind = cell.split("/")
        files = [_found(models, file) for file in MODELS[name]]
        first = LLM(files[0], max_num_seqs=int(size))
        q4 = {"backend": "q4"} if name == PAIR else {}
        draft = LLM(files[1], **q4).model if files[1] else None
        wrong = (first.tokenizer.bos_token_id or 0) if kind == "wrong" else None
        self._llms = {
            key: LLM(
                first.model,
                tokenizer=first.tokenizer,
                max_num_seqs=int(size),
                speculative_config=config,
            )
            for key, config in configs(draft, wrong).items()
        }
        self._heat, self._first, self._warm = float(heat), first, False
        self._known = texts if name == TOY else everything

    def seconds(self, group: Seq[Prompt], turn: int, tokens: int) -> dict[str, float]:
        """Of each method, in an order that rotates with the turn."""
        asked = [self._first.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in group]
        own = SamplingParams(temperature=self._heat, max_tokens=tokens, ignore_eos=True, seed=turn)
        if not self._warm:  # compiled loops, caches of weights
            for llm in self._llms.values():
                seconds(llm, asked, own, self._known)
            self._warm = True
        names = list(self._llms)
        order = names[turn % len(names) :] + names[: turn % len(names)]
        return {key: seconds(self._llms[key], asked, own, self._known) for key in order}


def _found(folder: Path, file: str | None) -> str | None:
    """A file in the folder, or a bundled model's name."""
    return file if file is None or not file.endswith(".gguf") else str(folder / file)


def files_of(target: str, models: Path) -> list[str]:
    """Fingerprints of the target's files and its drafter's."""
    files = [_found(models, file) for file in MODELS[target]]
    return [fingerprint(*gguf.files_of(find(file))) for file in files if file]


def everything(llm: LLM) -> Iterable[Shared | None]:
    """What a drafter knows of earlier answers."""
    return [llm.engine.drafter.shared]


def texts(llm: LLM) -> Iterable[Shared | None]:
    """The same, but for what `auto` knows of its parts' acceptance."""
    drafter = llm.engine.drafter
    parts = drafter.drafters if isinstance(drafter, Auto) else [drafter]
    return [part.shared for part in parts]


def seconds(
    llm: LLM,
    asked: Seq[Seq[int]],
    own: SamplingParams,
    known: Callable[[LLM], Iterable[Shared | None]],
) -> float:
    """Of decoding, once what is known is forgotten."""
    for shared in known(llm):
        if shared is not None:
            shared.reset()
    llm.reset_stats()
    llm.generate(asked, own)
    return llm.stats.decode_time


def result(logs: dict[str, list[float]], batches: int, rounds: int) -> dict[str, Any]:
    """From the logarithms of seconds by method, round after round of so many batches."""
    spent = {key: _spent(own, batches) for key, own in logs.items()}
    speedups = {key: float(spent[BASELINE].sum() / own.sum()) for key, own in spent.items()}
    best = max((key for key in logs if key != AUTO), key=lambda key: speedups[key])
    return {
        "speedup": speedups,
        "best": best,
        "of_best": speedups[AUTO] / speedups[best],
        "of_best_ci95": _ends(spent[best], spent[AUTO]),
        "of_plain": speedups[AUTO],
        "of_plain_ci95": _ends(spent[BASELINE], spent[AUTO]),
        "batches": len(logs[AUTO]),
        "wanted": batches * rounds,
        "log_seconds": logs,
    }


def _spent(logs: Seq[float], batches: int) -> Any:
    """[batches] the seconds of each batch, the median of its rounds."""
    places = range(min(batches, len(logs)))
    return np.exp([median(logs[place::batches]) for place in places])


def _ends(others: Any, own: Any) -> tuple[float, float] | None:
    """The 95 % interval of a speed in times another's, by the seconds [batches] of both."""
    pairs = np.stack((others, own), 1)
    return interval(pairs, lambda sums: sums[..., 0] / sums[..., 1], tail=0.025, resamples=2_000)


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as wanted; a cell that was not measured, or not wholly, is not."""
    bad = [f"{cell} is not measured" for cell in CELLS if cell not in cells]
    for cell, own in cells.items():
        name, _, _, kind = cell.split("/")
        floor = WRONG if kind == "wrong" else ON_TOY if name == TOY else PLAIN
        if own["batches"] < own["wanted"]:
            bad.append(f"{cell}: {own['batches']} of {own['wanted']} batches are measured")
        if own["of_plain"] < floor:
            bad.append(f"{cell}: {own['of_plain']:.3f} of plain decoding, wanted {floor}")
        if kind != "wrong" and name != TOY and own["of_best"] < BEST:
            bad.append(f"{cell}: {own['of_best']:.3f} of {own['best']}, wanted {BEST}")
    return bad


def measure(cell: str, cells: dict[str, dict[str, Any]], given: Namespace, until: float) -> None:
    """Go on with a cell until it has all batches, or as many as are given, or the time has come;
    write each batch."""
    target = cell.split("/")[0]
    rounds = ROUNDS[target]
    batches = prompts_of(cell)
    wanted = (batches * rounds)[: given.batches]
    logs: dict[str, list[float]] = cells.get(cell, {}).get("log_seconds", {})
    done = len(logs.get(AUTO, ()))
    if done >= len(wanted) or perf_counter() >= until:
        return
    files, lineup = files_of(target, given.models), Lineup(cell, given.models)
    before = cells.get(cell, {"environments": []}).get("environments", [None])  # None: not told
    environments = [*before, stamp()]
    with track(cell, len(wanted) - done, True) as advance:
        for turn in range(done, len(wanted)):
            for key, own in lineup.seconds(wanted[turn], turn, given.max_tokens).items():
                logs.setdefault(key, []).append(math.log(own))
            cells[cell] = {
                **result(logs, len(batches), rounds),
                "files": files,
                "environments": environments,
            }
            keep(given, cells)
            advance()
            if perf_counter() >= until:
                return


def show(cells: dict[str, dict[str, Any]]) -> None:
    rows = [["target/batch/temperature/prompts", "auto/plain", "95 %", "best fixed", "auto/best"]]
    for cell, own in cells.items():
        best = f"{own['best']} {own['speedup'][own['best']]:.3f}"
        ends = "-".join(f"{end:.3f}" for end in own["of_plain_ci95"] or ())
        rows.append([cell, f"{own['of_plain']:.3f}", ends, best, f"{own['of_best']:.3f}"])
    table(rows)


def keep(given: Namespace, cells: dict[str, dict[str, Any]]) -> None:
    found = {"max_tokens": given.max_tokens, "cells": cells, "met": not missed(cells)}
    save("auto", given, found)


def begun(given: Namespace) -> dict[str, dict[str, Any]]:
    """The record's cells. Raises `ForetokenError` where others are to be measured beside them
    whose answers have another length, or of the same target by other files."""
    path = given.out / "auto.json"
    if given.fresh or not path.is_file():
        return {}
    record = json.loads(path.read_text("utf-8"))
    tokens = record.get("max_tokens", TOKENS)
    cells: dict[str, dict[str, Any]] = record["cells"]
    if set(given.cells) == {"none"}:
        return cells
    if tokens != given.max_tokens:
        raise ForetokenError(
            f"The answers in {path} have {tokens} tokens, and {given.max_tokens} are asked for; "
            f"give --max-tokens {tokens}, or --fresh, which keeps none of its cells."
        )
    for target in dict.fromkeys(cell.split("/")[0] for cell in given.cells):
        known = [own.get("files") for cell, own in cells.items() if cell.split("/")[0] == target]
        if None in known:
            raise ForetokenError(
                f"{path} doesn't say by which files {target} was measured; give --fresh, which "
                "keeps none of its cells."
            )
        if known and known != [files_of(target, given.models)] * len(known):
            raise ForetokenError(
                f"{target} in {path} was measured by other files than those in {given.models}; "
                "give their folder as --models, or --fresh, which keeps none of its cells."
            )
    return cells


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="those to measure, or none")
    parser.add_argument("--models", type=Path, default=cache_folder() / "models", help="GGUF files")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--batches", type=int, help="of a cell, all rounds together (default: all)")
    parser.add_argument("--max-tokens", type=int, default=TOKENS, help="of an answer (64)")
    parser.add_argument("--quick", action="store_true", help="six batches of a cell")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after these")
    parser.add_argument("--fresh", action="store_true", help="keep nothing of earlier runs")
    parser.add_argument("--check", action="store_true", help="fail unless all is as wanted")
    given = parser.parse_args()
    if given.list:
        print("\n".join(CELLS))
        return 0
    if unknown := {*given.cells} - {*CELLS, "none"}:
        parser.error(f"no such cells: {', '.join(sorted(unknown))}; --list names them")
    given.batches = 6 if given.quick else given.batches
    cells = begun(given)
    until = perf_counter() + 60 * given.minutes
    for cell in (cell for cell in CELLS if cell in given.cells):
        measure(cell, cells, given, until)
    show(cells)
    bad = missed(cells)
    print(f"\nNot as wanted: {'; '.join(bad) or 'nothing'}.")
    return 1 if bad and given.check else 0


if __name__ == "__main__":
    exit_with(main)
