"""The fuzz of the loops for blocks, without its sanitizers."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken.models.native.backends import blocks

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import fuzz_blocks  # noqa: E402

pytestmark = pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")


def test_some_matrices() -> None:
    """Of every format, with rows that end within a block and parts that end within a panel."""
    draw = random.Random(3)
    cases = [case for case in (fuzz_blocks.drawn(draw) for _ in range(60)) if _is_small(case)]
    assert {case["kind"] for case in cases} == set(blocks.ALL)
    assert any(case["inputs"] % 32 for case in cases)
    assert any(len(case["outputs"]) > 1 for case in cases)
    for number, case in enumerate(cases):
        torch.manual_seed(number)
        assert fuzz_blocks.tried(case) == [], case


def _is_small(case: dict[str, Any]) -> bool:
    return bool(sum(case["outputs"]) * case["inputs"] < 150_000)


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    product = blocks.product

    def wrong(*given: Any) -> Any:
        made = product(*given)
        return lambda x: made(x) * (1 + 2**-23)

    monkeypatch.setattr(blocks, "product", wrong)
    case = {"kind": "Q4_0", "inputs": 64, "outputs": [20], "rows": 3, "bias": False}
    assert fuzz_blocks.tried(case) == ["product"]
