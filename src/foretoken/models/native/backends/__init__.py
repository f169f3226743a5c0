"""How a linear layer is executed. The model code calls a `Linear` and does not know which.

One rule binds every backend: a row's result must not depend on its neighbours in the pass.

A backend's name is that of a file here, `packed+plain` (in `both.py`), or a runner and one of them:
`compiled+int8` runs whole passes through `compiled.py`, with int8 linear layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, unknown
from foretoken.models.native.backends import (
    blocks,
    blocks_by_torch,
    both,
    half,
    int4,
    int8,
    packed,
    panels,
    plain,
    quantise,
)
from foretoken.models.native.layer import Linear, MakeLinear

RUNNERS = ("compiled", "compiled_in_background", "cuda_graphs")

_NEEDS = {
    "plain": "a torch device",
    "packed": "float32 or bfloat16 on a CPU with oneDNN",
    "packed+plain": "float32 or bfloat16 on a CPU with oneDNN",
    "panels": "float32 on a Linux CPU and a C++ compiler (g++)",
    "blocks": "float32 on a CPU",
    "half": "float32 on an x86 CPU with oneDNN and FBGEMM",
    **dict.fromkeys(quantise.BACKENDS, "float32 on a CPU"),
    "int8": "float32 on an x86 CPU with FBGEMM, or bfloat16 on a GPU",
    "int4": "bfloat16 on a GPU",
}
NAMES = tuple(_NEEDS)

MODULES: dict[str, Any] = {
    "plain": plain,
    "packed": packed,
    "packed+plain": both,
    "panels": panels,
    "blocks": blocks,
    "half": half,
    **quantise.BACKENDS,
    "int8": int8,
    "int4": int4,
}
"""Name -> the module, with `supports(dtype, device)` and `make(weight, bias)`."""


AUTOMATIC = ("auto", "blocks", "half", "panels")
"""What `auto` is on a CPU with the compiled loops."""


def known(name: str) -> bool:
    """Whether a model can be loaded with this as its `backend`."""
    return split(name)[1] in (*NAMES, "auto")


def split(name: str) -> tuple[str | None, str]:
    """("compiled", "int8") of "compiled+int8", (None, "int8") of "int8"; "auto" where unnamed."""
    first, _, rest = name.partition("+")
    return (first, rest or "auto") if first in RUNNERS else (None, name)


def choose(
    name: str, dtype: torch.dtype, device: torch.device, sample: Any = None
) -> tuple[str, MakeLinear]:
    """The name of a way to run linear layers (never `auto`) and its maker.

    `auto` takes the fastest that keeps the numbers of the checkpoint, of which `sample` is one
    matrix. Raises `ForetokenError` for a name that is unknown or can't serve dtype and device.
    """
    if name == "auto":
        name = _automatic(dtype, device, sample)
    if name not in NAMES:
        raise unknown("backend", name, (*NAMES, *RUNNERS, "auto"))
    module = MODULES[name]
    if not module.supports(dtype, device):
        raise ForetokenError(
            f"Backend {name!r} needs {_NEEDS[name]}, not {dtype} on {device}; use backend='plain'."
        )
    make: MakeLinear = module.make
    return name, make


def kept(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of stored weights that the backend's layers keep as they are, in a model of
    `dtype`."""
    return torch.float16 if name in ("half", "blocks") else dtype


def stored(name: str, tensor: Any) -> Any:
    """A tensor of a checkpoint as a model of this backend keeps it: quantised, if that is asked
    for."""
    quantiser = quantise.BACKENDS.get(split(name)[1])
    return tensor if quantiser is None else quantiser.stored(tensor)


def nbytes(layer: Linear, weights: int, dtype: torch.dtype) -> int:
    """Bytes that so many weights take in memory in a layer made of them for this dtype."""
    if isinstance(layer, panels.Product | blocks_by_torch.Product):
        return layer.nbytes
    narrow = {"half": 2, "int8": 1, "int4": 0.5}
    return round(weights * narrow.get(layer.__module__.rpartition(".")[2], dtype.itemsize))


def _automatic(dtype: torch.dtype, device: torch.device, sample: Tensor | None) -> str:
    if half.supports(dtype, device) and sample is not None and half.is_exact(sample):
        return "half"
    return next(n for n in ("panels", "packed", "plain") if MODULES[n].supports(dtype, device))
