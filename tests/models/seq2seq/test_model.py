"""Encoder–decoders against transformers: chains, and each path of trees alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.feed import chain_feed, tree_feed
from foretoken.models.seq2seq.cache import SourcedCache
from foretoken.trees.from_lists import from_paths
from seq2seq_models import CPU, NAMES, PAD, SOURCES, begun, native_of, related, theirs, tiny

TEXTS = ([1, 7, 30, 4, 19, 30, 4, 2, 55, 13, 6, 9, 40, 41, 3, 5, 7], [1, 12, 5], [1, 3, 3, 3, 9, 8])
"""Some longer than the distance to which relative positions are told apart."""

BRANCHES = (
    [[20, 21, 22], [20, 23], [24, 21, 5, 6]],
    [[9]],
    [[7, 7, 7], [8]],
)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_chains_are_transformers(name: str) -> None:
    """Ragged sources and ragged texts in one batch, in slots that are in order and not."""
    chains_agree(name)


def test_padding_of_sources_is_not_seen() -> None:
    chains_agree("bart")


@pytest.mark.parametrize("name", NAMES)
def test_each_path_of_a_tree_is_scored_as_if_alone(name: str) -> None:
    paths_agree(name)


def test_distances_of_t5_are_those_of_depths() -> None:
    paths_agree("t5")


@torch.inference_mode()
def chains_agree(name: str) -> None:
    model = tiny(name)
    native = native_of(model)
    for order in (1, -1):
        cache = native.new_cache(3, 48)
        slots = [cache.acquire(row) for row in range(3)][::order]
        native.read(SOURCES[:3], slots, cache)
        feed = chain_feed(cache, slots, TEXTS)
        feed.last = None
        logits = native.forward(feed, cache).logits
        assert logits is not None
        for row, (source, text) in enumerate(zip(SOURCES, TEXTS, strict=False)):
            close(logits[row, : len(text)], wanted(name, source, text))


@torch.inference_mode()
def paths_agree(name: str) -> None:
    native = native_of(tiny(name))
    cache, slots = begun(native, SOURCES[:3], [text[:-1] for text in TEXTS])
    trees = from_paths(BRANCHES, CPU)
    feed = tree_feed(cache, slots, [text[-1] for text in TEXTS], trees)
    logits = native.forward(feed, cache).logits
    assert logits is not None
    for row, (source, text) in enumerate(zip(SOURCES, TEXTS, strict=False)):
        for slot in range(trees.counts[row] + 1):
            path, node = list[int](), slot
            while node:
                path.insert(0, int(trees.tokens[row, node - 1]))
                node = int(trees.parent_slots[row, node - 1])
            close(logits[row, slot], wanted(name, source, [*text, *path])[-1])


def wanted(name: str, source: list[int], text: list[int]) -> torch.Tensor:
    """[T, V] transformers' logits, and what its generation bans."""
    logits: torch.Tensor = theirs(tiny(name), source, text)
    if name == "marian":
        logits[:, PAD] = -torch.inf
    return logits


@torch.inference_mode()
def test_a_model_in_float32_is_the_same_model() -> None:
    """By the backend that `auto` takes, up to rounding."""
    model = related(tiny("bart"), 0).float()
    native = native_of(model, "auto")
    model.double()
    cache, slots = begun(native, SOURCES[:2], [[1, 4, 5], [1, 9]])
    feed = chain_feed(cache, slots, [[7], [8]])
    logits = native.forward(feed, cache).logits
    assert logits is not None
    for row, text in enumerate(([1, 4, 5, 7], [1, 9, 8])):
        want = theirs(model, SOURCES[row], text)[-1]
        torch.testing.assert_close(logits[row, 0].double(), want, atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_a_context_may_be_full() -> None:
    """Sources and texts take all positions that the tables have, beside rows of other lengths,
    whose padding would lie beyond them."""
    native, full = native_of(tiny("bart")), [3 + i % 50 for i in range(64)]
    cache = native.new_cache(2, 64, spare=8)
    slots, sources = [cache.acquire(row) for row in range(2)], (full, SOURCES[0])
    native.read(sources, slots, cache)
    native.forward(chain_feed(cache, slots, [full[:-1], [1, 9]], logits=False), cache)
    cache.lengths[:] = [63, 2]
    feed = chain_feed(cache, slots, [full[-1:], [5, 6, 7, 8]])
    logits = native.forward(feed, cache).logits
    assert logits is not None
    for row, text in enumerate((full, [1, 9, 5, 6, 7, 8])):
        close(logits[row, 0], wanted("bart", sources[row], text)[-1])


@torch.inference_mode()
@pytest.mark.parametrize("rows", [[0, 1], [1, 0], [1]])
def test_keys_and_values_in_fewer_bits(rows: list[int]) -> None:
    """Those of sources too."""
    native = native_of(tiny("bart"))
    cache = native.new_cache(2, 32, budget=CacheBudget(dtype=torch.float16))
    assert cache.sources.layer[0].keys.dtype == torch.float16
    slots = [cache.acquire(row) for row in range(2)]
    native.read(SOURCES[:2], slots, cache)
    logits = native.forward(chain_feed(cache, rows, [[1, 4, 5]] * len(rows)), cache).logits
    assert logits is not None
    for row, slot in enumerate(rows):
        want = wanted("bart", SOURCES[slot], [1, 4, 5])[-1]
        torch.testing.assert_close(logits[row, 0], want, atol=0.05, rtol=0.02)


@torch.inference_mode()
def test_without_a_source_nothing_is_written() -> None:
    native = native_of(tiny("bart"))
    cache: Any = native.new_cache(1, 8)
    assert isinstance(cache, SourcedCache)
    slots = [cache.acquire(0)]
    with pytest.raises(ForetokenError, match="writes to a source, and there is none"):
        native.forward(chain_feed(cache, slots, [[1]]), cache)
    with pytest.raises(ForetokenError, match="there is none"):
        native.read([[]], slots, cache)
    with pytest.raises(ForetokenError, match="no hidden states"):
        native.read([[3]], slots, cache)
        native.forward(chain_feed(cache, slots, [[1]]), cache, (1,))
    both = native.new_cache(2, 8)  # of which one has none
    for row in range(2):
        both.acquire(row)
    with pytest.raises(ForetokenError, match="there is none"):
        native.read([[3], []], [0, 1], both)
    native.read([[3]], [0], both)
    with pytest.raises(ForetokenError, match="there is none"):
        native.forward(chain_feed(both, [0, 1], [[1], [1]]), both)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_the_last_state_is_what_the_head_reads(name: str) -> None:
    """Of every token, also where logits are of the last one alone, or of none."""
    native = native_of(tiny(name))
    cache, slots = begun(native, SOURCES[:1], [[1, 4, 5]])
    feed = chain_feed(cache, slots, [[7, 8]])
    out = native.forward(feed, cache, (-1,))
    assert out.hidden[-1].shape == (1, 2, native.width) and out.logits is not None
    assert torch.equal(native.head(out.hidden[-1][:, 1:]), out.logits)
    quiet = native.forward(chain_feed(cache, slots, [[7, 8]], logits=False), cache, (-1,))
    assert quiet.logits is None and torch.equal(quiet.hidden[-1], out.hidden[-1])
