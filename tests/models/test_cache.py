"""The cache: after anything that may happen to it, it is what a fresh prefill makes."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from caches import stored
from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache, KVShape, alike
from foretoken.models.feed import Feed, chain_feed, token_feed, tree_feed
from foretoken.models.model import CausalLM
from foretoken.models.native import attention
from foretoken.models.target import ModelTarget
from foretoken.models.warm import Text
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing import TableModel, logits_after, native, tiny_transformers
from foretoken.tree import empty
from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")
KINDS = ["native", "adapter", "table"]


@cache
def model_of(kind: str) -> CausalLM:
    if kind == "table":
        return TableModel.random(97)
    if kind == "native":
        return native(tiny_transformers())
    hf = pytest.importorskip("foretoken.models.hf.adapter", reason="the adapter is not there")
    return hf.HFModel(tiny_transformers())


def random_paths(rng: random.Random) -> list[list[int]]:
    """Up to five short token paths, some with a common beginning."""
    trunk = [rng.randrange(97) for _ in range(rng.randrange(3))]
    return [
        trunk + [rng.randrange(97) for _ in range(rng.randrange(4))]
        for _ in range(rng.randrange(6))
    ]


class World:
    """A target and its sequences, driven at random."""

    def __init__(self, model: CausalLM, seed: int, together: bool) -> None:
        self.model, self.rng = model, random.Random(seed)
        self.target = ModelTarget(model, 4, 60, nodes=32)
        self.target.cache._together = together
        self.alive: list[Sequence] = []

    def join(self) -> None:
        if len(self.alive) < 4:
            prompt = [self.rng.randrange(97) for _ in range(self.rng.randrange(1, 9))]
            sequence = Sequence.start(prompt, SamplingParams(temperature=0))
            self.target.begin(sequence)
            while self.target.pending(sequence):
                self.target.prefill([sequence], self.rng.randrange(1, 5))
            self.alive.append(sequence)

    def leave(self) -> None:
        if len(self.alive) > 1:
            self.target.end(self.alive.pop(self.rng.randrange(len(self.alive))))

    def fork(self) -> None:
        if 0 < len(self.alive) < 4:
            source = self.rng.choice(self.alive)
            cut = source.prompt_length
            copy = Sequence.start(source.tokens[:cut], SamplingParams(temperature=0))
            self.target.begin(copy)
            self.target.fork(source, copy)
            self.alive.append(copy)

    def step(self) -> None:
        """Score random trees for some sequences in any order, keep a random path of each."""
        some = self.rng.sample(self.alive, self.rng.randrange(1, len(self.alive) + 1))
        trees = from_paths([random_paths(self.rng) for _ in some], CPU)
        self.target.score(some, trees)
        kept = [
            self._walk(trees.parent_slots[row, :count].tolist())
            for row, count in enumerate(trees.counts)
        ]
        for row, (sequence, path) in enumerate(zip(some, kept, strict=True)):
            sequence.tokens += [int(trees.tokens[row, slot - 1]) for slot in path]
            sequence.tokens.append(self.rng.randrange(97))
        self.target.commit(some, kept)

    def _walk(self, parents: list[int]) -> list[int]:
        path: list[int] = []
        while True:
            here = path[-1] if path else 0
            children = [i for i, parent in enumerate(parents, 1) if parent == here]
            if not children or self.rng.random() < 0.3:
                return path
            path.append(self.rng.choice(children))

    def check(self) -> None:
        """What the cache holds says the same as a pass over all tokens."""
        for sequence in self.alive:
            assert self.target.pending(sequence) == 0
            scores = self.target.score([sequence], empty(1, CPU))
            expected = logits_after(self.model, sequence.tokens)
            torch.testing.assert_close(scores.logits[0, 0], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_any_history_is_a_fresh_prefill(kind: str, seed: int, together: bool) -> None:
    """Joining, leaving, forking and random commits, in ragged batches and any row order."""
    world = World(model_of(kind), seed, together)
    world.join()
    for _ in range(14):
        move = world.rng.choice([world.join, world.leave, world.fork, world.step, world.step])
        if move is not world.step or max(len(s.tokens) for s in world.alive) < 50:
            move()
    world.check()


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_tree_is_its_paths(kind: str) -> None:
    """Each node's logits are those of its path alone, whatever stands beside it."""
    model, rng = model_of(kind), random.Random(3)
    target = ModelTarget(model, 3, 40, nodes=32)
    sequences = [Sequence.start(p, SamplingParams()) for p in ([5, 9, 2, 5], [40], [1, 2])]
    for sequence in sequences:
        target.begin(sequence)
    target.prefill([sequences[0], sequences[2]], 8)
    trees = from_paths([random_paths(rng), random_paths(rng), []], CPU)
    scores = target.score(sequences, trees)
    for row, sequence in enumerate(sequences):
        for slot in range(trees.counts[row] + 1):
            expected = logits_after(model, sequence.tokens + trees.contexts()[row][slot])
            torch.testing.assert_close(scores.logits[row, slot], expected, atol=1e-9, rtol=0)


