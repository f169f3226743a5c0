"""Where a model is computed, and in what numbers; and what is said where it doesn't fit there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from foretoken.errors import ForetokenError, shown
from foretoken.models.checkpoint import Checkpoint
from foretoken.models.native.check import FLOATS

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float64": torch.float64,
}
"""What a precision can be called."""


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" and "cuda" are the current GPU, where there is one, by its
    number: other threads have another current one. Raises `ForetokenError` for one that isn't
    here."""
    usable = torch.cuda.is_available()
    name = shown(str(device) if isinstance(device, torch.device) else device)
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError
        chosen = torch.device(("cuda" if usable else "cpu") if device == "auto" else device)
    except (RuntimeError, TypeError) as error:
        raise ForetokenError(f"There is no device {name}; give auto, cpu or cuda.") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ForetokenError(f"Device {name} isn't served; give auto, cpu or cuda.")
    if chosen.type == "cuda" and not usable:
        raise ForetokenError("No CUDA device can be used here; give device auto or cpu.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ForetokenError(
            f"There is no device {name}, as this machine has {torch.cuda.device_count()}; "
            "count from cuda:0."
        )
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def pick_dtype(
    dtype: str | torch.dtype, config: Any, device: torch.device, source: Path
) -> torch.dtype:
    """The dtype of this name; "auto" is the checkpoint's on a GPU. Raises `ForetokenError` for one
    that no model runs in. source: the checkpoint's folder, or its GGUF file, whose configuration
    always names one."""
    if isinstance(dtype, str) and dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        named = getattr(config, "dtype", None)
        return named if isinstance(named, torch.dtype) else _stored(source)
    given: Any = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    if not isinstance(given, str) or given not in DTYPES:
        raise ForetokenError(
            f"dtype is {shown(given)}; it must be 'auto', 'float32', 'bfloat16', 'float16' or "
            "'float64'."
        )
    return DTYPES[given]


def _stored(source: Path) -> torch.dtype:
    """That of a folder's first weights, as transformers has it where a configuration names none."""
    headers = Checkpoint(source).headers.values()
    found = (FLOATS[header.dtype] for header in headers if header.dtype in FLOATS)
    return next(found, torch.float32)


@contextmanager
def within_memory(source: str | Path, device: torch.device) -> Iterator[None]:
    """Loads a model. Raises `ForetokenError` where there is no memory left for it."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        raise ForetokenError(
            f"{source} doesn't fit into the memory of {device}; take a smaller or a quantised "
            "model or another dtype, or on a CPU weights_memory, by which layers are read as they "
            "run."
        ) from error


def _lacks_memory(error: MemoryError | OSError | RuntimeError) -> bool:
    """Whether it is what Python, the system, torch or a GPU raises where memory is at an end."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "DefaultCPUAllocator" in str(error)
