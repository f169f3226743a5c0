"""Whole passes as CUDA graphs: one launch instead of some thirty a layer.

A graph has fixed shapes and reads fixed memory. One is captured for each number of rows, tokens a
row and length of cache in a small grid, when a cache is made, and lasts as long as it; a pass is
filled up to the next larger one. Filling stands at position 0, sees the first cell of its row and
is written into the cache's last cell, which is never read. Who sees whom is a mask in memory, so
trees are served as chains are. A pass outside the grid, or one whose rows are not the first slots
in order, runs as it would without.

Legend: B rows, T tokens a row, L length of cache, D width, G query heads a key/value head; B', T'
and L' those of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.native.transformer import Transformer

ROWS = (1, 2, 4, 8, 16, 32, 64)
TOKENS = (1, 2, 4, 8, 16, 32, 64)
MOST = 128  # tokens of a captured pass, all rows together
SHORTEST = 512  # cells; lengths double from here

Size = tuple[int, int, int]
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Records what a function does -> (do it again, where its result stands each time)."""


@dataclass(slots=True)
class StaticFeed(Feed):
    """A feed whose tensors stay where they are; `take` copies another feed into them."""

    _fixed_masks: dict[tuple[int | None, torch.dtype, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, size: Size, cache: KVCache) -> StaticFeed:
        rows, width, length = size
        device = cache.device
        none = torch.zeros(rows, width, dtype=torch.long, device=device)
        feed = cls(none, none.clone(), none.bool(), list(range(rows)), [0] * rows, length)
        slots = torch.arange(rows, device=device)[:, None]
        feed._index = slots, torch.full_like(none, cache.max_length)
        return feed

    @property
    def alone(self) -> bool:
        return False

    @property
    def length(self) -> int:
        return self.limit

    @property
    def reach(self) -> int:
        return self.limit + self.tokens.shape[1]  # padding may stand after the last cell

    def mask(self, dtype: torch.dtype, window: int | None = None, groups: int = 1) -> Tensor:
        key = (window, dtype, groups)
        if key not in self._fixed_masks:
            rows, width = self.tokens.shape
            shape = (rows, 1, groups * width, self.limit)
            self._fixed_masks[key] = torch.zeros(shape, dtype=dtype, device=self.tokens.device)
        return self._fixed_masks[key]

    def take(self, feed: Feed, cache: KVCache) -> None:
        rows, width = feed.tokens.shape
        self.positions.zero_()[:rows, :width] = feed.positions
        assert self._index is not None
        self._index[1].fill_(cache.max_length)[:rows, :width] = feed.cells()[1]
        for (window, _, groups), mask in self._fixed_masks.items():
            seen = mask.fill_(-torch.inf).unflatten(2, (groups, -1))
            seen[..., 0] = 0
            now = torch.zeros_like(seen[:rows, :, 0, :width, : feed.length])
            now.masked_fill_(~feed.visible(window)[:, None], -torch.inf)
            seen[:rows, :, :, :width, : feed.length] = now[:, :, None]


@dataclass(slots=True)
class _Graph:
    feed: StaticFeed
    states: Tensor  # [B', T', D]
    replay: Callable[[], None]
    result: Tensor  # [B', T', D]; a later replay of any graph may overwrite it


class Graphs:
    """A `Transformer.runner`."""

    def __init__(self, model: Transformer, capture: Capture | None = None) -> None:
        """`capture`: by default CUDA's, in a memory pool that all graphs share."""
        if capture is None:
            if model.device.type != "cuda":
                raise ForetokenError(
                    f"Backend 'cuda_graphs' needs a GPU, not {model.device}; use backend='auto'."
                )
            capture = _cuda_capture(model.device)
        self._model, self._capture = model, capture
        self._graphs: WeakKeyDictionary[KVCache, dict[Size, _Graph]] = WeakKeyDictionary()

    @torch.inference_mode()
    def prepare(self, cache: KVCache) -> None:
        """Capture every graph, over this cache; those over other caches stay."""
        grid = sizes(len(cache.lengths), cache.max_length + 1)
        self._graphs[cache] = {size: self._captured(size, cache) for size in grid}

    @torch.inference_mode()
    def __call__(self, states: Tensor, feed: Feed, cache: KVCache) -> Tensor:
        graphs = self._graphs.get(cache, {})
        size = _size(feed, graphs)
        if size is None:
            return self._model.run(states, feed, cache, range(2 * self._model.layers))
        graph = graphs[size]
        rows, width = feed.tokens.shape
        graph.states[:rows, :width] = states
        graph.feed.take(feed, cache)
        graph.replay()
        return graph.result[:rows, :width]

    def _captured(self, size: Size, cache: KVCache) -> _Graph:
        model, feed = self._model, StaticFeed.of(size, cache)
        states = torch.zeros(*size[:2], model.width, dtype=model.dtype, device=cache.device)
        run = self._capture(lambda: model.run(states, feed, cache, range(2 * model.layers)))
        return _Graph(feed, states, *run)


def sizes(slots: int, cells: int) -> list[Size]:
    """The grid (B', T', L') for a cache of this many slots and cells: nothing without slots."""
    lengths = [cells]
    while lengths[-1] > SHORTEST:
        lengths.append(max(SHORTEST, lengths[-1] // 2))
    rows = sorted({min(count, slots) for count in ROWS} - {0})
    return [(b, t, n) for n in lengths for b in rows for t in TOKENS if b * t <= MOST and t <= n]


def _size(feed: Feed, known: Iterable[Size]) -> Size | None:
    """The smallest of the known sizes that this pass fits into."""
    if not feed.aligned:
        return None
    need = (*feed.tokens.shape, feed.length)
    fits = (s for s in known if all(have >= n for have, n in zip(s, need, strict=True)))
    return min(fits, key=lambda s: s[0] * s[1] * s[2], default=None)


def _cuda_capture(device: torch.device) -> Capture:
    """On this GPU, whichever is the current one: what runs on another's streams isn't recorded."""
    pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        with torch.cuda.device(device):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()  # libraries set themselves up in a first run, which must not be captured
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # torch's own stream is the first GPU's, and its own mode fails other threads' work.
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                result = run()
        return graph.replay, result

    return capture