def small(slots: int = 2, length: int = 6, together: bool = True) -> KVCache:
    return KVCache(alike(1, 1, 1), slots, length, torch.float64, CPU, together=together)


def filled(cache: KVCache, slot: int, cells: int, value: float) -> None:
    """Put a value into a slot's first cells, after saying so to the cache."""
    cache.reserve([slot], [cells - cache.lengths[slot]])
    for layer in cache.layer:
        for tensor in layer:
            tensor[slot, :, :cells] = value


def test_slots_are_the_first_ones() -> None:
    """Owners get slots in order; the last one moves into a hole, with what it holds."""
    held = small(3)
    assert [held.acquire(owner) for owner in (10, 11, 12)] == [0, 1, 2]
    filled(held, 2, 3, 7)
    held.lengths[2] = 3
    held.release(10)
    assert (held.slot(12), held.slot(11), held.free) == (0, 1, 1)
    assert held.lengths[0] == 3 and bool((stored(held)[:, :, 0, :, :3] == 7).all())
    assert held.owns(12) and not held.owns(10)
    held.release(11)
    held.release(12)
    assert held.free == 3


def test_a_sequence_stays_where_it_is() -> None:
    """Where the attention reads any slot, nothing is moved, and a new owner gets the hole."""
    held = small(3, together=False)
    assert [held.acquire(owner) for owner in (10, 11, 12)] == [0, 1, 2]
    for slot in range(3):
        filled(held, slot, 3, 5 + slot)
        held.lengths[slot] = 3
    before = stored(held).clone()
    held.release(10)
    assert (held.slot(11), held.slot(12), held.free, held.lengths) == (1, 2, 1, [0, 3, 3])
    assert torch.equal(stored(held)[:, :, 1:], before[:, :, 1:])
    assert not stored(held)[:, :, 0].any()
    assert held.acquire(13) == 0 and held.free == 0
    held.release(11)
    held.release(12)
    assert held.acquire(14) == 1 and held.slot(13) == 0


def test_warm_texts_stay_where_they_are() -> None:
    """The text that a new one goes on from is taken over in its place; one that others go on from,
    or of which a part is in common, is copied; the oldest is the first to go."""
    held = small(3, together=False)
    texts = [[1, 2, 3], [1, 2, 9], [4, 5, 6]]
    for owner, tokens in enumerate(texts):
        slot = held.acquire(owner, Text(tokens, ""), 0)
        filled(held, slot, 3, 1.0 + owner)
        held.lengths[slot] = 3
    held.release(0, warm=True)
    held.release(2, warm=True)
    assert held.lengths == [3, 3, 3] and held.slot(1) == 1
    before = stored(held).clone()
    assert held.acquire(3, Text([4, 5, 6, 7], ""), 4) == 2  # takes over
    assert held.lengths[2] == 3 and torch.equal(stored(held), before)
    assert held.acquire(4, Text([1, 2, 9, 9], ""), 4) == 0  # the only place left; a copy of slot 1
    assert held.lengths == [3, 3, 3] and held.free == 0
    assert torch.equal(stored(held)[:, :, 0], before[:, :, 1])
    assert torch.equal(stored(held)[:, :, 1:], before[:, :, 1:])
    held.release(3, warm=True)
    held.release(1, warm=True)
    assert held.acquire(5, Text([8], ""), 0) == 2 and not stored(held)[:, :, 2].any()
    assert held.lengths == [3, 3, 0]
    held.forget()
    assert held.lengths == [3, 0, 0] and not stored(held)[:, :, 1:].any()


