"""Queries scaled by their position, as Llama 4 does in its layers without rotary positions.

transformers takes that position from the cache's length, which is wrong for trees and for rows of
different lengths; what it scales by is known, so it is undone where it is wrong.

Legend: B rows, T tokens of the pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from foretoken.models.feed import Feed


class Temperature:
    """modules: the query projections of the layers that scale, whose products are linear in the
    scale."""

    def __init__(self, config: Any, layers: Any) -> None:
        """`layers`: the decoder's, or None where they aren't known."""
        scaled = getattr(config, "attn_temperature_tuning", False) and config.no_rope_layers
        self.modules: list[Any] = [
            layer.self_attn.q_proj
            for layer, turned in zip(layers or (), scaled or (), strict=False)
            if not turned
        ]
        self._config = config

    @contextmanager
    def __call__(self, feed: Feed) -> Iterator[None]:
        """Queries of this pass get the scales of its positions; those of another thread, which may
        be in the model's own forward, stay."""
        if not self.modules:
            yield
            return
        places = max(feed.starts) + torch.arange(feed.tokens.shape[1], device=feed.tokens.device)
        ratio = (self._scale(feed.positions) / self._scale(places))[..., None]  # [B, T, 1]
        mine = get_ident()

        def scale(_: Any, __: Any, queries: Tensor) -> Tensor:
            return queries * ratio.to(queries.dtype) if get_ident() == mine else queries

        with ExitStack() as hooks:
            for module in self.modules:
                hooks.callback(module.register_forward_hook(scale).remove)
            yield

    def _scale(self, positions: Tensor) -> Tensor:
        """In float32, as transformers computes it."""
        steps = torch.floor((positions.float() + 1.0) / self._config.floor_scale)
        scale: Tensor = torch.log1p(steps) * self._config.attn_scale + 1.0
        return scale.double()
