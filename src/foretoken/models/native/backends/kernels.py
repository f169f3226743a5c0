"""The loops of `kernels.cpp` and what it includes, compiled on the machine that they run on.

They need a C++ compiler there. They are built once (some seconds) into the cache folder's kernels/.
A file there has its checksum in its name: loading a damaged one could end the process, so that it
is built again. Where nothing can be built, torch's own operators serve.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from foretoken.errors import ForetokenError
from foretoken.files import write_file
from foretoken.machine import cache_folder
from foretoken.progress import track

_SOURCE = Path(__file__).with_suffix(".cpp")
_INCLUDED = sorted(_SOURCE.parent.glob("*.h"))
_MANY = 2**22  # numbers
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC")

_log = logging.getLogger(__name__)


STORED = (torch.float32, torch.float16, torch.bfloat16)
"""How the loops can read keys and values, in the order of their numbers."""


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype == torch.float32 and library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled loops, built if they are not there yet; None where that can't be done."""
    named = dict.fromkeys((os.environ.get("CXX", ""), "g++", "clang++"))
    compilers = filter(shutil.which, named) if sys.platform.startswith("linux") else ()
    for compiler in compilers:
        try:
            with _shared_object(compiler) as file:
                return _asked(_bound(ctypes.CDLL(str(file))))
        except (OSError, AttributeError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            _log.warning(
                "The loops for this CPU can't be built by %s (%s); without another compiler "
                "torch's operators serve, which are slower.",
                compiler,
                said[-1] if said else type(error).__name__,
            )
    return None


def checksum() -> str:
    """16 hex digits of what the loops are built from, whether they are built or not: what was
    measured with others says nothing of these."""
    return _digest("\n".join((*_sources(), *_FLAGS)).encode())


def packers(numbers: int) -> int:
    """How many threads to reorder or dequantise so many numbers with: where the cores are busy,
    waiting for a second one costs more than a small matrix takes."""
    return torch.get_num_threads() if numbers >= _MANY else 1


def dequantise(place: int, size: int, to: torch.Tensor, kind: int) -> float:
    """`size` bytes of blocks at a place in memory -> numbers in float32 or float16, and the largest
    magnitude of them. kind: its place in `blocks.ALL`; the sizes must agree."""
    loops = library()
    assert loops is not None
    threads, narrow = packers(to.numel()), to.dtype == torch.float16
    largest: float = loops.dequantise(place, size, to.data_ptr(), to.numel(), kind, narrow, threads)
    assert largest >= 0, "blocks and numbers are as many"
    return largest


def quantise(x: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [B, 32] in float32 -> scales [B, 1], and whole numbers from -most to most - 1 in int8
    [B, 32]."""
    loops, x = library(), x.contiguous()
    assert loops is not None and x.shape[1] == 32 and x.dtype == torch.float32
    scales, whole = torch.empty(len(x), 1), torch.empty(x.shape, dtype=torch.int8)
    places = x.data_ptr(), whole.data_ptr(), scales.data_ptr()
    loops.quantise(*places, len(x), most, torch.get_num_threads())
    return scales, whole


def _asked(loops: ctypes.CDLL) -> ctypes.CDLL:
    """The same, having asked the system for the CPU's matrix tiles."""
    if loops.tiles() < 0:
        _log.warning(
            "The system doesn't let this process use the CPU's matrix tiles (AMX); prompts of "
            "models in blocks are read without them, somewhat slower, with the same bits."
        )
    return loops


def _bound(loops: ctypes.CDLL) -> ctypes.CDLL:
    place, number = ctypes.c_void_p, ctypes.c_long
    loops.width.restype = number
    loops.int8_levels.restype = ctypes.c_int
    loops.dequantise.restype = ctypes.c_float
    loops.dequantise.argtypes = [place, number, place, number, *[ctypes.c_int] * 3]
    loops.quantise.restype = None
    loops.quantise.argtypes = [place] * 3 + [number] * 2 + [ctypes.c_int]
    loops.has_blocks.restype = ctypes.c_int
    loops.tiles.restype = ctypes.c_int
    loops.laid_size.restype = number
    loops.laid_size.argtypes = [number, number, ctypes.c_int]
    loops.lay.restype = None
    loops.lay.argtypes = [place, place, number, number, ctypes.c_int, ctypes.c_int]
    loops.rows_of.restype = None
    loops.rows_of.argtypes = [place] * 3 + [number] * 2 + [ctypes.c_int]
    loops.pack.restype = None
    loops.pack.argtypes = [place, place, number, number, ctypes.c_int, ctypes.c_int]
    loops.linear.restype = None
    loops.linear.argtypes = [place] * 3 + [number, ctypes.c_int]
    loops.layers.restype = ctypes.c_int
    loops.layers.argtypes = [place] * 2 + [number] * 2 + [ctypes.c_int]
    loops.attend.restype = ctypes.c_int
    loops.attend.argtypes = [
        *([place] * 3),
        number,
        *([place] * 4),
        *([number] * 8),
        *([ctypes.c_float] * 2),
        ctypes.c_int,
    ]
    return loops


@contextmanager
def _shared_object(compiler: str) -> Iterator[Path]:
    """The file for this source, compiler and CPU; where none can be kept, one for this block."""
    key = _digest("\n".join((*_sources(), compiler, *_FLAGS, _cpu())).encode())
    if (sound := next(filter(_is_sound, _kept(key)), None)) is not None:
        yield sound
        return
    with tempfile.TemporaryDirectory() as folder:
        built = _built(compiler, Path(folder))
        content = built.read_bytes()
        file = cache_folder() / "kernels" / f"{key}-{_digest(content)}.so"
        try:
            write_file(file, content)
        except ForetokenError as error:
            _log.warning("%s The loops for this CPU are built anew at every start.", error)
            file = built
        yield file


def _kept(key: str) -> list[Path]:
    """The files that were built for this key; none in a folder that can't be read."""
    try:
        return sorted((cache_folder() / "kernels").glob(f"{key}-*.so"))
    except OSError:
        return []


def _sources() -> list[str]:
    return [path.read_text() for path in (_SOURCE, *_INCLUDED)]


def _is_sound(file: Path) -> bool:
    """Whether a kept file is what was written."""
    try:
        sound = file.stem.endswith(_digest(file.read_bytes()))
    except OSError:
        sound = False
    if not sound:
        _log.warning("%s is damaged; it is built again.", file)
    return sound


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _built(compiler: str, folder: Path) -> Path:
    """The shared object, compiled into a folder."""
    parts = [str(folder / name) for name in ("kernels.o", "kernels.so")]
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    with track("Building the loops for this CPU", len(parts), True) as advance:
        run([compiler, *_FLAGS, "-c", str(_SOURCE), "-o", parts[0]])
        advance()
        # Without -fopenmp: it then uses the threads of the OpenMP that torch has loaded already.
        run([compiler, "-shared", parts[0], "-o", parts[1]])
        advance()
    return Path(parts[1])


def _cpu() -> str:
    """What -march=native depends on; a home folder may be shared by different machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join((platform.machine(), *sorted(named)))
