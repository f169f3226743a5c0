"""Perfect drafts: a small model drafts for its own inflation, and only the implementation counts.

The 260 thousand parameters of llama2.c's stories-260K draft for the same model inflated to 181
million (width 1024, 16 layers, 16/4 heads, feed-forward 2816, float32). Every draft is right, so
tokens per second show the engine alone: plainly, with 4, 7 and 12 tokens drafted at a
time, and with prompt lookup. Greedy, 96 tokens after "Once upon a time".

Engines are those of benchmarks/peers, asked in turn, round after round; a ratio is the median over
rounds of the two engines' ratio in the same round. Only decoding counts, as in peers/measure.py.
The limit is printed too: weights read once a pass at the bandwidth of the same run, drafting
free. The model is looked for in the folder of FORETOKEN_DATA. Example:

    FORETOKEN_DATA=folder python benchmarks/ladder.py --check
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import measure
from checkpoints import home, once
from environments import libraries
from lineup import ENGINES, LOOKUP, PLAIN, Row, plain
from llama2c import convert
from run import PEERS, installed, started
from shared import RESULTS, exit_with, table

from foretoken.bench.measure.environment import environment
from foretoken.bench.suites.data import folder
from foretoken.errors import ForetokenError
from foretoken.files import write_json
from foretoken.progress import track
from foretoken.zoo.inflate import inflate
from foretoken.zoo.shape import Shape

FILE = "weights/stories260k/stories260K.bin"
SHAPE = Shape(1024, 16, 16, 4, 2816, 512)
PROMPT = [1, 403, 407, 261, 378]  # "Once upon a time" after the mark of a beginning
END = 2
TOKENS = 96
LENGTHS = (4, 7, 12)
READ_BYTES = 512 * 2**20
WANTED = {PLAIN: 24, "γ=4": 100, "γ=7": 130, "γ=12": 170}
"""Tokens/s on the machine where llama.cpp does 24, 90, 107 and 125."""


@dataclass(frozen=True)
class Limit:
    """How many times another engine's speed is wanted."""

    kind: str
    engine: str
    ratio: float


LIMITS = (
    Limit(PLAIN, "llama.cpp", 1.0),
    Limit("γ=12", "llama.cpp", 1.3),
    Limit("γ=12", "transformers", 2.5),
)


def drafted(engine: str, length: int) -> Row:
    """The row of an engine that drafts so many tokens at a time, always."""
    options: dict[str, dict[str, Any]] = {
        "foretoken": {"method": "sps", "num_speculative_tokens": length},
        "transformers": {
            "assisted": True,
            "num_assistant_tokens": length,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        },
        "openvino": {"drafts": "model", "num_assistant_tokens": length},
        "llama.cpp": {
            "--spec-type": "draft-simple",
            "--spec-draft-n-max": str(length),
            "--spec-draft-p-min": "0",
        },
    }
    return Row(engine, f"γ={length}", "", options[engine])


def lineup(engines: list[str]) -> list[Row]:
    """Every engine with every kind; plain decoding and prompt lookup as in peers/lineup.py."""
    from lineup import ROWS

    shared = [r for r in ROWS if r.engine in engines and r.kind in (PLAIN, LOOKUP) and not r.note]
    return shared + [drafted(engine, length) for length in LENGTHS for engine in engines]


def models() -> tuple[Path, Path]:
    """Target and drafter as checkpoint folders, made once."""
    data = folder()
    if data is None or not (data / FILE).is_file():
        raise ForetokenError(
            f"There is no {FILE} in the data folder; name the folder that holds it in "
            "FORETOKEN_DATA."
        )
    made = home() / "ladder"
    draft = once(made / "draft", lambda out: convert(data / FILE, out))
    return once(made / "target", lambda out: inflate(draft, out, SHAPE)), draft