def test_a_full_cache_says_so() -> None:
    """One owner too many, and a pass that doesn't fit, are refused in a sentence."""
    held = small(1)
    held.acquire(1)
    with pytest.raises(ForetokenError, match="max_num_seqs"):
        held.acquire(2)
    held.reserve([0], [6])
    with pytest.raises(ForetokenError, match="max_model_len"):
        held.reserve([0], [7])


def test_a_slot_is_handed_on_clean() -> None:
    """A NaN left by one owner is gone when the next one gets the slot."""
    held = small(1)
    slot = held.acquire(1)
    feed = chain_feed(held, [slot], [[1, 2, 3]])
    filled(held, slot, 3, torch.nan)
    assert feed.starts == [0]
    held.release(1)
    held.acquire(2)
    assert not stored(held).any()


def test_a_short_rows_padding_goes_to_the_last_cell() -> None:
    """In a ragged pass the shorter row is written no further than its own tokens, and in the cell
    that is never read; the slot is handed on clean."""
    held = small(2)
    slots = [held.acquire(1), held.acquire(2)]
    feed = chain_feed(held, slots, [[1, 2, 3, 4], [1]])
    attention.write(held.layer[0], torch.full((2, 4, 2, 1, 1), torch.nan).double(), feed)
    found = stored(held)[0, 0, :, 0, :, 0].isnan().nonzero().tolist()
    assert found == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 6]]
    held.release(2)
    held.acquire(3)
    assert not stored(held)[:, :, 1].any()


def test_padding_is_remembered() -> None:
    """Its cell is there, and not clean, also after passes that had none."""
    held = small(2)
    slots = [held.acquire(owner, Text([1, 2], ""), 0) for owner in (1, 2)]
    chain_feed(held, slots, [[1, 2], [1]])
    before = held.written
    chain_feed(held, slots, [[1, 2], [1, 2]])
    assert held.written == before
    for tensor in held.layer[0]:
        tensor[1, :, 6] = torch.nan
    held.lengths[1] = 2
    held.release(2, warm=True)
    assert held.lengths == [0, 2] and not stored(held)[:, :, :, :, 6:].any()


def test_a_text_that_a_warm_one_goes_on_from_goes() -> None:
    """It is of no use beside the longer one; one that begins otherwise stays."""
    held = small(3, together=False)
    for owner, tokens in enumerate(([1, 2, 3], [1, 2, 3, 4], [1, 2, 9])):
        slot = held.acquire(owner, Text(tokens, ""), 0)
        filled(held, slot, len(tokens), 1.0)
        held.lengths[slot] = len(tokens)
    for owner in (0, 2, 1):
        held.release(owner, warm=True)
    assert sorted(held.lengths) == [0, 3, 4]


def test_what_was_written_before_a_copy_is_cleaned_too() -> None:
    """A copy's own cells after the copied ones: of a draft, say."""
    held = small(2)
    one, two = held.acquire(1), held.acquire(2)
    chain_feed(held, [two], [[1, 2, 3, 4]])
    filled(held, two, 4, torch.nan)
    held.copy(one, two, 0)
    held.release(2)
    held.acquire(3)
    assert not stored(held).any()


def long(window: int | None = 30) -> KVCache:
    """Two slots; the second layer looks back 30 tokens. A page is 32 cells of it."""
    shapes = [KVShape(2, 8, 16), KVShape(1, 16, 8, window)]
    return KVCache(shapes, 2, 4000, torch.float64, CPU, spare=10)


def grow(cache: KVCache, slot: int, length: int, value: float = 1) -> None:
    """Commit ones, or others, up to this length, 64 at a time."""
    while cache.lengths[slot] < length:
        start = cache.lengths[slot]
        end = min(start + 64, length)
        cache.reserve([slot], [end - start])
        for layer in cache.layer:
            for tensor in layer:
                tensor[slot, :, start:end] = value
        cache.lengths[slot] = end


