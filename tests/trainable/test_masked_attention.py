"""Attention some places at a time: what all together compute, in memory that grows with a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from foretoken.drafters.kangaroo import KangarooAdapter
from foretoken.drafters.mtp import MtpModule
from foretoken.drafters.peagle import PEagleModule
from foretoken.drafters.specdec import SpecDecModel
from foretoken.testing import Pair
from foretoken.trainable import masked_attention
from foretoken.trainable.appended import block_positions
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.cross_attention import CrossAttentionModule
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.masked_attention import attend_masked
from lessons import seeded

HEADS: dict[str, Any] = dict(heads=2, kv_heads=1)
BLOCKS: dict[str, Any] = dict(HEADS, block_size=4, num_layers=2)
MODULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "eagle": (EagleModule, dict(HEADS, unroll=3)),
    "eagle3": (Eagle3Module, dict(HEADS, unroll=3, draft_vocab_size=None, num_layers=2)),
    "peagle": (PEagleModule, dict(HEADS, depths=3, blocks=7, draft_vocab_size=None)),
    "mtp": (MtpModule, HEADS),
    "kangaroo": (KangarooAdapter, HEADS),
    "glide": (CrossAttentionModule, HEADS),
    "specdec": (SpecDecModel, dict(masks=3, blocks=7, num_attention_heads=2)),
    "dflash": (BlockModule, dict(BLOCKS, anchors=9)),
    "dflash, windows": (
        BlockModule,
        dict(BLOCKS, anchors=9, window=[5, None], causal=[True, False]),
    ),
}


def lesson_of(pair: Pair, length: int) -> Lesson:
    """Random tokens and states of it: texts of several lengths, and in the second row padding."""
    random = torch.Generator().manual_seed(length)
    ends = torch.tensor([[0.3, 0.45, 1.0], [0.6, 0.7, 0.9]]) * length
    places = torch.arange(length).expand(2, -1)
    records = (places[..., None] >= ends[:, None]).sum(-1)
    records[1][records[1] == 3] = -1
    starts = torch.cat((torch.zeros(2, 1), ends), 1).ceil().long()
    positions = places - starts.gather(1, records.clamp(min=0))
    positions[records < 0] = 0

    def states(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=random, dtype=torch.float64)

    hidden = {layer: states(length, pair.target.width) for layer in (-1, 0, 1, 2)}
    keys, values = (states(pair.target.kv_heads, length, pair.target.head_dim) for _ in range(2))
    tokens = torch.randint(pair.target.vocab_size, (2, length), generator=random)
    weight = (records >= 0).double() * (positions > 0)
    target: Any = pair.target
    none: Any = None
    return Lesson(
        tokens,
        positions,
        records,
        weight,
        torch.where(positions > 0, 4, -1),
        hidden,
        target.head,
        target.embed,
        none,
        lambda layer: (keys, values),
    )


def at_once(patch: pytest.MonkeyPatch, numbers: int) -> None:
    patch.setattr(masked_attention, "_NUMBERS", numbers)
    patch.setattr(masked_attention, "_QUERIES", 0)
    patch.setattr(masked_attention, "_PLACES", 0)


def learned(module: Any, lesson: Lesson) -> tuple[Tensor, list[Tensor]]:
    """The loss and all gradients of a step whose draws are those of a seed."""
    module.zero_grad()
    torch.manual_seed(5)
    loss = module(lesson, Objective({"kl_div": 1.0}))
    loss.backward()
    grads = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
    return loss.detach(), grads


@pytest.mark.parametrize("name", MODULES)
def test_a_step_is_the_same_in_parts(
    small: Pair, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many places attend together, also where their number isn't a multiple of that; each
    part has a mask of its own."""
    cls, shape = MODULES[name]
    module, lesson, checked = seeded(cls, small, **shape).train(), lesson_of(small, 41), []
    made = masked_attention.checkpoint
    monkeypatch.setattr(
        masked_attention, "checkpoint", lambda *a, **b: checked.append(a[1]) or made(*a, **b)
    )
    whole = learned(module, lesson)
    assert len(whole[1]) > 5 and not checked
    for numbers in (2 * 2 * 41 * 9, 1):
        at_once(monkeypatch, numbers)
        parts = learned(module, lesson)
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    assert checked and any(at.stop - at.start == 1 for at in checked)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for written in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(written, Tensor):
                self.numbers = max(self.numbers, written.numel())
        return found


def memory(module: Any, lesson: Lesson) -> tuple[int, int]:
    """Numbers of a step's largest tensor, and bytes that lie there between its two directions."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with LargestTensor() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = module(lesson, Objective({"kl_div": 1.0}))
        loss.backward()
    return largest.numbers, sum(kept.values())


@pytest.mark.parametrize("name", MODULES)
def test_memory_grows_with_a_row_and_not_with_its_square(
    small: Pair, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At twice the length no tensor is more than twice as large, and no more than twice is kept;
    masks and scores of all pairs would be four times as many."""
    at_once(monkeypatch, 25_000)
    cls, shape = MODULES[name]
    module = seeded(cls, small, **shape).train()
    found = [memory(module, lesson_of(small, length)) for length in (512, 1024)]
    for one, two in zip(*found, strict=True):
        assert two <= 2.1 * one
    assert found[1][0] < 1024**2 / 4


