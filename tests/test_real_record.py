"""benchmarks/results/real.json: it is what the archived answers make, and it holds what it must."""

from __future__ import annotations

import json
import math
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.suites.suite import Suite

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]

from real_table import figures, lineup, record  # noqa: E402
from real_table.folder import read  # noqa: E402
from real_table.progress import DONE, PLAN, Whole  # noqa: E402

ARCHIVE = BENCHMARKS / "results" / "real"
RECORD = json.loads((BENCHMARKS / "results" / "real.json").read_text(encoding="utf-8"))
SMALL = (
    f"grid_{lineup.SMALL}_as stored_batch16_t0_cold",
    f"screen_{lineup.SMALL}_as stored_batch1_t0_cold_llama.cpp",
)
"""A batch in several rounds, and a cell beside another engine."""
CHANCE = "ci95"
"""What is drawn by numpy's generator, of which other versions draw otherwise."""


def unpacked(work: Path, kind: str = "") -> Path:
    for path in sorted(ARCHIVE.glob(f"{kind}*.tar.xz")):
        with tarfile.open(path) as packed:
            packed.extractall(work, filter="data")
    return work


def differences(made: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Where two values differ by more than rounding."""
    if isinstance(made, dict) and isinstance(kept, dict):
        for key in made.keys() | kept.keys():
            if key not in made or key not in kept:
                yield f"{where}.{key}"
            elif key != CHANCE:
                yield from differences(made[key], kept[key], f"{where}.{key}")
    elif isinstance(made, list) and isinstance(kept, list) and len(made) == len(kept):
        for at, (one, other) in enumerate(zip(made, kept, strict=True)):
            yield from differences(one, other, f"{where}.{at}")
    elif isinstance(made, float) and isinstance(kept, float):
        if not math.isclose(made, kept, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{where}: {made}, not {kept}"
    elif made != kept:
        yield f"{where}: {made}, not {kept}"


@pytest.mark.parametrize("kind", SMALL)
def test_a_cell_is_what_its_answers_make(kind: str, tmp_path: Path) -> None:
    """Tokens, passes, speeds and ratios, of the rounds that are complete."""
    done = sorted(unpacked(tmp_path, f"{kind}_round").glob(f"*/{DONE}"))
    made = figures.cell([read(path.parent) for path in done])
    [kept] = (cell for cell in RECORD["cells"] if record.title(cell) == record.title(made))
    assert not list(differences(json.loads(json.dumps(made)), kept))


@pytest.mark.slow
def test_the_record_is_what_the_archive_makes(tmp_path: Path) -> None:
    """All cells, and what was settled, left out and measured beside them."""
    work = unpacked(tmp_path)
    for path in ARCHIVE.glob("*.json"):
        (work / path.name).write_bytes(path.read_bytes())
    plan = json.loads((work / PLAN).read_text(encoding="utf-8"))
    suite = Suite("spec-bench", plan["suite"], ())
    targets, peers = tuple(plan["targets"]), tuple(plan["peers"])
    made = record.made(Whole(work, targets, peers, suite, plan["hours"]), Path(), {}, 0.0)
    made = json.loads(json.dumps(made))
    assert made.keys() == RECORD.keys()
    parts = made.keys() - {"environment", "models", "hours", "missed"}  # of when it was made
    assert not list(differences(*({part: of[part] for part in parts} for of in (made, RECORD))))


def test_what_is_missed_is_what_the_record_says() -> None:
    """Nothing was left out of the list by hand, and nothing stays in it that is there now."""
    assert list(record.missed(RECORD)) == RECORD["missed"]


def test_greedy_rows_write_plain_decodings_tokens() -> None:
    greedy = [cell for cell in RECORD["cells"] if cell["temperature"] == 0]
    wrong = [
        f"{record.title(cell)}: {row['method']}"
        for cell in greedy
        for row in cell["rows"]
        if row["identity"] is None or row["identity"]["different"]
    ]
    assert greedy and not wrong


def test_the_pair_in_float16() -> None:
    """The best single method's speed over plain decoding."""
    asked = ("precision", lineup.PAIR, "float16")
    [cell] = (c for c in RECORD["cells"] if (c["stage"], c["target"], c["precision"]) == asked)
    single = [row for row in cell["rows"] if not {"+", "|"} & {*row["method"]}]
    ratios = [row["over_plain"]["ratio"] for row in single if row["method"] != "auto"]
    assert max(ratios) >= record.BEST


def test_what_a_conversation_takes() -> None:
    """As stored and in float16, of each target alone and with its draft model."""
    peaks = {(row["target"], row["method"], row["backend"]): row for row in RECORD["memory"]}
    for (target, method), limit in record.LIMITS.items():
        for backend in ("blocks", "half"):
            row = peaks[target, method, backend]
            assert row["tokens"] == 2000 and row["peak_mib"] * 2**20 <= limit


def test_a_record_agrees_with_itself() -> None:
    """In a cell of one round a row's speed over plain decoding's is its ratio; where a turn was
    left out, it is said."""
    for cell in (c for c in RECORD["cells"] if c["rounds"] == 1):
        plain = next(r for r in cell["rows"] if r["method"] == "autoregressive")
        for row in (r for r in cell["rows"] if r["over_plain"] and not r["failed"]):
            apart = row["tokens_per_second"] / plain["tokens_per_second"]
            assert apart == pytest.approx(row["over_plain"]["ratio"]), record.title(cell)
    for cell in RECORD["cells"]:
        assert cell["dates"] == sorted(cell["dates"])
        assert all(1 <= row["rounds"] <= cell["rounds"] for row in cell["rows"])
        assert sum(len(one["rows"]) for one in cell["stalled"]) < cell["timed"]
