"""The bars on linear layers: what is measured, and what counts as missed."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from foretoken.models.native.backends import blocks

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import linear  # noqa: E402


def part(**changed: Any) -> dict[str, Any]:
    rows = linear.ROWS
    ms = {n: 20.0 + n for n in rows} | changed.get("ms", {})
    times = {n: ms[n] / 20 for n in rows}
    return {"ms": ms, "times_reading": times, "rate_gmacs": changed.get("rate", 500.0)}


def test_what_is_missed() -> None:
    assert not [*linear.missed({"Q4_K": part()}, "vnni")]
    slow = [*linear.missed({"Q4_K": part(ms={8: 38.0})}, "vnni")]
    assert slow == [
        "Q4_K: 8 rows take 1.90 times reading, bar 1.85",
        "Q4_K: 12 rows take less than 8",
    ]
    assert not [*linear.missed({"Q4_K": part(ms={8: 31.0})}, "avx2")]
    [rate] = linear.missed({"Q4_K": part(rate=399.0)}, "vnni")
    assert "399 G a second" in rate


@pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_0", "float16"])
def test_a_measurement(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and weights of all layers; both limits."""
    monkeypatch.setitem(linear.SHAPES, "tiny", (2, 256, 64, 512, 300))
    monkeypatch.setattr(linear, "_CACHED", (64, 256))
    monkeypatch.setattr("passes.ARRAY", (64, 256))
    found = linear.measured(kind, Namespace(shape="tiny", repeats=1))
    layer = (256 + 2 * 64) * 256 + 256 * 256 + 2 * 512 * 256 + 256 * 512
    assert found["weights"] == 2 * layer + 300 * 256
    bits = {"Q4_K": 4.625, "Q6_0": 6.5, "float16": 16}[kind]  # scales take a byte each here
    assert found["weight_bytes"] == pytest.approx(found["weights"] * bits / 8, rel=0.01)
    for rows in linear.ROWS:
        arithmetic = rows * found["weights"] / found["rate_gmacs"] / 1e6
        limit = max(found["reading_ms"], arithmetic)
        assert found["times_limit"][rows] == pytest.approx(found["ms"][rows] / limit)
