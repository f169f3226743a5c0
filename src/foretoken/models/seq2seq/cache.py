"""The cache of an encoder–decoder: the decoder's, and beside it the keys and values of each
sequence's source, which its cross-attention reads.

Those are written once, when the source is read, and never taken back. A sequence has the same slot
in both.

Legend: B rows, T tokens, S tokens of the longest source.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from foretoken.models.cache import KVCache
from foretoken.models.warm import Text


class SourcedCache(KVCache):
    """`sources`: the keys and values of each slot's source; its `lengths` are the sources', 0 where
    none was read."""

    def __init__(self, *arguments: Any, spare: int = 0, **options: Any) -> None:
        """As a `KVCache`; a source may have `max_length` tokens too."""
        super().__init__(*arguments, spare=spare, **options)
        self.sources = KVCache(*arguments, **options)

    def acquire(self, owner: int, text: Text | None = None, most: int = 0) -> int:
        """A slot of zeros: what a decoder writes depends on the source, and not on its text alone,
        so nothing of another text is of use."""
        self.sources.acquire(owner)
        return super().acquire(owner)

    def release(self, owner: int, warm: bool = False) -> None:
        """Free the owner's slot; nothing is kept."""
        super().release(owner)
        self.sources.release(owner)

    def copy_source(self, source: int, target: int) -> None:
        """Copy what was read of one slot's source to another."""
        self.sources.copy(source, target, self.sources.lengths[source])

    def source_lengths(self, slots: Seq[int]) -> list[int]:
        """Tokens of the sources of these slots."""
        return [self.sources.lengths[slot] for slot in slots]

    def source_mask(self, slots: Seq[int], dtype: torch.dtype) -> Tensor | None:
        """[B, 1, 1, S] additive, of the sources of these slots; None where all are as long."""
        lengths = self.source_lengths(slots)
        if len(set(lengths)) == 1:
            return None
        return padding_mask(lengths, dtype, self.device)


def padding_mask(lengths: Seq[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[B, 1, 1, S] additive: rows of these lengths without the padding after them."""
    ends = torch.tensor(lengths, device=device)[:, None]
    after = torch.arange(max(lengths), device=device) >= ends
    mask = torch.zeros(after.shape, dtype=dtype, device=device)
    return mask.masked_fill_(after, -torch.inf)[:, None, None]
