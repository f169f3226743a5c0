"""Attention by our own loop: what torch says, and the same bits whatever stands beside a token."""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from caches import randomize, stored
from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KV
from foretoken.models.feed import Feed, chain_feed, tree_feed
from foretoken.models.native import attention, loop_attention
from foretoken.models.native.backends import kernels
from foretoken.models.native.build import build_native
from foretoken.models.native.transformer import Transformer
from foretoken.tree import chains
from foretoken.trees.from_lists import from_paths
from linear_layers import PATHS, loops_for
from stored_models import original

CPU = torch.device("cpu")
VOCAB = 97
pytestmark = pytest.mark.skipif(
    not kernels.supports(torch.float32, CPU), reason="this machine can't build the loops"
)


@cache
def model_of(backend: str, window: int | None = None, family: str = "llama") -> Transformer:
    """Heads of width 64, four queries to a key, and matrices large enough to be packed."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 512,
    }
    if window is not None and family == "llama":
        family = "qwen3"  # whose layers have types
    model = original(family, **shape)
    config = model.config
    for weight in model.parameters():
        weight.data.normal_(0, 0.1)
    if window is not None:
        config.sliding_window = window
        config.layer_types = ["sliding_attention", "full_attention"]
    return build_native(config, model.state_dict().__getitem__, torch.float32, CPU, backend)


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


@pytest.mark.parametrize(("window", "cap"), [(None, None), (5, None), (None, 0.7), (5, 20.0)])
@pytest.mark.parametrize("history", [0, 1, 63, 200])
@pytest.mark.parametrize("width", [1, 3, 17])
@torch.inference_mode()
def test_equals_torchs_own(window: int | None, cap: float | None, history: int, width: int) -> None:
    """Ragged rows in any order of slots, chains, windows, soft caps: equal up to rounding."""
    model = model_of("panels", window)
    cache = model.new_cache(3, 300)
    randomize(cache)
    cache.lengths = [history, history + 7, 0]
    feed = chain_feed(cache, [2, 0, 1], [tokens(width), tokens(width, 1), tokens(2, 2)])
    shape = model.shape
    turned = torch.randn(
        3,
        max(width, 2),
        shape.heads + 2 * shape.kv_heads,
        shape.head_dim,
        generator=torch.Generator().manual_seed(1),
    )
    given = {"heads": shape.heads, "scale": 0.3, "window": window, "cap": cap}
    wanted = attention.mix(turned, cache.layer[0], feed, **given)
    got = loop_attention.mix(turned, cache.layer[0], feed, **given)
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (230, 0.7)])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 9), (1, 17), (2, 3), (3, 5)])
@torch.inference_mode()
def test_threads_share_a_panel_without_a_trace(
    threads: int, window: int | None, cap: float | None, stored: torch.dtype, rows: int, width: int
) -> None:
    """However many threads there are, and whether they divide the heads evenly or not, every
    number has the bits that one thread gives it."""
    model = model_of("panels", window)
    cache = model.new_cache(3, 500, budget=CacheBudget(dtype=stored))
    randomize(cache)
    cache.lengths = [411, 197, 30]
    shape, few = model.shape, torch.get_num_threads()
    size = (rows, width, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    turned = torch.randn(size, generator=torch.Generator().manual_seed(1))
    given = {"heads": shape.heads, "scale": 0.3, "window": window, "cap": cap}
    got = []
    for count in (1, threads):
        feed = chain_feed(cache, [*range(rows)], [tokens(width - row, row) for row in range(rows)])
        torch.set_num_threads(count)
        try:
            got.append(loop_attention.mix(turned, cache.layer[0], feed, **given))
        finally:
            torch.set_num_threads(few)
    assert torch.equal(*got) and got[0].any()


@torch.inference_mode()
def test_a_score_that_is_no_number() -> None:
    """What a broken model makes stays NaN, as in torch's own, and its neighbours' bits stay."""
    model = model_of("panels")
    cache = model.new_cache(2, 300)
    randomize(cache)
    cache.lengths = [40, 3]
    feed = chain_feed(cache, [0, 1], [tokens(5), tokens(2, 1)])  # three places are filling
    shape = model.shape
    size = (2, 5, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    turned = torch.randn(size, generator=torch.Generator().manual_seed(1))
    given = {"heads": shape.heads, "scale": 0.3, "window": None, "cap": None}
    whole = loop_attention.mix(turned, cache.layer[0], feed, **given)
    assert whole.isfinite().all()
    for wrong in (torch.nan, torch.inf):
        broken = turned.clone()
        broken[0, 2, 3, 7] = wrong  # of one query head
        got = loop_attention.mix(broken, cache.layer[0], feed, **given)
        lost = torch.zeros(2, 5, shape.heads, shape.head_dim, dtype=torch.bool)
        lost[0, 2, 3] = True
        parts = got.view(lost.shape)
        assert parts[lost].isnan().all()
        assert torch.equal(parts[~lost], whole.view(lost.shape)[~lost])


@torch.inference_mode()
def test_a_token_that_sees_nothing() -> None:
    """It has zeros, not what dividing by no weight would give; those beside it keep their bits."""
    model = model_of("panels")
    cache = model.new_cache(1, 300)
    randomize(cache)
    cache.lengths = [40]
    feed, shape = chain_feed(cache, [0], [tokens(5)]), model.shape
    size = (1, 5, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    turned = torch.randn(size, generator=torch.Generator().manual_seed(1))
    given = {"heads": shape.heads, "scale": 0.3, "window": None, "cap": None}
    whole = loop_attention.mix(turned, cache.layer[0], feed, **given)
    seen = feed.seen()
    assert seen is not None
    seen = seen.clone()
    seen[0, 2] = False
    feed = dataclasses.replace(feed, _masks={(None,): seen})
    got = loop_attention.mix(turned, cache.layer[0], feed, **given)
    assert not got[0, 2].any() and torch.equal(got[0, [0, 1, 3, 4]], whole[0, [0, 1, 3, 4]])


def over_all_cells(
    turned: Tensor, layer: KV, feed: Feed, row: int, token: int, window: int, cap: float | None
) -> Tensor:
    """A token's result beside one that sees every cell, so that the loop leaves none out."""
    seen, (slots, places) = feed.seen(window), feed.cells()
    assert seen is not None
    own = seen[row, token].expand(1, 2, -1).contiguous()
    own[0, 1] = True
    twice = dataclasses.replace(
        feed,
        _index=(slots[row : row + 1], places[row : row + 1, [token, token]]),
        _masks={(window,): own},
    )
    one = turned[row : row + 1, [token, token]].contiguous()
    return loop_attention.mix(one, layer, twice, 8, 0.3, window, cap)[0, 0]


