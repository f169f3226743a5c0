"""All layers in one call: what the layers say one by one, in every family and division of work."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed, chain_feed, tree_feed
from foretoken.models.native.backends import kernels
from foretoken.models.native.backends.whole import spans
from foretoken.models.native.build import build_native
from foretoken.models.native.transformer import Transformer
from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")
VOCAB = 97
pytestmark = pytest.mark.skipif(
    not kernels.supports(torch.float32, CPU), reason="this machine can't build the loops"
)
LOOPS = kernels.library()
NARROWEST = LOOPS.width() // 2 if LOOPS else 8  # the numbers that one register of this CPU holds
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "narrow heads": {
        "head_dim": NARROWEST,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 172,
    },
    "large enough for two threads": {"intermediate_size": 1032},
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {},
}


@cache
def model_of(kind: str, backend: str = "panels") -> Transformer:
    """Three layers; biases and norms are random too."""
    import transformers

    family = kind if kind in ("mistral", "qwen2", "qwen3") else "llama"
    name = family.capitalize()
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "pad_token_id": None,
    } | KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**shape)
    model: Any = getattr(transformers, f"{name}ForCausalLM")(config)
    noise = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.normal_(1.0 if weight.ndim == 1 else 0.0, 0.2, generator=noise)
    return build_native(config, model.state_dict().__getitem__, torch.float32, CPU, backend)


@torch.inference_mode()
def said(model: Transformer) -> tuple[list[Tensor], KVCache]:
    """Logits and states of a ragged prompt, a chain and a tree of two rows; the cache after."""
    rng, held = random.Random(0), model.new_cache(3, 128)
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (41, 17)]
    slots = [held.acquire(0), held.acquire(1)]
    logits = [model.forward(chain_feed(held, slots, prompts), held).logits]
    held.lengths = [41, 17, 0]
    tree = from_paths([[[5, 6, 7], [5, 9], [3]], [[1, 2], [1, 2, 3, 4]]], CPU)
    logits.append(model.forward(tree_feed(held, slots, [7, 8], tree), held).logits)
    out = model.forward(chain_feed(held, [1, 0], [[1, 2], [3]]), held, (1, 3, -1))
    return [x for x in (*logits, out.logits, *out.hidden.values()) if x is not None], held


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_layers_one_by_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, kept states and the cache, up to rounding."""
    model = model_of(kind)
    assert model.whole is not None
    mine, cache_of_mine = said(model)
    monkeypatch.setattr(model, "whole", None)
    theirs, cache_of_theirs = said(model)
    assert len(mine) == len(theirs) == 6
    for one, two in zip(mine, theirs, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=2e-4)
    assert torch.allclose(cache_of_mine.data, cache_of_theirs.data, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["large enough for two threads", "narrow heads"])
@torch.inference_mode()
def test_the_same_bits_however_the_work_is_cut(kind: str) -> None:
    """In one go, with states kept, sub-layer by sub-layer, on one thread and on two."""
    model, threads = model_of(kind), torch.get_num_threads()
    held = model.new_cache(1, 64)
    feed = chain_feed(held, [held.acquire(0)], [list(range(20, 33))])
    start = model.embed(feed.tokens)
    whole = model.run(start, feed, held, range(6))
    assert torch.equal(model.forward(feed, held, (1, 2, 3)).hidden[3], whole)
    assert torch.equal(
        model.run(model.run(start, feed, held, [0, 1, 2]), feed, held, [3, 4, 5]), whole
    )
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(model.run(start, feed, held, range(6)), whole)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 2])
@torch.inference_mode()
def test_two_at_once(threads: int) -> None:
    """Passes of two threads share nothing that they write: lower layers run for one text while the
    upper ones run for another, in one cache or in two, with the bits of running alone."""
    model, had = model_of("large enough for two threads"), torch.get_num_threads()
    held, other = model.new_cache(2, 64), model.new_cache(1, 64)
    feeds = [chain_feed(held, [held.acquire(i)], [list(range(20 + i, 52 + i))]) for i in (0, 1)]
    feeds.append(chain_feed(other, [other.acquire(0)], [list(range(30, 59))]))
    jobs = [
        (feeds[0], held, range(3)),
        (feeds[1], held, range(3, 6)),
        (feeds[2], other, range(6)),
        (feeds[0], held, range(4, 6)),
        (feeds[1], held, range(2)),
    ]

    def ran(job: tuple[Feed, KVCache, range], times: int) -> list[Tensor]:
        feed, cache, parts = job
        with torch.inference_mode():
            torch.set_num_threads(threads)
            return [model.run(model.embed(feed.tokens), feed, cache, parts) for _ in range(times)]

    alone = [ran(job, 1)[0] for job in jobs]
    try:
        for pair in ((0, 1), (2, 2), (2, 0), (3, 4), (1, 2)):
            with ThreadPoolExecutor(2) as workers:
                found = list(workers.map(lambda i: (i, ran(jobs[i], 30)), pair))
            for i, all_of_it in found:
                assert all(torch.equal(alone[i], one) for one in all_of_it)
    finally:
        torch.set_num_threads(had)


def test_skipped_sublayers_are_skipped() -> None:
    """A draft through parts of the model is run in its runs of consecutive parts."""
    assert spans([0, 1, 4, 5, 7]) == [(0, 2), (4, 6), (7, 8)]
    assert spans([]) == []


def test_who_is_served() -> None:
    """Only where every product is one of the loops' and heads fill whole vectors."""
    assert model_of("llama", "half").whole is not None
    assert all(model_of("llama", backend).whole is None for backend in ("plain", "packed"))
