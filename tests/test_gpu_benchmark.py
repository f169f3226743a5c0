"""benchmarks/gpu.py: a repeat knows nothing of the one before. On the CPU, untimed."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402


def test_repeats_are_alike() -> None:
    """What keeps answers drafts as much the second time, and prompts are read anew."""
    bench = gpu.Bench.__new__(gpu.Bench)
    bench.given, bench.target, bench.dtype = Namespace(device="cpu"), Path("mini"), torch.float32
    prompt, passes = list(range(5, 45)), []
    with bench.llm("mini", 1, speculative_config={"method": "suffix"}) as llm:
        for _ in range(2):
            llm.reset_stats()
            gpu.rate(llm, [prompt], 24)
            passes.append(llm.stats.passes)
            assert llm.stats.prefix_cache_hits == 0
    assert passes[0] == passes[1]
