"""Heads that know a part of the target's tokens: which ones, and their logits.

As published drafters have it, `d2t` [R] is what is added to a token's number in the head to get its
id, and `t2d` [V] whether the head knows an id.

Legend: V vocabulary, R reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from foretoken.errors import ForetokenError


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
    return logits.index_copy_(-1, ids, reduced)


def first_and_ends(size: int, vocab_size: int, ends: Collection[int]) -> Tensor:
    """[R] `size` ids in their order: the ends of text and the first ones.

    A byte-level BPE tokenizer numbers its tokens by their merges, the most frequent pair first, so
    low ids are the frequent tokens (the ranking that FR-Spec, Zhao et al. 2025, section 3, counts
    in a corpus). Raises `ForetokenError` for a size that leaves nothing out, or no token but ends.
    """
    if not len(ends) < size < vocab_size:
        raise ForetokenError(
            f"draft_vocab_size is {size}; it must be above {len(ends)}, the draft model's ends of "
            f"text, and below {vocab_size}, its vocabulary; leave it out to draft all tokens."
        )
    first = [i for i in range(size) if i not in ends][: size - len(ends)]
    return torch.tensor(sorted([*first, *ends]))
