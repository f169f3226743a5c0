"""Names the machine: its processor, its cores, its free memory, and the folder where files may be
cached. Hands the cores from one thread to another, and memory back."""

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
        return Path(os.path.expanduser(own))  # which no shell did in a file of variables
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(os.path.expanduser(base)) if base else Path.home() / ".cache") / "foretoken"


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


_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""The limit of a control group, what of it is taken, and how much of that is cached files; of the
second version and of the first."""


def free_memory() -> int:
    """Bytes that this process may still take: what the system has, or what is left to its control
    group."""
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free = 2**32  # a system that doesn't say: what every machine of today has
    free = _field("/proc/meminfo", "MemAvailable:", 1024) or free
    return min([free, *filter(None, (_left(*files) for files in _GROUPS))])


def _left(limit: str, taken: str, stat: str) -> int | None:
    """What a control group has left; None where there is no limit."""
    try:
        left = int(Path(limit).read_text()) - int(Path(taken).read_text())
    except (OSError, ValueError):  # "max"
        return None
    return max(1, left + (_field(stat, "inactive_file") or 0))


def _field(file: str, name: str, unit: int = 1) -> int | None:
    """A number of a file of names and numbers."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.split()[:1] == [name])
    return next((int(number) * unit for number in found), None)


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