def reading() -> float:
    """GB/s at which memory is read now: an array larger than any cache, summed."""
    array = torch.ones(READ_BYTES // 4)
    began = perf_counter()
    array.sum()
    return READ_BYTES / (perf_counter() - began) / 1e9


def run(given: argparse.Namespace, results: dict[str, Any]) -> dict[Row, measure.Answer]:
    """Every row's rounds; what is left out and the bandwidth are written into `results`."""
    pair = models()
    engines = ["foretoken", *(name for name in given.peers if name not in results["left_out"])]
    terms = {
        "threads": given.threads,
        "eos": END,
        "server": str(libraries() / "llama-server"),
        "context": 256,
    }
    rows, speeds = lineup(engines), results["bandwidth_gb_s"]
    with (
        started("ladder", pair, rows, engines, terms, results) as workers,
        track("Rounds", given.repeats, True) as advance,
    ):

        def after() -> None:
            speeds.append(max(reading() for _ in range(3)))
            advance()

        rows = [row for row in rows if row.engine in workers]
        answers = measure.measure(
            workers,
            rows,
            [PROMPT],
            eos=END,
            max_tokens=TOKENS,
            repeats=given.repeats,
            advance=after,
        )
    return {row: own[0] for row, own in answers.items()}


def speeds(answers: dict[Row, measure.Answer], row: Row) -> list[float]:
    """Tokens/s of each round, the prompt's share taken off."""
    own, first = answers[row], statistics.median(answers[plain(row)].first)
    return [(own.tokens - 1) / (whole - first) for whole in own.whole]


def answered(answers: dict[Row, measure.Answer], row: Row) -> bool:
    """Whether a row has speeds, for which its engine's plain decoding is needed."""
    return all(each in answers and answers[each].error is None for each in (row, plain(row)))


def ratio(answers: dict[Row, measure.Answer], kind: str, engine: str) -> float | None:
    """The median over rounds of foretoken's speed ÷ the engine's; None where one has none."""
    pair = [Row("foretoken", kind), Row(engine, kind)]
    if not all(answered(answers, row) for row in pair):
        return None
    mine, theirs = (speeds(answers, row) for row in pair)
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def numbers(answers: dict[Row, measure.Answer]) -> list[dict[str, Any]]:
    """The rows of the record."""
    said = answers[Row("foretoken", PLAIN)].texts
    return [
        {
            "engine": row.engine,
            "kind": row.kind,
            "options": row.options,
            "tokens_per_second": (
                statistics.median(speeds(answers, row)) if answered(answers, row) else None
            ),
            "foretoken_over_it": ratio(answers, row.kind, row.engine),
            "seconds": own.whole,
            "seconds_first": own.first,
            "same_tokens": own.texts == said,
            "error": own.error,
        }
        for row, own in answers.items()
    ]


def ceiling(bandwidth: float) -> dict[str, float]:
    """Tokens/s if a pass took as long as reading the weights, and drafting no time."""
    size = 4 * (SHAPE.layers * _layer(SHAPE) + SHAPE.vocab * SHAPE.hidden)
    passes = bandwidth * 1e9 / size
    return {PLAIN: passes} | {f"γ={n}": (n + 1) * passes for n in LENGTHS}


def _layer(shape: Shape) -> int:
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    return attention + 3 * shape.hidden * shape.intermediate


def missed(answers: dict[Row, measure.Answer]) -> list[str]:
    """What failed, other tokens than foretoken's plain ones, and limits that are not kept or were
    not measured, in words."""
    said = answers[Row("foretoken", PLAIN)].texts
    results = [
        f"{row.kind}: {row.engine}: {own.error}" for row, own in answers.items() if own.error
    ]
    results += [
        f"{row.kind}: {row.engine} wrote other tokens than foretoken plainly"
        for row, own in answers.items()
        if not own.error and own.texts != said
    ]
    for limit in LIMITS:
        got = ratio(answers, limit.kind, limit.engine)
        if got is None:
            results.append(f"{limit.kind}: not measured beside {limit.engine}")
        elif got < limit.ratio:
            results.append(
                f"{limit.kind}: {got:.2f} times {limit.engine}, and {limit.ratio:g} are wanted"
            )
    return results


def show(rows: list[dict[str, Any]], limits: dict[str, float]) -> None:
    """tokens/s by engine and kind, and how many times as fast foretoken is."""
    kinds = [PLAIN, *(f"γ={n}" for n in LENGTHS), LOOKUP]
    lines = [["tokens/s (foretoken ÷ it)", *kinds]]
    for engine in dict.fromkeys(row["engine"] for row in rows):
        own = {row["kind"]: row for row in rows if row["engine"] == engine}
        lines.append([engine, *(_cell(own.get(kind)) for kind in kinds)])
    lines.append(["limit", *(f"{limits[k]:.0f}" if k in limits else "" for k in kinds)])
    lines.append(["wanted", *(str(WANTED.get(kind, "")) for kind in kinds)])
    table(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or row["tokens_per_second"] is None:
        return "failed" if row else ""
    over = row["foretoken_over_it"] if row["engine"] != "foretoken" else None
    mark = "" if row["same_tokens"] else " other tokens"
    return f"{row['tokens_per_second']:.1f}" + (f" ({over:.2f})" if over else "") + mark


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = [name for name in PEERS if name in ("transformers", "openvino", "llama.cpp")]
    parser.add_argument("--peers", nargs="*", default=peers, choices=peers)
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--threads", type=int, default=environment()["cores"], help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where ladder.json goes")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    results: dict[str, Any] = {
        "benchmark": "ladder",
        "environment": environment(),
        "threads": given.threads,
        "tokens": TOKENS,
        "repeats": given.repeats,
        "versions": {},
        "left_out": installed([peer for peer in given.peers if peer in ENGINES]),
        "bandwidth_gb_s": [],
        "wanted": WANTED,
        "limits": [vars(limit) for limit in LIMITS],
    }
    answers = run(given, results)
    limits = ceiling(statistics.median(results["bandwidth_gb_s"]))
    results |= {"rows": numbers(answers), "weights_read_once": limits, "missed": missed(answers)}
    show(results["rows"], limits)
    for engine, reason in results["left_out"].items():
        print(f"left out: {engine}, because {reason}")
    print("\n" + "\n".join(results["missed"] or ["every limit is kept"]))
    write_json(given.out / "ladder.json", results)
    print(f"-> {given.out / 'ladder.json'}")
    return 1 if results["missed"] and given.check else 0


if __name__ == "__main__":
    exit_with(main)
