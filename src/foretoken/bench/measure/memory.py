"""The most memory in use between two moments."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


class PeakMemory:
    """High-water mark since `reset`: of the GPU's allocations, or of the whole process on a CPU.

    A process holds every model that is being compared, so on a CPU only differences between
    methods that were loaded alike mean anything. Where the mark can't be reset (not Linux) it is
    the process's highest so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None

    def reset(self) -> None:
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return

    def mib(self) -> float | None:
        if self._cuda is not None:
            return float(torch.cuda.max_memory_allocated(self._cuda) / 2**20)
        try:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
        except OSError:
            pass
        return _process_peak()


def _process_peak() -> float | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
