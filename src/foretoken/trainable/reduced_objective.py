"""What heads learn that know a part of the target's tokens (see `models/reduced_vocabulary.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretoken.trainable.losses import Objective


@dataclass(frozen=True)
class ReducedObjective(Objective):
    """An objective over the tokens `ids` [R] alone; covered [V]: whether a token is one of them."""

    ids: Tensor = None  # type: ignore[assignment]
    covered: Tensor = None  # type: ignore[assignment]

    def probability(self, drafter: Tensor, tokens: Tensor) -> Tensor:
        return super().probability(drafter, self._place(tokens)) * self.covered[tokens]

    def _place(self, tokens: Tensor) -> Tensor:
        return torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)

    def __call__(self, drafter: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
        reduced = None if target is None else target[..., self.ids]
        return super().__call__(drafter, reduced, self._place(tokens)) * self.covered[tokens]
