"""What `auto` reaches by the clock of the best fixed choice: every method × length beside it.

In each cell plain decoding, every method at every length, and `auto` answer the same prompts, a
batch at a time, in turn and in a rotating order; what drafters know of earlier answers is forgotten
before each batch. Seconds are of decoding alone. A speed is the median over the batches.
Cells are written as they end, and those that the record has are kept. Example:

    python benchmarks/auto_oracle.py --list
    python benchmarks/auto_oracle.py --quick --cells smollm2-135m/1/0/tasks
    python benchmarks/auto_oracle.py --check --cells none
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence as Seq
from itertools import product
from pathlib import Path
from typing import Any

from auto import Wrong
from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.bench.record import BASELINE
from foretoken.drafters.auto import Auto
from foretoken.machine import cache_folder
from foretoken.progress import track

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
BEST, PLAIN, WRONG, ON_TOY = 0.95, 0.99, 0.98, 0.97


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


def measured(cell: str, given: Namespace) -> dict[str, Any]:
    """Each method's speed over plain decoding, and `auto`'s over the best fixed choice."""
    name, size, heat, kind = cell.split("/")
    batch, files = int(size), [_found(given.models, file) for file in MODELS[name]]
    first = LLM(files[0], max_num_seqs=batch)
    q4 = {"backend": "q4"} if name == PAIR else {}
    draft = LLM(files[1], **q4).model if files[1] else None
    wrong = (first.tokenizer.bos_token_id or 0) if kind == "wrong" else None
    llms = {
        key: LLM(
            first.model,
            tokenizer=first.tokenizer,
            max_num_seqs=batch,
            speculative_config=config,
        )
        for key, config in configs(draft, wrong).items()
    }
    editing = {"code_editing", "editing", "grammar"}
    prompts = [p for p in bundled() if kind != EDITING or p.task in editing]
    prompts = prompts[: given.batches * batch]
    asked = [first.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in prompts]
    own = SamplingParams(
        temperature=float(heat), max_tokens=given.max_tokens, ignore_eos=True, seed=0
    )
    logs: dict[str, list[float]] = {key: [] for key in llms}
    groups = [asked[i : i + batch] for i in range(0, len(asked), batch)]
    for llm in llms.values():  # compiled loops, caches of weights
        seconds(llm, groups[0], own)
    with track(cell, len(groups), True) as advance:
        for turn, group in enumerate(groups):
            order = list(llms)[turn % len(llms) :] + list(llms)[: turn % len(llms)]
            for key in order:
                logs[key].append(math.log(seconds(llms[key], group, own)))
            advance()
    return result(logs)


def _found(folder: Path, file: str | None) -> str | None:
    """A file in the folder, or a bundled model's name."""
    return file if file is None or not file.endswith(".gguf") else str(folder / file)


def seconds(llm: LLM, asked: Seq[Seq[int]], own: SamplingParams) -> float:
    """Of decoding; drafters know nothing of earlier answers."""
    shared = llm.engine.drafter.shared
    if shared is not None:
        shared.reset()
    llm.reset_stats()
    llm.generate(asked, own)
    stats = llm.stats
    return stats.draft_time + stats.verify_time + stats.other_time


def result(logs: dict[str, list[float]]) -> dict[str, Any]:
    """From the logarithms of seconds by method, a batch of prompts each."""
    plain = logs[BASELINE]
    speedups = {
        key: math.exp(statistics.median(p - mine for p, mine in zip(plain, own, strict=True)))
        for key, own in logs.items()
    }
    best = max((key for key in logs if key != AUTO), key=lambda key: speedups[key])
    return {
        "speedup": speedups,
        "best": best,
        "of_best": speedups[AUTO] / speedups[best],
        "of_plain": speedups[AUTO],
        "batches": len(logs[AUTO]),
    }


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as wanted; a cell that was not measured is not."""
    bad = [f"{cell} is not measured" for cell in CELLS if cell not in cells]
    for cell, own in cells.items():
        name, _, _, kind = cell.split("/")
        floor = WRONG if kind == "wrong" else ON_TOY if name == TOY else PLAIN
        if own["of_plain"] < floor:
            bad.append(f"{cell}: {own['of_plain']:.3f} of plain decoding, wanted {floor}")
        if kind != "wrong" and name != TOY and own["of_best"] < BEST:
            bad.append(f"{cell}: {own['of_best']:.3f} of {own['best']}, wanted {BEST}")
    return bad


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="those to measure, or none")
    parser.add_argument("--models", type=Path, default=cache_folder() / "models", help="GGUF files")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument(
        "--batches", type=int, default=24, help="of prompts in a cell (default: 24)"
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: 64)")
    parser.add_argument("--quick", action="store_true", help="six batches of prompts")
    parser.add_argument("--fresh", action="store_true", help="keep nothing of earlier runs")
    parser.add_argument("--check", action="store_true", help="fail unless all is as wanted")
    given = parser.parse_args()
    if given.list:
        print("\n".join(CELLS))
        return 0
    if unknown := {*given.cells} - {*CELLS, "none"}:
        parser.error(f"no such cells: {', '.join(sorted(unknown))}; --list names them")
    given.batches = 6 if given.quick else given.batches
    path = given.out / "auto_oracle.json"
    kept = json.loads(path.read_text("utf-8")) if path.is_file() and not given.fresh else {}
    cells: dict[str, dict[str, Any]] = kept.get("cells", {})
    for cell in (cell for cell in CELLS if cell in given.cells and cell not in cells):
        cells[cell] = measured(cell, given)
        print(cell, json.dumps(cells[cell]), flush=True)
        save("auto_oracle", given, {"cells": cells, "met": not missed(cells)})
    rows = [["target/batch/temperature/prompts", "auto/plain", "best fixed", "auto/best"]]
    for cell, own in cells.items():
        best = f"{own['best']} {own['speedup'][own['best']]:.3f}"
        rows.append([cell, f"{own['of_plain']:.3f}", best, f"{own['of_best']:.3f}"])
    table(rows)
    bad = missed(cells)
    print(f"\nNot as wanted: {'; '.join(bad) or 'nothing'}.")
    return 1 if bad and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
