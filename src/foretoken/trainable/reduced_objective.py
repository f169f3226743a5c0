"""What heads learn that know a part of the target's tokens (see `models/reduced_vocabulary.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretoken.trainable.losses import Objective


@dataclass(frozen=True, kw_only=True)
class ReducedObjective(Objective):
    """An objective over the tokens `ids` [R] alone, in any order; covered [V]: whether a token is
    one of them."""

    ids: Tensor
    covered: Tensor

    def probability(self, drafter: Tensor, tokens: Tensor) -> Tensor:
        return super().probability(drafter, self._places[tokens]) * self.covered[tokens]

    @cached_property
    def _places(self) -> Tensor:
        """[V] the place of each token among `ids`; 0 for the others, which count nowhere."""
        places = torch.zeros_like(self.covered, dtype=torch.int64)
        places[self.ids] = torch.arange(len(self.ids), device=places.device)
        return places

    def __call__(self, drafter: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
        reduced = None if target is None else target[..., self.ids]
        return super().__call__(drafter, reduced, self._places[tokens]) * self.covered[tokens]
