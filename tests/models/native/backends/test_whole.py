"""All layers in one call: what the layers say one by one, in every family and division of work."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from caches import stored
from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import Feed, chain_feed, tree_feed
from foretoken.models.native import norm
from foretoken.models.native.backends import kernels, panels, whole
from foretoken.models.native.backends.whole import spans
from foretoken.models.native.build import build_native
from foretoken.models.native.transformer import Transformer
from foretoken.testing import native, tiny_transformers
from foretoken.trees.from_lists import from_paths
from stored_models import CLASSES, config_class
from whole_passes import fresh

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
    "states that fill no panel": {"hidden_size": 68, "intermediate_size": 1032},
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {},
    "gemma": {"num_key_value_heads": 1},
    "gemma2": {
        "sliding_window": 6,
        "attn_logit_softcapping": 5.0,
        "intermediate_size": 100,  # that no register divides
    },
    "gemma3_text": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


@cache
def model_of(kind: str, backend: str = "panels") -> Transformer:
    """Three layers; biases and norms are random too."""
    import transformers

    family = kind if kind in CLASSES else "llama"
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
        "rms_norm_eps": 0.1,  # so that it counts
    } | KINDS[kind]
    config = config_class(family)(**shape)
    model: Any = getattr(transformers, f"{CLASSES[family]}ForCausalLM")(config)
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
    feed = tree_feed(held, slots, [7, 8], tree)
    scored = model.forward(feed, held).logits
    assert scored is not None
    logits.append(feed.packed(scored))
    feed = chain_feed(held, [1, 0], [[1, 2], [3]])
    out = model.forward(feed, held, (1, 3, -1))
    logits += [out.logits, *map(feed.packed, out.hidden.values())]
    return [x for x in logits if x is not None], held


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
    one, two = (stored(x)[..., : x.max_length, :] for x in (cache_of_mine, cache_of_theirs))
    assert torch.allclose(one, two, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["large enough for two threads", "narrow heads", "gemma3_text"])
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


@pytest.mark.parametrize("kind", ["llama", "narrow heads", "gemma3_text"])
@torch.inference_mode()
def test_padding_is_not_computed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ragged batch: as many tokens run as there are, each with the bits of its row alone; the
    states of padding are 0, and its cell stays as it was."""
    model, rng = model_of(kind), random.Random(3)
    run: Any = model.whole
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (9, 21, 1)]
    tree = from_paths([[], [[1, 2, 3, 4], [1, 5]], [[6]]], CPU)
    counted: list[int] = []

    def counting(given: int, *others: Any) -> int:
        counted.append(whole._Pass.from_address(given).tokens)
        return loops(given, *others)

    loops = run._run
    monkeypatch.setattr(run, "_run", counting)

    def scored(rows: list[int]) -> tuple[KVCache, Any]:
        held = model.new_cache(len(rows), 64)
        slots = [held.acquire(i) for i in range(len(rows))]
        model.forward(chain_feed(held, slots, [prompts[row] for row in rows]), held)
        held.lengths = [len(prompts[row]) for row in rows]
        feed = tree_feed(held, slots, [7 + row for row in rows], tree.take(rows))
        return held, model.forward(feed, held, (3,))

    held, out = scored([0, 1, 2])
    assert counted == [31, 3 + 5 + 1]
    assert all(not x[:, :, -1].any() for layer in held.layer for x in layer)
    for row, count in enumerate((1, 6, 2)):
        _, alone = scored([row])
        for both, one in ((out.logits, alone.logits), (out.hidden[3], alone.hidden[3])):
            assert torch.equal(both[row, :count], one[0, :count]) and both[row, :count].any()
        assert not out.hidden[3][row, count:].any()


@torch.inference_mode()
def test_another_head_sees_padding() -> None:
    """What it saw and returned has the rows of the pass."""
    model, seen = model_of("llama"), list[Tensor]()

    def head(states: Tensor) -> Tensor:
        seen.append(states)
        return states

    cache = model.new_cache(2, 16)
    slots = [cache.acquire(i) for i in range(2)]
    feed = tree_feed(cache, slots, [1, 2], from_paths([[[3, 4]], []], CPU))
    other = model.with_head(head)
    other.forward(feed, cache)
    assert [tuple(states.shape) for states in seen] == [(2, 3, model.width)]
    assert model.packs and not other.packs


@torch.inference_mode()
def test_what_is_no_number_stays_in_its_row() -> None:
    """Products are of whole panels, and what fills them up is added to nobody's states."""
    model = model_of("states that fill no panel")
    held = model.new_cache(2, 64)
    feed = chain_feed(held, [held.acquire(0), held.acquire(1)], [[1], [2]])
    states = model.embed(feed.tokens)
    whole = model.run(states, feed, held, range(6))
    states[0, 0, 3] = torch.nan
    got = model.run(states, feed, held, range(6))
    assert got[0].isnan().all() and torch.equal(got[1], whole[1])


@torch.inference_mode()
def test_a_pass_that_reaches_beyond_the_cache() -> None:
    """It writes into its row's last cell what has no other; what lies behind stays."""
    model = model_of("llama")
    held = model.new_cache(2, 64)
    feed = chain_feed(held, [held.acquire(0)], [[1, 2, 3, 4]])
    feed = dataclasses.replace(feed, starts=[feed.limit - 2])
    model.run(model.embed(feed.tokens), feed, held, range(6))
    for tensor in (tensor for layer in held.layer for tensor in layer):
        written = tensor.any(-1)
        last = written[0, :, feed.limit - 2 : feed.limit]
        assert last.all() and int(written.sum()) == last.numel()


