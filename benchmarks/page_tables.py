"""The pages' tables, each made from its record as it stands; see pages.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from page_markdown import NONE, code, markdown, ranged, tokens_a_second
from page_values import DERIVED, Record

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import page_applications as applications
import tables as peers
from real_table import beside, conditions, stages
from real_table import page as real_page

Read = Callable[[str], dict[str, Any]]
DRAFTED = {
    "prompt lookup": "`pld`",
    "llma": "`llma`",
    "aggressive": "`sad`",
    "suffix trees": "`suffix`",
    "suffix automaton": "`sam`",
    "suffix automaton, corpus": "`sam` with a corpus",
    "retrieval, 100 MB": "`rest`, a datastore of 100 MB",
}
"""What the record of drafting calls each drafter, and its method."""
LENT = ("eagle2", "dflash_tree", "glide_cape")
"""Trained rows whose checkpoint has another method's card."""
PLAIN = ("plain", "autoregressive")


def copying(read: Read) -> str:
    """Tokens a pass by method and task; the task where most can be copied first."""
    methods = read("copying.json")["methods"]
    lengths = {
        method: {task: cell["mean_acceptance_length"] for task, cell in by.items()}
        for method, by in methods.items()
    }
    tasks = sorted(lengths["pld"], key=lambda task: (task == "overall", -lengths["pld"][task]))
    return markdown(
        ["", *tasks],
        [
            [name if name == "oracle" else code(name), *(f"{by[task]:.2f}" for task in tasks)]
            for name, by in lengths.items()
        ],
    )


def drafters(read: Read) -> str:
    """Every drafter's step at the first target, and its speed over plain decoding at each; the
    fastest at the last one first."""
    parts = {part["target"]["name"]: _greedy(part) for part in read("drafters.json")["parts"]}
    first, *_, last = parts.values()
    order = sorted(first, key=lambda method: -last[method]["speedup"] if method in last else 0.0)
    rows = [
        [code(method), f"{first[method]['mean_acceptance_length']:.2f}"]
        + [f"{ms:.2f}" for ms in first[method]["ms_per_step"].values()]
        + [_over_plain(part.get(method)) for part in parts.values()]
        for method in order
    ]
    return markdown(["", "tokens", "draft ms", "verify ms", "other ms", *parts], rows)


def _greedy(part: Record) -> dict[str, Record]:
    """A target's runs at temperature 0 by method."""
    runs = {run["method"]: run for run in part["runs"] if run["temperature"] == 0}
    return {method: run for method, run in runs.items() if method not in PLAIN}


def draft(read: Read) -> str:
    """What drafting alone costs."""
    rows = read("draft.json")["drafters"].items()
    return markdown(
        ["", "ms a step", "90 % of the steps under"],
        [
            [DRAFTED.get(name, name), f"{row['ms_per_step']:.2f}", f"{row['ms_p90']:.2f}"]
            for name, row in rows
        ],
    )


def perplexity(read: Read) -> str:
    """Formats by model: what fewer bits cost, and what the arithmetic does."""
    return markdown(
        ["model", "format", "MB a pass", "numbers", "weights", "as executed", "÷ weights"],
        [
            [
                row["model"],
                "its own blocks" if row["format"] == "blocks" else code(row["format"]),
                f"{row['mb']:.0f}",
                *(f"{row[name]:.2f}" for name in ("numbers", "weights", "executed")),
                f"{row['arithmetic']:.4f} ({row['low']:.4f}–{row['high']:.4f})",
            ]
            for row in read("perplexity.json")["rows"]
        ],
        2,
    )


def trained(read: Read) -> str:
    """Trained drafters by length, with the speed where one was measured."""
    record, speeds = read("trained.json"), read("speeds.json")["speeds"]
    rows = []
    for row in sorted(record["lengths"], key=lambda row: -record["lengths"][row]):
        speed = "not recorded"
        if row in speeds:
            speed = ranged(speeds[row]["ratio"], speeds[row]["interval"])
        held = [NONE if row in LENT else f"{n:.2f}" for n in record["cards"][row].values()]
        rows.append([code(row), f"{record['lengths'][row]:.2f}", speed, *held])
    head = ["", "tokens a pass", "speed over plain", "held out: estimated", "served"]
    return markdown(head, rows)


