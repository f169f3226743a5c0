"""Names the machine: its processor, its cores, and the folder where files may be cached."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CACHE_VARIABLE = "FORETOKEN_CACHE"


def cache_folder() -> Path:
    """The folder for files that can be made or downloaded again.

    $FORETOKEN_CACHE where that is set, else $XDG_CACHE_HOME/foretoken, else ~/.cache/foretoken.
    """
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretoken"


def processor() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
