"""A drafter's linear layers in blocks of 8 bits, where its target runs in blocks too.

Beside a target of 4 bits a drafter in float32 would read as many bytes a pass as the target does.
The distribution that it proposes is that of the rounded weights, so that what is verified is as
exact as before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.models.native import backends
from foretoken.models.native.backends import blocks
from foretoken.models.native.backends.quantise import BACKENDS
from foretoken.trainable.checkpoint import Trained

_WIDTH = 32  # of a block: narrower inputs would be mostly filling


class NarrowLinear(nn.Module):
    """Multiplies by an `nn.Linear`'s weights, each rounded to 8 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._product = BACKENDS["q8"].make(linear.weight.detach(), linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x)


def narrowed(module: nn.Module, access: Access) -> None:
    """Replace the linear layers within a drafter's module, where the target's are in blocks that
    the compiled loops multiply."""
    linear = backends.split(access.backend)[1]
    in_blocks = linear == "blocks" or linear in BACKENDS
    if in_blocks and access.dtype == torch.float32 and blocks.has_loops():
        _replace(module)


def _replace(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear) and child.in_features >= _WIDTH:
            setattr(module, name, NarrowLinear(child))
        else:
            _replace(child)


def loaded(kind: type[Trained], source: Any, access: Access) -> Any:
    """`kind.load` for serving, narrowed; a module that is given, which may be in training, stays as
    it is. Raises `ForetokenError` as that does."""
    module = kind.load(source, access)
    if module is not source:
        narrowed(module, access)
    return module