@pytest.mark.skipif(not long().lazy, reason="this system backs memory at once")
def test_a_window_gives_back_what_it_has_passed() -> None:
    """What a layer will look back at stays, also for texts that are `spare` tokens shorter; a copy
    has it, where it is still there."""
    held = long()
    one, two = held.acquire(1), held.acquire(2)
    grow(held, one, 3000)
    full, windowed = held.layer
    assert full.keys[one, :, :3000].all() and full.values[one, :, :3000].all()
    for tensor in windowed:
        there = tensor[one, 0, :3000].all(-1).nonzero()[:, 0].tolist()
        assert there == list(range(there[0], 3000)) and 2400 < there[0] <= 3000 - 10 - 30
    assert held.written <= held.needs(3000) < long(None).needs(3000)
    assert held.keeps(one, 3000) and held.keeps(one, 2990) and not held.keeps(one, 1000)
    held.copy(one, two, 2990)
    assert all(tensor[two, :, 2960:2990].all() for tensor in (*windowed, *full))
    assert held.keeps(two, 2990) and not held.keeps(two, 1000)
    grow(held, two, 3600)
    held.release(1)  # the second one moves into its place
    assert held.slot(2) == one and not any(tensor[two].any() for tensor in (*windowed, *full))
    assert all(tensor[one, :, 3570:3600].all() for tensor in (*windowed, *full))
    held.release(2)
    assert held.written == 0 and held.keeps(one, 0)


@pytest.mark.skipif(not long().lazy, reason="this system backs memory at once")
@pytest.mark.parametrize(("widest", "passes"), [(1, 900), (500, 6)])
def test_a_window_fills_no_more_than_is_reserved(widest: int, passes: int) -> None:
    """Token by token and in the widest passes, at each of which something may stand that the window
    has passed."""
    budget = CacheBudget(widest=widest)
    shapes = [KVShape(2, 8, 16), KVShape(1, 16, 8, 30)]
    held = KVCache(shapes, 1, 4000, torch.float64, CPU, spare=10, budget=budget)
    slot = held.acquire(1)
    for _ in range(passes):
        held.reserve([slot], [widest])
        held.lengths[slot] += widest
        assert held.written <= held.needs(held.lengths[slot])


@pytest.mark.skipif(not long().lazy, reason="this system backs memory at once")
def test_what_a_window_keeps() -> None:
    """All that a text needs that is up to `spare` tokens shorter, at each length; and it is said of
    just those lengths whose window is whole."""
    held = long()
    slot = held.acquire(1)
    for length in range(800):
        held.reserve([slot], [1])
        assert held.keeps(slot, max(0, length - 10)), length
        held.lengths[slot] += 1
    grow(held, slot, 3000)
    keys = held.layer[1].keys[slot, 0]
    whole = [bool(keys[length - 30 : length].all()) for length in range(2300, 3000)]
    assert [held.keeps(slot, length) for length in range(2300, 3000)] == whole
    assert not all(whole) and any(whole)


def test_a_copy_gives_back_what_stood_before_its_window() -> None:
    """Nobody would count it: what a second sample had read of its prompt, say."""
    held = long()
    one, two = held.acquire(1), held.acquire(2)
    grow(held, one, 3000)
    grow(held, two, 200, 5.0)
    held.copy(one, two, 2990)
    full, windowed = held.layer
    assert (full.keys[two, :, :2990] == 1).all() and (windowed.values[two, :, 2960:2990] == 1).all()
    start = held._starts[two]
    assert start == held._starts[one]
    assert not any(tensor[two, :, :start].any() for tensor in windowed)


@pytest.mark.skipif(not long().lazy, reason="this system backs memory at once")
@pytest.mark.parametrize("lengths", [(3000, 40), (40, 3000), (3000, 2200)])
def test_a_warm_text_and_a_running_one_change_places(lengths: tuple[int, int]) -> None:
    """Each is whole where it is now, and around it are zeros, whatever a draft, padding or the
    other text had left there, and whichever of them a window has cut."""
    held = long()
    for owner, length in enumerate(lengths):
        slot = held.acquire(owner, Text([owner] * length, ""), 0)
        grow(held, slot, length, 1.0 + owner)
    before = [[tensor.clone() for tensor in layer] for layer in held.layer]
    held.reserve([0, 1], [9, 3])
    for slot, length in enumerate(lengths):
        for tensor in (*held.layer[0], *held.layer[1]):
            tensor[slot, :, length : length + 9] = torch.nan
            tensor[slot, :, -1] = torch.nan
    held.release(0, warm=True)
    assert held.slot(1) == 0 and held.lengths == [*reversed(lengths)]
    for now, then in zip(held.layer, before, strict=True):
        for tensor, old in zip(now, then, strict=True):
            assert torch.equal(tensor, old.flip(0))
    held.forget()
    held.release(1)
    assert held.written == 0 and not any(x.any() for layer in held.layer for x in layer)


