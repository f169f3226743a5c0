"""The most memory in use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretoken.bench.measure.memory import PeakMemory


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the mark can't be reset here"
)
def test_the_mark_rises_and_is_reset() -> None:
    """By what is held, which stays in it when it is let go, until the next reset."""
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.mib()
    held = torch.ones(2**26)  # 256 MiB
    during = memory.mib()
    del held
    after = memory.mib()
    memory.reset()
    anew = memory.mib()
    assert before is not None and during is not None and after is not None and anew is not None
    noise = 64  # of whatever else the process does meanwhile
    assert during - before == pytest.approx(256, abs=noise)
    assert after == pytest.approx(during, abs=noise)
    assert anew - after == pytest.approx(-256, abs=noise)
