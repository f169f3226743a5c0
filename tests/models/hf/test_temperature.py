"""Scales by positions, where transformers would take the cache's length."""

from __future__ import annotations

from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch

from foretoken.models.feed import Feed
from foretoken.models.hf.temperature import Temperature


def layers(count: int) -> Any:
    return [
        SimpleNamespace(self_attn=SimpleNamespace(q_proj=torch.nn.Identity())) for _ in range(count)
    ]


def config(**fields: Any) -> Any:
    given = {"attn_temperature_tuning": True, "no_rope_layers": [1, 0, 1], "floor_scale": 4}
    return SimpleNamespace(**{**given, "attn_scale": 0.5, **fields})


def feed(positions: list[list[int]], starts: list[int]) -> Feed:
    tokens = torch.tensor(positions)
    seen = torch.ones(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    return Feed(tokens, tokens, seen, list(range(len(starts))), starts, 64)


def test_a_query_gets_the_scale_of_its_position() -> None:
    """Siblings of a tree, and a row that is shorter than its neighbour: with what transformers
    multiplies by, from the length of the longest on, each has its own; and the hooks are gone."""
    stack = layers(3)
    scaled = Temperature(config(), stack)
    assert scaled.modules == [stack[1].self_attn.q_proj]
    given = feed([[6, 7, 7], [1, 2, 3]], [6, 1])
    queries = torch.ones(2, 3, 5, dtype=torch.float64)
    with scaled(given):
        got = scaled.modules[0](queries)
        assert torch.equal(stack[0].self_attn.q_proj(queries), queries)

    def scale(position: int) -> Any:
        return torch.log1p(torch.tensor((position + 1) // 4)) * 0.5 + 1

    theirs = torch.stack([scale(place) for place in (6, 7, 8)])
    wanted = torch.tensor([[scale(p) for p in row] for row in given.positions.tolist()])
    torch.testing.assert_close((got[..., 0] * theirs).float(), wanted)
    assert torch.equal(scaled.modules[0](queries), queries)


def test_another_threads_queries_stay() -> None:
    """It may be in the model's own forward, with a text of another length."""
    scaled, seen = Temperature(config(), layers(3)), list[torch.Tensor]()
    queries = torch.ones(1, 7, 5, dtype=torch.float64)
    with scaled(feed([[6, 7, 7], [1, 2, 3]], [6, 1])):
        thread = Thread(target=lambda: seen.append(scaled.modules[0](queries)))
        thread.start()
        thread.join()
    assert torch.equal(seen[0], queries)


def test_who_scales_nothing() -> None:
    """Families without the fields, and a model that has it switched off."""
    for given in (SimpleNamespace(), config(attn_temperature_tuning=False)):
        assert not Temperature(given, layers(3)).modules
    assert not Temperature(config(), None).modules
    with Temperature(SimpleNamespace(), None)(feed([[0]], [0])):
        pass