@pytest.mark.parametrize("name", ["peagle", "specdec"])
def test_many_blocks(small: Pair, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With twice the length and twice the blocks twice as much: nothing has numbers for each block
    and place."""
    at_once(monkeypatch, 100_000)
    cls, shape = MODULES[name]
    found = [
        memory(
            seeded(cls, small, **{**shape, "blocks": length // 4}).train(), lesson_of(small, length)
        )
        for length in (512, 1024)
    ]
    for one, two in zip(*found, strict=True):
        assert two <= 2.1 * one


@pytest.mark.parametrize("name", MODULES)
def test_long_rows_by_default(small: Pair, name: str) -> None:
    """No tensor has a quarter of the numbers that masks of all pairs of a row have."""
    cls, shape = MODULES[name]
    largest, _ = memory(seeded(cls, small, **shape).train(), lesson_of(small, 2048))
    assert largest < 2048**2 / 4


def causal(lesson: Lesson) -> Tensor:
    """[B, T, T] a text's place sees itself and what is before it in its text."""
    same = lesson.records[:, :, None] == lesson.records[:, None]
    return same.tril()


def windowed(lesson: Lesson) -> Tensor:
    return causal(lesson).triu(-4)


def scattered(lesson: Lesson) -> Tensor:
    """Places with holes between them, of all texts."""
    random = torch.Generator().manual_seed(1)
    seen = torch.rand(*lesson.records.shape, lesson.records.shape[1], generator=random) < 0.1
    return seen | torch.eye(lesson.records.shape[1], dtype=torch.bool)


@pytest.mark.parametrize("seen", [causal, windowed, scattered])
def test_attention_by_hand(
    small: Pair, seen: Callable[[Lesson], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mask, at once and in parts; one head of keys for two of queries, another scale."""
    visible = seen(lesson_of(small, 29))
    given = [torch.randn(2, 29, heads, 6, dtype=torch.float64) for heads in (4, 2, 2)]
    q, key, value = (x.requires_grad_() for x in given)
    keys, values = (x.repeat_interleave(2, 2) for x in (key, value))
    scores = 0.3 * torch.einsum("bqhw,bkhw->bhqk", q, keys)
    shares = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    wanted = torch.einsum("bhqk,bkhw->bqhw", shares, values).flatten(2)
    weights = torch.randn_like(wanted)
    right = torch.autograd.grad((wanted * weights).sum(), given)
    for numbers in (10**6, 2 * 29 * 7, 2 * 29 * 10, 1):
        at_once(monkeypatch, numbers)
        mixed = attend_masked(q, key, value, lambda at: visible[:, at], scale=0.3)
        torch.testing.assert_close(mixed, wanted, rtol=1e-12, atol=1e-12)
        found = torch.autograd.grad((mixed * weights).sum(), given)
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_the_masks_of_texts_and_of_blocks_after_them(small: Pair) -> None:
    """Place by place, any stretch of them; a place sees those of its text up to itself, a block's
    token the text up to the block's place and the block up to itself."""
    lesson, tokens = lesson_of(small, 19), 3
    places = torch.tensor([[4, 0, 18], [9, 2, 12]])
    positions, mask = block_positions(lesson, places, tokens)
    wanted = torch.zeros(2, 28, 28, dtype=torch.bool)
    for b in range(2):
        for query in range(28):
            block, ahead = divmod(query - 19, tokens)
            last = query if query < 19 else int(places[b, block])
            for key in range(last + 1):
                wanted[b, query, key] = lesson.records[b, key] == lesson.records[b, last]
            if query >= 19:
                wanted[b, query, query - ahead : query + 1] = True
                assert positions[b, query - 19] == lesson.positions[b, last] + 1 + ahead
    assert torch.equal(lesson.mask(slice(None)), wanted[:, :19, :19])
    for at in (slice(0, 28), slice(0, 5), slice(7, 8), slice(17, 22), slice(19, None)):
        assert torch.equal(mask(at), wanted[:, at])
    assert torch.equal(mask(slice(3, 17))[..., :19], lesson.mask(slice(3, 17)))


def test_blocks_before_which_there_is_nothing(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with fewer roots than others are filled with such places: they see themselves alone."""
    module, lesson = seeded(BlockModule, small, **BLOCKS), lesson_of(small, 19)
    roots = torch.tensor([[0, 4, 9], [0, 18, 3]])
    with torch.no_grad():
        whole = module.outputs(lesson, roots)
        at_once(monkeypatch, 1)
        parts = module.outputs(lesson, roots)
    assert whole.isfinite().all()
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
