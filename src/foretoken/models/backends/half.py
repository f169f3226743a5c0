"""float32 arithmetic over weights that lie in memory as float16, where that loses nothing.

A checkpoint saved as float16 holds float16 numbers whatever it is loaded as. Read as such they are
half the bytes, and a pass over few tokens takes the time that its weights take to arrive: 0.5 to
0.6 of oneDNN's packed float32 (1 and 5 rows; 576x3072: 136 and 180 µs beside 235 and 347). The
products and sums are float32's; only their order differs (about 3e-6, relative), and a row's result
does not depend on its neighbours. A matrix that float16 can't hold exactly is packed instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.models.backends import Linear, packed

_ENGINES = ("fbgemm", "x86")  # those whose float16 product this is
_PART = 256  # rows looked at together: a copy of them all would stay in the allocator


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return (
        packed.supports(dtype, device)
        and dtype == torch.float32
        and torch.backends.quantized.engine in _ENGINES
    )


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    if not all(torch.equal(part.half().float(), part) for part in weight.split(_PART)):
        return packed.make(weight, bias)
    held = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    run = torch.ops.quantized.linear_dynamic_fp16.default

    def linear(x: Tensor) -> Tensor:
        result: Tensor = run(x, held)
        return result

    return linear