def online(read: Read, file: str = "online.json") -> str:
    """Block by block: what is accepted, and the speed beside plain decoding's."""
    record = read(file)
    rows, done, asked = [], 0, record["settings"]
    for block in record["blocks"]:
        done = min(done + asked["block"], asked["requests"])  # the last block may be a part of one
        rates = [block[arm]["accepted"] / block[arm]["drafted"] for arm in ("frozen", "learning")]
        speeds = _speeds(block)
        over = [speeds[arm] / speeds["plain"] for arm in ("frozen", "learning")]
        rows.append(
            [f"{done}", *(f"{r:.3f}" for r in rates), *(f"{s:.0f}" for s in speeds.values())]
            + [f"{each:.2f}" for each in over]
        )
    over = [DERIVED["online.json"](record)["over_plain"][arm] for arm in ("frozen", "learning")]
    rows.append(["all", *[""] * 5, *(f"{each:.2f}" for each in over)])
    head = ["requests", "accepted: frozen", "learning", "tokens/s: plain", "frozen", "learning"]
    return markdown([*head, "over plain: frozen", "learning"], rows)


def _speeds(block: Record) -> dict[str, float]:
    """Tokens a second of each arm."""
    arms = ("plain", "frozen", "learning")
    return {arm: block[arm]["tokens"] / block[arm]["seconds"] for arm in arms}


def auto(read: Read) -> str:
    """Each cell: the best fixed choice, and `auto`, in times plain decoding's speed."""
    rows = []
    for cell, own in read("auto.json")["cells"].items():
        target, batch, temperature, prompts = cell.split("/")
        best = own["best"]
        rows.append(
            [
                target,
                prompts,
                batch,
                temperature,
                "plain" if best in PLAIN else code(best),
                f"{own['speedup'][best]:.2f}",
                ranged(own["of_plain"], own["of_plain_ci95"]),
                ranged(own["of_best"], own["of_best_ci95"]),
            ]
        )
    head = ["target", "prompts", "batch", "T", "best fixed choice", "its speed", "`auto`", "of it"]
    return markdown(head, rows, 2)


def alignment_tables(file: str) -> dict[str, Callable[[Read], str]]:
    """The tables of one target's record."""
    return {
        "start": lambda read: _by_temperature(read(file)["from_nothing"]),
        "greedy": lambda read: _arms(read(file), "0.0"),
        "sampled": lambda read: _arms(read(file), "1.0"),
        "pairs": lambda read: _by_temperature(read(file)["pairs"]),
    }


def _by_temperature(rows: Mapping[str, Record]) -> str:
    cells = [[name, *(_length(by[t]) for t in ("0.0", "1.0"))] for name, by in rows.items()]
    return markdown(["", "T = 0", "T = 1"], cells)


def _length(cell: Record | None) -> str:
    """A mean acceptance length, and the interval of its ratio."""
    return ranged(cell["length"], cell["interval"]) if cell else NONE


def _arms(record: Record, temperature: str) -> str:
    arms = {tuple(name.split(", ")): by for name, by in record["arms"].items()}
    objectives, texts = (list(dict.fromkeys(key[i] for key in arms)) for i in (0, 1))
    rows = [
        [code(goal), *(_length(arms.get((goal, text), {}).get(temperature)) for text in texts)]
        for goal in objectives
    ]
    return markdown(["objective", *map(code, texts)], rows)


def passes(read: Read) -> str:
    """A pass by its tokens: ms, and times reading the weights once."""
    record = read("passes.json")
    sizes = [size for size in next(iter(record["backends"].values()))["ms"] if size != "32"]
    rows = [
        [code(name), f"{each['weight_bytes'] / 1e6:,.0f} MB", f"{each['reading_ms']:.0f}"]
        + [f"{each['ms'][size]:.0f} ({each['ratios'][size]:.2f})" for size in sizes]
        for name, each in record["backends"].items()
    ]
    return markdown(["", "weights", "reading", *(f"pass({size})" for size in sizes)], rows)


def step(read: Read) -> str:
    """A step's parts, and what the engine's own work is of it."""
    rows = [
        [f"{target}, {'plain' if name == 'autoregressive' else name}"]
        + [f"{parts[part]:.2f}" for part in ("draft", "verify", "other")]
        + [f"{parts['other_share']:.1%}".replace("%", " %")]
        for target, by in read("step.json")["steps"].items()
        for name, parts in by.items()
    ]
    return markdown(["", "draft ms", "pass ms", "other ms", "other"], rows)


