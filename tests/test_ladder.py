"""benchmarks/ladder.py: what its check misses nothing of. No engine is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import ladder  # noqa: E402
from ladder import PLAIN, Row  # noqa: E402
from measure import Answer  # noqa: E402

ENGINES = ("foretoken", "llama.cpp", "transformers")


def answers() -> dict[Row, Answer]:
    """All rows of three engines, ours four times as fast, with the same tokens."""
    return {
        Row(engine, kind): Answer(
            [[1, 2, 3]], [0.5] * 3, [1.0 if engine == "foretoken" else 2.5] * 3
        )
        for engine in ENGINES
        for kind in (PLAIN, "γ=12")
    }


def test_all_as_wanted() -> None:
    found = answers()
    assert ladder.missed(found) == []
    [row] = [r for r in ladder.numbers(found) if (r["engine"], r["kind"]) == ("llama.cpp", "γ=12")]
    assert (row["tokens_per_second"], row["foretoken_over_it"]) == (1.0, 4.0)


def test_a_limit_that_is_not_kept_or_not_measured() -> None:
    found = answers()
    found[Row("llama.cpp", PLAIN)].whole = [0.75] * 3
    assert ladder.missed(found) == ["plain: 0.50 times llama.cpp, and 1 are wanted"]
    del found[Row("llama.cpp", PLAIN)], found[Row("llama.cpp", "γ=12")]
    assert ladder.missed(found) == [
        "plain: not measured beside llama.cpp",
        "γ=12: not measured beside llama.cpp",
    ]


@pytest.mark.parametrize("kind", [PLAIN, "γ=12"])
def test_what_fails_is_no_pass(kind: str) -> None:
    """Ours above all: its error is named, and nothing is held to be faster than it."""
    found = answers()
    found[Row("foretoken", kind)] = Answer(error="out of memory")
    missed = ladder.missed(found)
    assert f"{kind}: foretoken: out of memory" in missed
    assert f"{kind}: not measured beside llama.cpp" in missed
    speeds = {(r["engine"], r["kind"]): r["tokens_per_second"] for r in ladder.numbers(found)}
    assert speeds["foretoken", "γ=12"] is None and speeds["llama.cpp", PLAIN] == 1.0


def test_other_tokens_are_no_pass() -> None:
    found = answers()
    found[Row("foretoken", "γ=12")].texts = [[1, 2, 3], [1, 2, 4]]
    assert ladder.missed(found) == ["γ=12: foretoken wrote other tokens than foretoken plainly"]
