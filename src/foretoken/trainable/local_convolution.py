"""DFlash 2's convolution over the places of a block, before and after a sublayer.

Source: DFlash 2 (Inco AI and z-lab 2026) and its checkpoints' names. Each channel of a place
becomes a weighted sum of itself and of the same channel at the places before it within the block. A
weight is a number of the channel's own plus one that follows from the sublayer's input at that
place, shared by a group of channels. So later places see what stands at earlier ones without
another pass.

Legend: X = A · S places of A blocks of S, D width, C taps, G groups of channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LocalConvolution(nn.Module):
    """width: D; size: S; taps: C, how many places a sum has; group: channels that share a
    correction. It begins as the identity."""

    def __init__(self, width: int, size: int, taps: int, group: int) -> None:
        super().__init__()
        if taps < 1 or group < 1 or width % group:
            raise ValueError(
                f"conv_kernel_size is {taps} and conv_group_size {group}; the first must be at "
                f"least 1, and the second a part of the width {width}"
            )
        self._size, self._taps, self._groups = size, taps, width // group
        identity = torch.zeros(2, taps, width)
        identity[:, 0] = 1.0
        self.base_kernel = nn.Parameter(identity)
        self.kernel_projection = nn.Linear(width, 2 * taps * self._groups, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sublayer's input x [B, X, D], convolved, and what `after` needs of it."""
        shape = (*x.shape[:-1], 2, self._taps, self._groups)
        first, second = self.kernel_projection(x).view(shape).unbind(-3)
        return self._convolved(x, first, 0), second

    def after(self, x: Tensor, correction: Tensor) -> Tensor:
        """The sublayer's output [B, X, D], convolved; correction: [B, X, C, G]."""
        return self._convolved(x, correction, 1)

    def _convolved(self, x: Tensor, correction: Tensor, side: int) -> Tensor:
        blocks = x.unflatten(1, (-1, self._size)).unflatten(-1, (self._groups, -1))
        own = self.base_kernel[side].unflatten(-1, (self._groups, -1))  # [C, G, channels]
        weights = correction.unflatten(1, (-1, self._size))[..., None] + own
        total: Tensor = weights[..., 0, :, :] * blocks
        for tap in range(1, min(self._taps, self._size)):
            earlier = F.pad(blocks[:, :, :-tap], (0, 0, 0, 0, tap, 0))
            total = total + weights[..., tap, :, :] * earlier
        return total.flatten(-2).flatten(1, 2)
