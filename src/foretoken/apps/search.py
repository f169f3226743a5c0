"""Exact search over many vectors: inner products that are nearly right, and who may be among the
best by them. Callers score those again, exactly.

Legend: N vectors, Q queries, D numbers of a vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_TOGETHER = 8  # queries
_BLOCK = 2**16  # vectors
_GROUP = 64  # scores of which only the best is looked at first


def products(
    vectors: NDArray[np.float32], queries: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """[N, D] and [Q, D] -> each query's inner products [N], rounded as float32 products are.

    A pass over the vectors takes as long as reading them, for up to `_TOGETHER` queries. Odd
    numbers of them are filled up, as a product by a single vector doesn't use all cores. It is
    torch that multiplies: numpy's threads spin for a while after a product, and slow what comes
    next.
    """
    stored, found = torch.from_numpy(vectors), list[NDArray[np.float32]]()
    for some in torch.from_numpy(queries).split(_TOGETHER):
        columns = torch.cat((some, some[-1:])).T if len(some) % 2 else some.T
        rows = [torch.empty(len(stored)) for _ in some]
        for first, block in enumerate(stored.split(_BLOCK)):
            part = block @ columns  # small enough to stay in the cache until it is copied
            for i, row in enumerate(rows):
                row[first * _BLOCK : first * _BLOCK + len(block)] = part[:, i]
        found += [row.numpy() for row in rows]
    return found


def contenders(scores: NDArray[Any], k: int, error: float = 0.0) -> NDArray[np.intp]:
    """The ids of all that may be among the k best of scores [N], each wrong by at most `error`.

    The k-th best of the groups' best scores is no better than the k-th best of all, and cheaper.
    """
    if k >= len(scores):
        return np.arange(len(scores))
    groups = len(scores) // _GROUP
    if groups >= 2 * k:
        best = scores[: groups * _GROUP].reshape(_GROUP, groups).max(0)
        likely = np.flatnonzero(scores >= np.partition(best, groups - k)[groups - k] - 2 * error)
    else:
        likely = np.arange(len(scores))
    among = scores[likely]
    lowest = np.partition(among, len(among) - k)[len(among) - k]
    chosen: NDArray[np.intp] = likely[among >= lowest - 2 * error]
    return chosen
