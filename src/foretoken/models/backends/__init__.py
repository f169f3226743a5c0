"""How a linear layer is executed. The model code calls a `Linear` and does not know which.

One rule binds every backend: a row's result must not depend on its neighbours in the pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, unknown

Linear = Callable[[Tensor], Tensor]
"""[..., in] -> [..., out]"""

MakeLinear = Callable[[Tensor, Tensor | None], Linear]
"""(weight [out, in], bias [out] or None) -> Linear; it may take the weight over."""

NAMES = ("plain", "packed", "half")

_NEEDS = {
    "packed": "float32 or bfloat16 on a CPU with oneDNN",
    "half": "float32 on an x86 CPU with oneDNN and FBGEMM",
}


def choose(name: str, dtype: torch.dtype, device: torch.device) -> tuple[str, MakeLinear]:
    """The backend's name (never `auto`) and its maker, checked against dtype and device."""
    from foretoken.models.backends import half, packed, plain

    makers: dict[str, MakeLinear] = {"plain": plain.make}
    if packed.supports(dtype, device):
        makers["packed"] = packed.make
    if half.supports(dtype, device):
        makers["half"] = half.make
    if name == "auto":
        name = list(makers)[-1]
    if name not in NAMES:
        raise unknown("backend", name, (*NAMES, "auto"))
    if name not in makers:
        raise ForetokenError(
            f"Backend {name!r} needs {_NEEDS[name]}, not {dtype} on {device}; use backend='plain'."
        )
    return name, makers[name]


def itemsize(layer: Linear, dtype: torch.dtype) -> int:
    """Bytes that one weight takes in memory as a layer made for this dtype holds it."""
    from foretoken.models.backends import half

    return 2 if layer.__module__ == half.__name__ else dtype.itemsize
