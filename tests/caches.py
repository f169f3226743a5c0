"""What stands in a cache, as one tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.models.cache import KVCache


def stored(cache: KVCache) -> Tensor:
    """A copy [layers, 2, slots, K, cells, W] of a cache whose layers are alike."""
    return torch.stack([torch.stack(tuple(layer)) for layer in cache.layer])


def fill(cache: KVCache, value: Tensor | float) -> None:
    """Put this into every cell: a number, or what `stored` gave."""
    for number, layer in enumerate(cache.layer):
        for which, tensor in enumerate(layer):
            tensor[:] = value[number, which] if isinstance(value, Tensor) else value


def randomize(cache: KVCache, seed: int = 0) -> None:
    """Random numbers in every cell."""
    random = torch.Generator().manual_seed(seed)
    for layer in cache.layer:
        for tensor in layer:
            tensor.normal_(generator=random)
