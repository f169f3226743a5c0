"""What this runs on, and where files may be kept on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CACHE_VARIABLE = "FORETOKEN_CACHE"


def cache_folder() -> Path:
    """What may be lost lies here: the folder that FORETOKEN_CACHE names, or ~/.cache/foretoken."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "foretoken")


def processor() -> str:
    """Its name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
