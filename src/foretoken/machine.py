"""Names the machine: its processor, its cores, and the folder where files may be cached. Hands the
cores from one thread to another, and memory back."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
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


def features() -> list[str]:
    """The processor's instructions for many numbers at a time, as Linux names them; elsewhere
    none are known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return [flag for flag in flags.partition(":")[2].split() if flag.startswith(_VECTORS)]


_VECTORS = ("avx", "amx", "f16c", "fma", "sse4", "asimd", "sve")


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_SOFT = 1  # OpenMP 5.0, section 3.6: a pause that keeps what the program has set


def yield_cores() -> None:
    """Let go of the OpenMP helpers of the calling thread, before another thread computes.

    GNU's runtime gives helpers to each thread that computes, and waits at barriers without spinning
    once all threads' helpers together are more than the cores: passes of a small model then take
    four times as long. The next pass of this thread gets new ones, in 0.1 ms. Does nothing where
    OpenMP is another one.
    """
    for library in _openmp():
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> list[ctypes.CDLL]:
    """GNU's OpenMP runtime, as it is loaded in this process (more than one at worst)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = sorted({line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line})
    libraries = [ctypes.CDLL(path) for path in paths]
    return [library for library in libraries if hasattr(library, "omp_pause_resource_all")]


def return_memory() -> None:
    """Hand memory that was freed back to the system.

    GNU's allocator returns by itself only what lies at the end of a thread's memory, so that one
    small thing there keeps all that was freed before it. Does nothing where the allocator is
    another one.
    """
    for library in _allocators():
        library.malloc_trim(0)


@cache
def _allocators() -> list[ctypes.CDLL]:
    """GNU's C library, where it is this process's."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    return [library] if library is not None and hasattr(library, "malloc_trim") else []