@torch.inference_mode()
def test_no_states_that_nobody_asked_for() -> None:
    """Those of the last layer are on the way to the logits."""
    model = model_of("llama")
    cache = model.new_cache(1, 16)
    feed = chain_feed(cache, [cache.acquire(0)], [[1, 2, 3]])
    for hidden in ((), (1,), (0, 3), (2, -1)):
        assert model.forward(feed, cache, hidden).hidden.keys() == {*hidden}


def test_skipped_sublayers_are_skipped() -> None:
    """A draft through parts of the model is run in its runs of consecutive parts."""
    assert spans([0, 1, 4, 5, 7]) == [(0, 2), (4, 6), (7, 8)]
    assert spans([]) == []


def test_who_is_served() -> None:
    """Only where every product is one of the loops' and heads fill whole vectors."""
    assert model_of("llama", "half").whole is not None
    assert all(model_of("llama", backend).whole is None for backend in ("plain", "packed"))


def layer_with(**parts: Any) -> Any:
    return dataclasses.replace(model_of("gemma3_text").stack[1], **parts)


@pytest.mark.parametrize(
    ("part", "shape"),
    [("qkv", (288, 64)), ("qkv", (224, 64)), ("qkv", (256, 32)), ("out", (64, 96)),
     ("out", (32, 128)), ("gate_up", (256, 64)), ("down", (64, 128)), ("down", (32, 96))],
)  # fmt: skip
def test_a_layer_whose_products_do_not_fit_is_refused(
    part: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the numbers of its tensors, before a pass; and the loops look for themselves. Rows more
    in a later layer than in the first once were written past the end of a buffer."""
    model = model_of("gemma3_text")
    layers = [model.stack[0], layer_with(**{part: panels.make(torch.zeros(shape), None)})]
    with pytest.raises(ForetokenError, match="a layer's products are"):
        whole.Whole(model.shape, layers, model.ropes)
    held = model.new_cache(1, 8)
    feed = chain_feed(held, [held.acquire(0)], [[1, 2, 3]])
    monkeypatch.setattr(whole, "_check", lambda layer, shape: None)
    fitting = whole.Whole(model.shape, [layers[0], *model.stack[1:]], model.ropes)
    assert fitting(model.embed(feed.tokens), feed, held, 0, 4).shape == (1, 3, 64)
    others = whole.Whole(model.shape, [*layers, model.stack[2]], model.ropes)
    with pytest.raises(ForetokenError, match="can't run this"):
        others(model.embed(feed.tokens), feed, held, 0, 4)


@pytest.mark.parametrize("part", whole._NORMS)
def test_a_norm_of_another_size_is_refused(part: str) -> None:
    model = model_of("gemma3_text")
    with pytest.raises(ForetokenError, match="a norm doesn't have"):
        other = layer_with(**{part: norm.make(torch.ones(48), 1e-6)})
        whole.Whole(model.shape, [model.stack[0], other], model.ropes)


@torch.inference_mode()
def test_a_pass_that_does_not_fit_is_refused() -> None:
    """Another model's cache or states, and slots, places and positions that aren't there."""
    model = model_of("llama")
    run: Any = model.whole
    held = model.new_cache(2, 64)
    held.acquire(0)

    def refused(match: str, cache: KVCache = held, states: Tensor | None = None, **numbers: Any):
        given = {"_masks": {(None,): None}, **numbers}  # nothing is hidden
        feed = dataclasses.replace(chain_feed(held, [0], [[1, 2, 3]]), **given)
        before = stored(held)
        with pytest.raises(ForetokenError, match=match) as caught:
            run(model.embed(feed.tokens) if states is None else states, feed, cache, 0, 6)
        assert "backend='plain'" in str(caught.value) and torch.equal(stored(held), before)

    for layers, slots, heads, width in ((2, 2, 2, 32), (3, 2, 1, 32), (3, 2, 2, 16)):
        refused("a cache of", KVCache(alike(layers, heads, width), slots, 64, torch.float32, CPU))
    refused("a cache of", KVCache(alike(3, 2, 32), 2, 64, torch.float64, CPU))
    refused("width", states=torch.zeros(1, 3, 65))
    refused("rows", states=torch.zeros(2, 3, 64))
    refused("rows", starts=[0, 0])
    refused("rows", positions=torch.zeros(1, 2, dtype=torch.long))
    for numbers in (
        {"slots": [2]},
        {"slots": [-1]},
        {"starts": [-1]},
        {"counts": [4]},
        {"limit": 99, "starts": [70]},
        {"starts": [66]},
        {"positions": torch.tensor([[0, 1, 5000]])},
        {"positions": torch.tensor([[0, 1, len(model.ropes[0].upto(3))]])},
        {"positions": torch.tensor([[0, -1, 1]])},
    ):
        refused("outside of the cache or model", **numbers)
    refused("a mask is not", _masks={(None,): torch.ones(1, 3, 2, dtype=torch.bool)})


def test_the_loops_are_built_only_where_they_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a minute, which a model on a GPU or in another dtype must not wait for."""
    monkeypatch.setattr(kernels, "library", lambda: pytest.fail("the loops were asked for"))
    assert fresh().whole is None


def test_plain_layers_have_nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops of a CPU take some time to build, and a compiler."""

    def built() -> None:
        raise AssertionError("The loops were asked for.")

    monkeypatch.setattr(kernels, "library", built)
    model = native(tiny_transformers(dtype=torch.float32))
    assert isinstance(model, Transformer) and model.whole is None