def ladder(read: Read) -> str:
    """Engines with drafts that are always right: tokens/s, and times as fast foretoken is."""
    record = read("ladder.json")
    kinds = ["plain", *(k for k in record["weights_read_once"] if k != "plain"), "prompt lookup"]
    engines = list(dict.fromkeys(row["engine"] for row in record["rows"]))
    cells = {(row["engine"], row["kind"]): row for row in record["rows"]}
    rows = [[engine, *(_rung(cells[engine, kind]) for kind in kinds)] for engine in engines]
    free = record["weights_read_once"]
    last = [tokens_a_second(free[kind]) if kind in free else "" for kind in kinds]
    return markdown(["", *kinds], [*rows, ["weights read once a pass, drafting free", *last]])


def serving(read: Read) -> str:
    """Tokens a second of each server by its number of clients, the median of the rounds."""
    targets = read("serving.json")["targets"].items()
    return "\n\n".join(f"**{_served(name)}**\n\n{_loads(found)}" for name, found in targets)


def _served(name: str) -> str:
    return name.removesuffix(".gguf") if name.endswith(".gguf") else f"the bundled toy `{name}`"


def _loads(found: Record) -> str:
    rows = list(dict.fromkeys(row for cell in found["closed"].values() for row in cell))
    return markdown(
        ["clients", *(name if name == "llama.cpp" else code(name) for name in rows)],
        [
            [clients, *(_rate(cell[row]) if row in cell else "" for row in rows)]
            for clients, cell in found["closed"].items()
        ],
    )


def _rate(runs: list[Record]) -> str:
    return tokens_a_second(median(run["tokens_per_second"] for run in runs))


def _rung(row: Record) -> str:
    over = "" if row["engine"] == "foretoken" else f" ({row['foretoken_over_it']:.2f})"
    return tokens_a_second(row["tokens_per_second"]) + over


def other_engines(read: Read) -> str:
    return peers.markdown(read("peers.json"))


def other_engines_large(read: Read) -> str:
    """The same at 1.1b, where two engines at a time fill the machine."""
    names = ("peers-1.1b.json", "peers-1.1b-openvino.json", "peers-1.1b-llama.cpp.json")
    return "\n\n".join(peers.pair(read(name)) for name in names)


def acceptance(read: Read) -> str:
    """The bundled pair on held-out prompts; how many were left out, and why."""
    counts = ("prompts", "looping", "skipped")
    rows = read("acceptance.json")["by_task"].items()
    return markdown(
        ["task", "tokens a pass", "prompts", "left out: they loop", "too long"],
        [
            [task, f"{row['mean_acceptance_length']:.2f}", *(f"{row[name]}" for name in counts)]
            for task, row in rows
        ],
    )


def _over_plain(row: Record | None) -> str:
    """A row's speed over plain decoding; of plain decoding, and of no row, a dash."""
    if row is None or row["method"] in PLAIN:
        return NONE
    return ranged(row["speedup"], row["speedup_ci95"])


def _of_real(made: Callable[[Record], str]) -> Callable[[Read], str]:
    """A table of the record of real models, which may not be there yet."""

    def table(read: Read) -> str:
        try:
            record = read("real.json")
        except FileNotFoundError:
            return "*No table of real models is recorded yet.*"
        return made(record)

    return table


TABLES: dict[str, Callable[[Read], str]] = {
    "acceptance": acceptance,
    **{f"alignment-{name}": made for name, made in alignment_tables("alignment.json").items()},
    **{
        f"alignment-smollm2-{name}": made
        for name, made in alignment_tables("alignment-smollm2.json").items()
    },
    "auto": auto,
    "copying": copying,
    "draft": draft,
    "drafters": drafters,
    "ladder": ladder,
    "offloaded": applications.offloaded,
    "online": online,
    "online-smollm2": partial(online, file="online-smollm2.json"),
    "other-engines": other_engines,
    "other-engines-large": other_engines_large,
    "passes": passes,
    "perplexity": perplexity,
    "ralm": applications.ralm,
    "real": _of_real(real_page.best),
    "real-batches": _of_real(conditions.batches),
    "real-files": _of_real(conditions.files),
    "real-memory": _of_real(conditions.memory),
    "real-peers": _of_real(beside.everywhere),
    "real-precisions": _of_real(stages.precisions),
    "real-rows": _of_real(conditions.options),
    "real-screen": _of_real(stages.screen),
    "real-tasks": _of_real(conditions.tasks),
    "real-trained": _of_real(stages.trained),
    "real-warm": _of_real(conditions.warm),
    "seq2seq": applications.seq2seq,
    "serving": serving,
    "step": step,
    "trained": trained,
}
