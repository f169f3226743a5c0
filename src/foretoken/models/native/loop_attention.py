"""Attention by a loop of `backends/kernels.cpp`: a token has the same bits alone and among others.

torch's attention rounds differently for one token and for several, for a chain and for a tree,
so plain decoding and speculation are two models, one near tie in a million apart. Here the sums
over the cache go in the order of its cells, and what a token does not see adds zero or, before the
first and after the last cell that tokens beside it see, is left out. With linear layers whose rows
are alone too (`panels`, `int8`), a pass over a tree gives bit for bit what passes over single
tokens give.

Legend: B rows, T tokens, H query heads, K key/value heads, W head width, L cache length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.cache import KV
from foretoken.models.feed import Feed
from foretoken.models.native.backends import kernels


def supports(dtype: torch.dtype, device: torch.device, width: int) -> bool:
    """Whether heads of this width can be served."""
    loops = kernels.library() if kernels.supports(dtype, device) else None
    return loops is not None and width % loops.width() == 0


def mix(
    turned: Tensor,
    layer: KV,
    feed: Feed,
    heads: int,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """`attention.mix` by the compiled loops: [B, T, H + 2K, W] and a layer's cache -> [B, T, H·W].
    Raises `ForetokenError` where these don't fit each other."""
    batch, width, all_heads, size = turned.shape
    seen, (slots, places), loops = feed.seen(window), feed.cells(), kernels.library()
    assert loops is not None and turned.is_contiguous()
    out = turned.new_empty(batch, width, heads * size)
    _check(turned, layer, heads, places, feed.length, seen)
    outside = loops.attend(
        turned.data_ptr(),
        layer.keys.data_ptr(),
        layer.values.data_ptr(),
        kernels.STORED.index(layer.keys.dtype),
        slots.data_ptr(),
        places.data_ptr(),
        None if seen is None else seen.data_ptr(),
        out.data_ptr(),
        batch,
        width,
        heads,
        (all_heads - heads) // 2,
        size,
        feed.length,
        layer.keys.shape[0],
        layer.keys.shape[2],
        scale,
        cap or 0.0,
        torch.get_num_threads(),
    )
    if outside:
        raise _misfit("a slot or a place of the pass isn't in the cache")
    return out


def _check(
    turned: Tensor, layer: KV, heads: int, places: Tensor, length: int, seen: Tensor | None
) -> None:
    tokens, others, size = turned.shape[:2], turned.shape[2] - heads, turned.shape[3]
    keys, values = layer
    served = turned.dtype == torch.float32 and keys.dtype in kernels.STORED
    if not served or places.shape != tokens:
        kinds = f"{turned.dtype} and a cache of {keys.dtype}"
        raise _misfit(f"{list(turned.shape)} at {list(places.shape)} places, {kinds}")
    alike = keys.shape == values.shape and keys.is_contiguous() and values.is_contiguous()
    if not alike or (2 * keys.shape[1], keys.shape[3]) != (others, size):
        shapes = f"{list(keys.shape)} and {list(values.shape)}"
        raise _misfit(f"{list(turned.shape)} with a cache of {shapes}")
    if seen is not None and tuple(seen.shape) != (*tokens, length):
        raise _misfit(f"a mask of {list(seen.shape)} over {length} cells")


def _misfit(what: str) -> ForetokenError:
    return ForetokenError(f"The attention loop can't run this: {what}; use backend='plain'.")
