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

NAMES = ("plain", "packed")


def choose(name: str, dtype: torch.dtype, device: torch.device) -> tuple[str, MakeLinear]:
    """The backend's name (never `auto`) and its maker, checked against dtype and device."""
    from foretoken.models.backends import packed, plain

    if name == "auto":
        name = "packed" if packed.supports(dtype, device) else "plain"
    if name not in NAMES:
        raise unknown("backend", name, (*NAMES, "auto"))
    if name == "packed" and not packed.supports(dtype, device):
        raise ForetokenError(
            f"Backend 'packed' needs float32 or bfloat16 on a CPU with oneDNN, not {dtype} on "
            f"{device}; use backend='plain'."
        )
    return name, packed.make if name == "packed" else plain.make
