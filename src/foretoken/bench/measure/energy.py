"""Joules, where the machine counts them: never an estimate.

On a CPU the packages' own counters (Intel's and AMD's RAPL, through Linux's powercap), on an NVIDIA
GPU that GPU's counter. Both count everything that runs there, not only this process.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_POWERCAP = Path("/sys/class/powercap")


class Energy:
    """What the machine used between `reset` and `joules`; None where it doesn't count."""

    def __init__(self, device: torch.device, powercap: Path = _POWERCAP) -> None:
        self._gpu = _gpu_counter(device) if device.type == "cuda" else None
        # intel-rapl:0 is a package, intel-rapl:0:1 a part of it that it has already counted.
        packages = sorted(powercap.glob("*-rapl:*")) if device.type == "cpu" else []
        self._packages = [p for p in packages if p.name.count(":") == 1]
        self._start = self._read()

    def reset(self) -> None:
        self._start = self._read()

    def joules(self) -> float | None:
        """Since `reset`; a package's counter may have wrapped once."""
        now = self._read()
        if now is None or self._start is None:
            return None
        micro = 0
        for package, (before, after) in enumerate(zip(self._start, now, strict=True)):
            micro += after - before if after >= before else after - before + self._range(package)
        return micro / 1e6

    def _read(self) -> list[int] | None:
        """Microjoules of each counter."""
        if self._gpu is not None:
            return [1000 * self._gpu()]
        try:
            microjoules = [int((p / "energy_uj").read_text()) for p in self._packages]
        except (OSError, ValueError):  # on most machines only root may read them
            return None
        return microjoules or None

    def _range(self, package: int) -> int:
        return int((self._packages[package] / "max_energy_range_uj").read_text())


def _gpu_counter(device: torch.device) -> Callable[[], int] | None:
    """Reads the GPU's millijoules; None without pynvml or on a GPU that doesn't count them."""
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