@pytest.mark.skipif(not long().lazy, reason="this system backs memory at once")
@pytest.mark.parametrize("both", [False, True])
def test_the_oldest_text_is_overwritten(both: bool) -> None:
    """Where every slot is warm or taken, a new text gets zeros, and only the oldest goes. Pages
    that it is about to fill stay, but not where a window has cut the old one."""
    for oldest, kept in ((240, 100), (90, 90), (2000, 0)):
        held = long()
        for owner, length in enumerate((oldest, 200)):
            slot = held.acquire(owner, Text([owner] * length, ""), 0)
            grow(held, slot, length, 1.0 + owner)
            held.reserve([slot], [5])
            held.layer[0].keys[slot, :, length : length + 5] = torch.nan
        held.release(0, warm=True)
        if both:
            held.release(1, warm=True)
        slot = held.acquire(2, Text([2] * 100, ""), 0)
        assert slot == (0 if both else 1)
        layers = [tensor for layer in held.layer for tensor in layer]
        assert not any(tensor[slot].any() for tensor in layers)
        assert all((tensor[1 - slot, :, :200] == 2).all() for tensor in layers)
        assert held.lengths[1 - slot] == 200 and held._ends[slot] == kept
        for owner in (1, 2):
            held.release(owner)
        held.forget()
        assert held.written == 0


def test_windows_can_be_kept() -> None:
    """For drafters that read a layer's whole history."""
    held = long()
    held.keep_windows()
    grow(held, held.acquire(1), 3000)
    assert all(tensor[0, :, :3000].all() for layer in held.layer for tensor in layer)
    assert held.written <= held.needs(3000) == long(None).needs(3000)


@torch.inference_mode()
def test_a_nan_stays_in_its_row() -> None:
    """A neighbour's NaN, or one left behind a committed length, poisons nobody."""
    model = model_of("native")
    target = ModelTarget(model, 2, 20)
    sequences = [Sequence.start(p, SamplingParams()) for p in ([5, 9, 2], [7, 8, 9, 10, 11])]
    for sequence in sequences:
        target.begin(sequence)
        target.prefill([sequence], 9)
    for layer in target.cache.layer:
        for tensor in layer:
            tensor[1] = torch.nan
    logits = target.score(sequences, empty(2, CPU)).logits
    assert bool(logits[1].isnan().all())
    torch.testing.assert_close(logits[0, 0], logits_after(model, [5, 9, 2]), atol=1e-9, rtol=0)


def visible(feed: Feed, row: int, place: int, window: int | None) -> list[int]:
    """Cache places that a token sees, one by one."""
    seen = []
    for column in range(feed.length):
        offset = column - feed.starts[row]
        inside = 0 <= offset < feed.tokens.shape[1]
        if not (bool(feed.ancestors[row, place, offset]) if inside else offset < 0):
            continue
        at = int(feed.positions[row, offset]) if inside else column
        if window is None or int(feed.positions[row, place]) - at < window:
            seen.append(column)
    return seen


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_masks_one_by_one(window: int | None) -> None:
    """Ragged rows, trees and windows: the mask is what looking at every pair says."""
    held = small(3, 30)
    for owner, length in ((1, 4), (2, 0), (3, 9)):
        held.lengths[held.acquire(owner)] = length
    rng = random.Random(1)
    trees = from_paths([random_paths(rng) for _ in range(3)], CPU)
    feeds = [
        tree_feed(held, [2, 0, 1], [1, 2, 3], trees),
        chain_feed(held, [0, 1, 2], [[1, 2, 3], [4], [5, 6]]),
        chain_feed(held, [1], [[4, 4, 4, 4, 4]]),
        token_feed(held, [1, 2], torch.tensor([4, 5])),
        token_feed(held, [2], torch.tensor([4])),
    ]
    for feed in feeds:
        mask = feed.visible(window)
        additive = feed.mask(torch.float64, window)
        assert additive is None or (additive[:, 0] == 0).equal(mask)
        assert additive is not None or bool(mask.all())
        for row in range(len(feed.slots)):
            for place in range(feed.tokens.shape[1]):
                found = mask[row, place].nonzero()[:, 0].tolist()
                assert found == visible(feed, row, place, window)
