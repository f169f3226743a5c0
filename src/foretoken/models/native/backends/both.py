"""Each matrix twice in memory: as it is for one row, packed for oneDNN for more.

oneDNN's layout costs up to a half more than torch's where a pass has one row, and a quarter of
it where it has eight. Storing both is never chosen by itself; `panels` is as fast as the faster of
the two, and stores one.
"""

from __future__ import annotations

from torch import Tensor

from foretoken.models.native.backends import packed, plain
from foretoken.models.native.layer import Linear

supports = packed.supports


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    alone, together = plain.make(weight, bias), packed.make(weight, bias)

    def linear(x: Tensor) -> Tensor:
        return (alone if x.numel() == x.shape[-1] else together)(x)

    return linear