@pytest.mark.parametrize("kind", ["chains", "trees", "prompts"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("window", "cap"), [(1, None), (20, 5.0), (64, None), (150, None)])
@torch.inference_mode()
def test_what_windows_have_passed_is_not_read(
    kind: str, dtype: torch.dtype, window: int, cap: float | None
) -> None:
    """Rows of different lengths have the bits of a loop over all cells, with NaN in what lies
    before the windows of a row's tokens, and after its tokens."""
    model, noise = model_of("panels"), torch.Generator().manual_seed(1)
    cache = model.new_cache(2, 640, budget=CacheBudget(dtype=dtype))
    randomize(cache)
    cache.lengths = [301, 77] if kind != "prompts" else [0, 40]
    tree = from_paths([[[5, 6, 7], [5, 9], [3]], [[1, 2], [1, 3, 4]]], CPU)
    feed = {
        "chains": lambda: chain_feed(cache, [1, 0], [tokens(2), tokens(2, 1)]),
        "trees": lambda: tree_feed(cache, [0, 1], [7, 8], tree),
        "prompts": lambda: chain_feed(cache, [0, 1], [tokens(303), tokens(280, 1)]),
    }[kind]()
    batch, width = feed.tokens.shape
    turned = torch.randn(batch, width, 8 + 2 * 2, 64, generator=noise)
    given = {"heads": 8, "scale": 0.3, "window": window, "cap": cap}
    layer = cache.layer[0]
    wanted = loop_attention.mix(turned, layer, feed, **given)
    for row in range(batch):
        for token in {0, 1, width // 2, width - 1}:
            whole = over_all_cells(turned, layer, feed, row, token, window, cap)
            assert torch.equal(wanted[row, token], whole)
    for slot, start in zip(feed.slots, feed.starts, strict=True):
        for tensor in layer:
            tensor[slot, :, : max(0, start - window + 1)] = torch.nan
            tensor[slot, :, start + width :] = torch.nan
    assert torch.equal(loop_attention.mix(turned, layer, feed, **given), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_keys_and_values_of_16_bits(dtype: torch.dtype) -> None:
    """Rounded as torch rounds them, subnormals too, and to the largest number where there is none;
    a token alone has the bits that it has among others."""
    model, random_numbers = model_of("panels"), torch.Generator().manual_seed(1)
    shape, many = model.shape, 70
    cache, torchs, alone = (
        model.new_cache(1, 300, budget=CacheBudget(dtype=dtype)) for _ in range(3)
    )
    size = (1, many, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    turned = torch.randn(size, generator=random_numbers) * 2.0 ** torch.randint(
        -30, 3, size, generator=random_numbers
    )
    turned[0, 3, -1, :4] = torch.tensor([65519.0, 65520.0, -1e9, 2.0**-25])
    halfway = [1 + step * 2.0**-bits for step in (1, 3) for bits in (8, 11)]
    turned[0, 4, -1, :4] = torch.tensor(halfway)  # between two of bfloat16, and of float16
    given = {"heads": shape.heads, "scale": 0.3}
    feed = chain_feed(cache, [cache.acquire(0)], [tokens(many)])
    got = loop_attention.mix(turned, cache.layer[0], feed, **given)
    wanted = attention.mix(turned, torchs.layer[0], feed, **given)
    assert torch.equal(stored(cache)[0], stored(torchs)[0])
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-5) and bool(got.isfinite().all())
    for i in range(many):
        cell = chain_feed(alone, [0], [[7]])
        one = loop_attention.mix(turned[:, i : i + 1].contiguous(), alone.layer[0], cell, **given)
        assert torch.equal(one[0, 0], got[0, i])
        alone.lengths[0] += 1


@torch.inference_mode()
def one_by_one(model: Transformer, prompt: list[int], path: list[int]) -> Tensor:
    """[tokens of the path, V] by passes over single tokens."""
    cache = model.new_cache(1, 300)
    slot = cache.acquire(0)
    model.forward(chain_feed(cache, [slot], [prompt]), cache)
    cache.lengths[slot] = len(prompt)
    said = []
    for token in path:
        logits = model.forward(chain_feed(cache, [slot], [[token]]), cache).logits
        assert logits is not None
        said.append(logits[0, 0])
        cache.lengths[slot] += 1
    return torch.stack(said)


@pytest.mark.parametrize("backend", ["panels", "int8"])
@pytest.mark.parametrize(
    ("family", "window"), [("llama", None), ("llama", 20), ("gemma2", 20), ("gemma3_text", 20)]
)
@torch.inference_mode()
def test_a_tree_says_bit_for_bit_what_single_tokens_say(
    backend: str, family: str, window: int | None
) -> None:
    """Every node of a wide tree, in company of another row, equals decoding its path plainly."""
    model, rng = model_of(backend, window, family), random.Random(0)
    assert model.whole is not None or backend == "int8"
    prompts = [tokens(70, 1), tokens(33, 2)]
    paths = [[[rng.randrange(VOCAB) for _ in range(4)] for _ in range(6)] for _ in prompts]
    cache = model.new_cache(2, 300)
    for owner, prompt in enumerate(prompts):
        model.forward(chain_feed(cache, [cache.acquire(owner)], [prompt]), cache)
        cache.lengths[owner] = len(prompt)
    tree = from_paths(paths, CPU)
    logits = model.forward(tree_feed(cache, [0, 1], [7, 8], tree), cache).logits
    assert logits is not None
    contexts = tree.contexts()
    for row, prompt in enumerate(prompts):
        for slot in (4, 9, tree.counts[row]):
            path = [7 + row, *contexts[row][slot]]
            assert torch.equal(logits[row, slot], one_by_one(model, prompt, path)[-1])


@torch.inference_mode()
def test_a_model_does_not_read_what_its_windows_have_passed() -> None:
    """All layers in one call: NaN in the first layer, before its window, changes no bit."""
    model, tree = model_of("panels", 20, "gemma3_text"), chains([tokens(3, 4)], CPU)
    assert model.whole is not None
    cache = model.new_cache(1, 300)
    model.forward(chain_feed(cache, [cache.acquire(0)], [tokens(150)]), cache)
    cache.lengths[0] = 150
    wanted = model.forward(tree_feed(cache, [0], [7], tree), cache).logits
    for tensor in cache.layer[0]:
        tensor[:, :, : 150 - 20 + 1] = torch.nan
    got = model.forward(tree_feed(cache, [0], [7], tree), cache).logits
    assert wanted is not None and got is not None and torch.equal(got, wanted)
    for tensor in cache.layer[0]:
        tensor[:, :, 150 - 20 + 1] = torch.nan
    reached = model.forward(tree_feed(cache, [0], [7], tree), cache).logits
    assert reached is not None and bool(reached.isnan().any())


@torch.inference_mode()
def test_a_chain_of_any_length() -> None:
    """1 to 40 drafted tokens: the same bits."""
    model, prompt, path = model_of("panels"), tokens(50), tokens(41, 3)
    wanted = one_by_one(model, prompt, path)
    for count in (1, 2, 7, 40):
        cache = model.new_cache(1, 300)
        model.forward(chain_feed(cache, [cache.acquire(0)], [prompt]), cache)
        cache.lengths[0] = len(prompt)
        feed = tree_feed(cache, [0], path[:1], chains([path[1 : count + 1]], CPU))
        logits = model.forward(feed, cache).logits
        assert logits is not None and torch.equal(logits[0], wanted[: count + 1])


@pytest.mark.parametrize("flags", [(), PATHS[0]], ids=" ".join)
def test_a_chain_across_a_chunk_of_cells(
    flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cells are read 128 at a time: where the 129th is the last, it is multiplied by itself."""
    prompt, path = tokens(127), tokens(4, 3)
    with loops_for(flags, tmp_path_factory), torch.inference_mode():
        model = model_of.__wrapped__("panels")
        wanted, cache = one_by_one(model, prompt, path), model.new_cache(1, 300)
        together = chain_feed(cache, [cache.acquire(0)], [prompt + path])
        states = model.forward(together, cache, (-1,)).hidden[-1]
        assert torch.equal(model.head(states)[0, len(prompt) :], wanted)


def test_where_torchs_own_serves() -> None:
    """Other dtypes, heads whose width is no multiple of the loop's, and the backend `plain`."""
    loops = kernels.library()
    assert loops is not None
    assert not loop_attention.supports(torch.float64, CPU, 64)
    assert not loop_attention.supports(torch.float32, CPU, loops.width() // 2)
    assert model_of("panels").stack[0].mix.func is loop_attention.mix
    assert model_of("plain").stack[0].mix.func is attention.mix


@torch.inference_mode()
def test_what_does_not_fit_is_refused() -> None:
    """Another model's cache, and slots and places that it doesn't have; nothing is written."""
    model = model_of("panels")
    cache, shape = model.new_cache(2, 40), model.shape
    turned = torch.ones(1, 3, shape.heads + 2 * shape.kv_heads, shape.head_dim)

    def refused(match: str, turned: Tensor, layer: KV, **numbers: Any) -> None:
        given = {"_masks": {(None,): None}, **numbers}  # nothing is hidden
        feed = dataclasses.replace(chain_feed(cache, [0], [[1, 2, 3]]), **given)
        with pytest.raises(ForetokenError, match=match):
            loop_attention.mix(turned, layer, feed, shape.heads, 0.3)

    own = cache.layer[0]
    refused("with a cache of", turned, KV(*(x[:, :1].contiguous() for x in own)))
    refused("with a cache of", turned, KV(*(x[..., :16].contiguous() for x in own)))
    refused("with a cache of", turned, KV(own.keys, own.values[..., :16].contiguous()))
    wide = [x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])[..., : x.shape[-1]] for x in own]
    refused("with a cache of", turned, KV(wide[0], own.values))  # with gaps between their rows
    refused("with a cache of", turned, KV(own.keys, wide[1]))
    refused("places", turned[:, :2].contiguous(), own)
    refused("float64", turned.double(), own)
    refused("float64", turned, KV(*(x.double() for x in own)))
    for numbers in (
        {"slots": [2]},
        {"slots": [-1]},
        {"starts": [-4]},
        {"starts": [60], "limit": 99},
    ):
        refused("a slot or a place", turned, own, **numbers)
    mask = {(None,): torch.ones(1, 3, 2, dtype=torch.bool)}
    refused("a mask of", turned, own, _masks=mask)
    assert not stored(cache).any()
