"""Exact search over many vectors: inner products that are nearly right, and who may be among the
best by them. Callers score those again, exactly.

Legend: N vectors, Q queries, D numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_TOGETHER = 8  # queries
_GROUP = 64  # scores of which only the best is looked at first


def products(
    vectors: NDArray[np.float32], queries: NDArray[np.float32]
) -> Iterator[NDArray[np.float32]]:
    """[N, D] and [Q, D] -> each query's inner products [N], rounded as float32 products are.

    A pass over the vectors takes as long as reading them, for up to `_TOGETHER` queries. One is
    multiplied as two, as a product by a single vector doesn't use all cores. It is torch that
    multiplies: numpy's threads spin for a while after a product, and slow what comes next.
    """
    stored, given = torch.from_numpy(vectors), torch.from_numpy(queries)
    for some in given.split(_TOGETHER):
        columns = stored @ (some.repeat(2, 1) if len(some) == 1 else some).T
        for i in range(len(some)):
            row: NDArray[np.float32] = columns[:, i].contiguous().numpy()
            yield row


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
