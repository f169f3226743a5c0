"""The most memory in use."""

from __future__ import annotations

import torch

from foretoken.bench.measure.memory import PeakMemory


def test_peak_memory_rises() -> None:
    """The mark does not fall while more memory is in use."""
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.mib()
    held = torch.ones(16 * 2**20)  # 64 MiB
    after = memory.mib()
    assert held[0] == 1
    if before is not None and after is not None:
        assert after >= before
