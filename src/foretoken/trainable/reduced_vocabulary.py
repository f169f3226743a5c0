"""Heads that know a part of the target's tokens: which ones, their logits, and what they learn.

As published drafters have it, `d2t` [R] is what is added to a token's number in the head to get its
id, and `t2d` [V] whether the head knows an id.

Legend: V vocabulary, R reduced vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretoken.trainable.losses import Objective


def offsets(size: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """d2t and t2d of the first `size` tokens."""
    return torch.zeros(size, dtype=torch.int64), torch.arange(vocab_size) < size


def ids_of(d2t: Tensor) -> Tensor:
    """[R] the target's id of each token of the head."""
    return d2t + torch.arange(len(d2t), device=d2t.device)


def choose(d2t: Tensor, t2d: Tensor, counts: Tensor) -> None:
    """Write the most frequent tokens, by how often each occurs [V], into d2t and t2d."""
    most = counts.sort(descending=True, stable=True).indices[: len(d2t)]
    ids = most.sort().values.to(d2t.device)
    d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
    t2d.zero_()
    t2d[ids] = True


def spread(reduced: Tensor, ids: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., R] as [..., V], -inf for tokens that the head lacks."""
    logits = reduced.new_full((*reduced.shape[:-1], vocab_size), -torch.inf)
    return logits.index_copy(-1, ids, reduced)


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
