"""DFlash's layers, which predict a block in one pass from the target's states: module and serving.

Source: Chen, Liang, Liu 2026 (DFlash), section 3, and its checkpoints' names. A block is the root
and mask tokens after it, which attend to each other in both directions. In every layer they also
attend to keys and values of all tokens before the root, which that layer computes from the target's
states after several of its layers, joined by `fc` and `hidden_norm`. The output at a mask, normed,
goes through the target's head and predicts the token of that very place. Training draws roots at
random, so that one pass trains many blocks. Departures: without a `mask_token_id` the mask is a
trained embedding; the states of a target of fewer than 8 layers come from its first, middle and
last but one; the objective's decay, from place to place, replaces theirs, exp(-1/7) for blocks
of 16.

Legend: B rows, T places, A roots of a row, S block size, N = S - 1 predicted places, X = A · S,
D width, H heads, K key/value heads, W head width, V vocabulary, L layers of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import block_feed, chain_feed
from foretoken.models.native import attention
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.feature_layer import FeatureLayer
from foretoken.trainable.head_losses import chances_at_roots, predictions_loss, ranks_at_roots
from foretoken.trainable.headed import Headed, head_size
from foretoken.trainable.layer import (
    Attend,
    LayerShape,
    attend_cached,
    of_all,
    of_each,
    rotary_angles,
)
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.masked_attention import Mask, attend_at_once, for_heads, in_parts
from foretoken.trainable.root_states import kept_slots

_ROOTS = 64  # whose blocks run at once where all of a row's are needed

Pair = tuple[Tensor, Tensor]
"""Keys and values [B, T, K, W]."""


class BlockLayer(FeatureLayer):
    """A decoder layer; its norm before the attention applies to the block alone."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.input_layernorm = nn.RMSNorm(shape.outer, eps=shape.norm_eps)


class BlockModule(Headed):
    """DFlash's weights. num_layers: of the drafter; block_size: the root and the places predicted
    after it; target_layer_ids: layers of the target that it reads, counted from 0; mask_token_id:
    None for a trained embedding; heads, kv_heads, intermediate and `layer` (as in `LayerShape`): of
    each layer; anchors: how many blocks of a row training uses; window: how many tokens before it a
    place attends to, itself among them; causal: whether a block's places attend to those before
    them alone; of both a list has one for each layer; draft_vocab_size: tokens of a head of its
    own, None for the target's head."""

    method: ClassVar[str] = "dflash"
    like_target = True

    def __init__(
        self,
        facts: Facts,
        num_layers: int = 5,
        block_size: int = 16,
        target_layer_ids: Seq[int] | None = None,
        mask_token_id: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        anchors: int = 512,
        window: int | Seq[int | None] | None = None,
        causal: bool | Seq[bool] = False,
        draft_vocab_size: int | None = None,
        **layer: Any,
    ) -> None:
        width, ids = facts.hidden_size, list(target_layer_ids or default_layers(facts.layers))
        windows, causals = of_each(window, num_layers), of_each(causal, num_layers)
        _check(facts, block_size, ids, mask_token_id, windows)
        decoder = LayerShape.for_width(
            width, 1, heads, kv_heads, intermediate, **{"qk_norm": True, **layer}
        )
        super().__init__(
            facts,
            num_layers=num_layers,
            block_size=block_size,
            target_layer_ids=ids,
            mask_token_id=mask_token_id,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            intermediate=decoder.intermediate,
            anchors=anchors,
            window=of_all(windows),
            causal=of_all(causals),
            draft_vocab_size=head_size(draft_vocab_size, facts.vocab_size),
            **layer,
        )
        self.layer_shape, self.block_size, self.places = decoder, block_size, block_size - 1
        self.sees = list(zip(windows, map(bool, causals), strict=True))  # of each layer
        self.fc = nn.Linear(len(ids) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=decoder.norm_eps)
        self.layers = nn.ModuleList(BlockLayer(decoder) for _ in range(num_layers))
        self.norm = nn.RMSNorm(width, eps=decoder.norm_eps)
        if mask_token_id is None:
            self.mask_embedding = nn.Parameter(0.02 * torch.randn(width))
        self.make_head()

    @property
    def reads(self) -> tuple[int, ...]:
        """The layers whose states it reads, as `Wants` counts them."""
        return tuple(dict.fromkeys(index + 1 for index in self.shape["target_layer_ids"]))

    @property
    def hidden(self) -> tuple[int, ...]:  # type: ignore[override]
        """The layers that it reads, and the last state, which gives the target's distributions."""
        return (*self.reads, -1)

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """[..., D] of the target's states by layer."""
        states = [hidden[index + 1] for index in self.shape["target_layer_ids"]]
        out: Tensor = self.hidden_norm(self.fc(torch.cat(states, -1)))
        return out

    def context(self, features: Tensor, positions: Tensor) -> list[Pair]:
        """Each layer's keys and values of features [B, T, D]."""
        layers: list[Any] = list(self.layers)
        rotary = rotary_angles(self.layer_shape, positions, features)
        return [layer.self_attn.keys(features, rotary) for layer in layers]

    def block_inputs(self, roots: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Roots [B, A] -> the first layer's inputs [B, X, D]."""
        first, mask = embed(roots)[:, :, None], self.shape["mask_token_id"]
        masked = self.mask_embedding if mask is None else embed(roots.new_tensor([mask]))[0]
        rest = masked.to(first.dtype).expand(*roots.shape, self.places, -1)
        return torch.cat((first, rest), 2).flatten(1, 2)

    def apply_layers(self, x: Tensor, positions: Tensor, attends: Seq[Attend]) -> Tensor:
        """[B, X, D] through all layers, each with its attention, and normed."""
        for layer, attend in zip(self.layers, attends, strict=True):
            norm: Any = layer.input_layernorm
            x = layer(norm(x), x, positions, attend)
        out: Tensor = self.norm(x)
        return out

    def outputs(self, lesson: Lesson, roots: Tensor) -> Tensor:
        """[B, A, N, D] of the blocks whose roots stand at places [B, A]."""
        size, count = self.block_size, roots.shape[1]
        ahead = torch.arange(size, device=roots.device)
        positions = (lesson.positions.gather(1, roots)[..., None] + ahead).flatten(1)
        context = self.context(self.features(lesson.hidden), lesson.positions)
        given = lesson.records, roots, size
        attends = [
            partial(_attend_after, past, partial(_block_mask, *given, window), size, causal)
            for past, (window, causal) in zip(context, self.sees, strict=True)
        ]
        blocks = self.block_inputs(lesson.tokens.gather(1, roots), lesson.embed)
        done = self.apply_layers(blocks, positions, attends)
        return done.view(len(roots), count, size, -1)[:, :, 1:]

    def serving(self, access: Access) -> BlockModel:
        """What drafts with it for this target."""
        return BlockModel(self, access)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        goal = self.own_objective(objective)
        given = *self.predictions(lesson), goal
        loss, self.total = predictions_loss(lesson, *given, own=self.lm_head)
        return loss

    def predictions(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The states [P, D] of blocks after roots drawn at random, and what each predicts: the row
        and place of its token, and how many places that is after the block's first, [P] each."""
        after = lesson.positions.roll(-1, 1) == lesson.positions + 1  # the record continues
        able = after & (lesson.positions > 0) & (lesson.weight.roll(-1, 1) > 0)
        chances = torch.rand(able.shape, device=able.device) * able
        roots, real = _places(chances, self.shape["anchors"])
        token = roots[..., None] + torch.arange(1, self.block_size, device=roots.device)
        inside = token.clamp(max=able.shape[1] - 1)  # [B, A, N]
        record = lesson.records.gather(1, inside.flatten(1)).view_as(inside)
        same = record == lesson.records.gather(1, roots)[..., None]
        row, anchor, ahead = (same & (inside == token) & real[..., None]).nonzero(as_tuple=True)
        states = self.outputs(lesson, roots)[row, anchor, ahead]
        return states, row, token[row, anchor, ahead], ahead

    def states(self, lesson: Lesson) -> Tensor:
        """[B, T, N, D] the outputs of each root's block, at the place before it as heads have it;
        0 elsewhere."""
        wanted = (lesson.max_nodes >= 0) & (lesson.positions > 0)
        places, real = _places(wanted.float(), wanted.shape[1])
        states = lesson.hidden[-1].new_zeros(*wanted.shape, self.places, self.facts.hidden_size)
        for roots, used in zip(places.split(_ROOTS, 1), real.split(_ROOTS, 1), strict=True):
            row, anchor = used.nonzero(as_tuple=True)
            states[row, roots[row, anchor] - 1] = self.outputs(lesson, roots)[row, anchor]
        return states

    def scores(self, states: Tensor, before: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., V] what a place with such a state [..., D] is drawn by after tokens `before`
        [...]; head: the target's."""
        return self.head_logits(states, head)

    def ranks(self, lesson: Lesson) -> Tensor:
        """[B, T, N], as `ranks_at_roots` has it."""
        return ranks_at_roots(lesson, self.states(lesson), partial(self.scores, head=lesson.head))

    def chances(self, lesson: Lesson) -> Tensor:
        """[B, T, N], as `chances_at_roots` has it."""
        return chances_at_roots(lesson, self.states(lesson), partial(self.scores, head=lesson.head))


def _check(facts: Facts, size: int, ids: Seq[int], mask: int | None, windows: Seq[Any]) -> None:
    """Raises `ValueError` for numbers of a shape that don't fit."""
    if size < 2 or not all(0 <= index < facts.layers for index in ids):
        raise ValueError(f"a block has at least 2 tokens, layers are 0 to {facts.layers - 1}")
    if narrow := [each for each in windows if each is not None and each < size]:
        raise ValueError(f"window is {narrow[0]}, and a block of {size} must fit in")
    if mask is not None and (type(mask) is not int or not 0 <= mask < facts.vocab_size):
        raise ValueError(f"mask_token_id is {mask!r}, and tokens are 0 to {facts.vocab_size - 1}")


def default_layers(layers: int) -> list[int]:
    """Which of a target's layers are read: five, from the second to the last but two, or three
    where there are fewer than 8."""
    if layers < 8:
        return sorted({0, max(0, layers // 2 - 1), max(0, layers - 2)})
    return [round(1 + i * (layers - 4) / 4) for i in range(5)]


def _places(scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The places [B, A] of the `most` highest scores of each row [B, T], in order, and which are
    above 0."""
    top = scores.topk(max(1, min(most, int((scores > 0).sum(1).max()))))
    places = top.indices.sort(1).values  # neighbours, which attend together, see the same text
    return places, scores.gather(1, places) > 0


def _block_mask(records: Tensor, roots: Tensor, size: int, window: int | None, at: slice) -> Tensor:
    """[B, Q, S, T] which tokens of its record, all before its root, each place of the blocks of
    these roots attends to."""
    roots = roots[:, at]
    places = torch.arange(records.shape[1], device=roots.device)
    same = records.gather(1, roots)[..., None] == records[:, None]
    before = (same & (places < roots[..., None]))[:, :, None].expand(-1, -1, size, -1)
    if window is None:
        return before
    own = roots[..., None] + torch.arange(size, device=roots.device)
    return before & (own[..., None] - places < window)


def _attend_after(
    past: Pair, mask: Mask, size: int, causal: bool, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """`Attend` for blocks of this size, whose keys and values come after the text's `past` ones;
    `mask` has their roots for places."""
    own = [x.unflatten(1, (-1, size)) for x in (q, k, v)]
    numbers = len(q) * size * (past[0].shape[1] + q.shape[1])
    return in_parts(partial(_attend_blocks, causal), mask, own, past, numbers)


def _attend_blocks(
    causal: bool, before: Tensor, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Of blocks [B, Q, S, H or K, W] to what they see of the text's keys and values [B, T, K, W],
    `before` [B, Q, S, T], and to themselves: [B, Q · S, H·W]."""
    rows, count, size, heads, _ = q.shape
    ahead = torch.arange(count * size, device=q.device)
    block = ahead // size
    within = block[:, None] == block
    if causal:
        within = within & (ahead[:, None] >= ahead)
    visible = torch.cat((before.flatten(1, 2), within.expand(rows, -1, -1)), 2)
    keys, values = (
        for_heads(torch.cat((past, own.flatten(1, 2)), 1), heads)
        for past, own in zip((keys, values), (k, v), strict=True)
    )
    return attend_at_once(visible, q.flatten(1, 2), keys, values)


class BlockModel:
    """Serves the module as a `ChainModel`; its cache has the keys and values that its layers
    compute from the target's states.

    For a text of n tokens, the last of which is the root, it has n - 1 of them. A block's keys and
    values are written after them and discarded.
    """

    def __init__(self, module: BlockModule, access: Access) -> None:
        self.device = access.device
        self._module, self._access = module, access
        self._cache = KVCache(
            alike(len(module.layers), module.layer_shape.kv_heads, module.layer_shape.head_dim),
            access.slots,
            access.max_length,
            access.dtype,
            access.device,
            spare=module.block_size,
            budget=access.budget,
        )
        self._logits: Tensor | None = None  # [B, N, V] of the block that is being read
        self._next = 0

    def begin(self, sequence: Sequence) -> None:
        self._cache.acquire(sequence.id)

    def end(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """The copy starts after the prompt, however far the other is."""
        source, target = self._cache.slot(sequence.id), self._cache.slot(copy.id)
        self._cache.copy(source, target, copy.prompt_length - 1)

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted: none where there is no state to read."""
        return self._module.places if self._cache.lengths[self._cache.slot(sequence.id)] else 0

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Take the states of what was read or accepted."""
        if not steps:
            return
        slots_of = [kept_slots(step) for step in steps]
        pairs = list(zip(steps, slots_of, strict=True))
        hidden = {
            layer: nn.utils.rnn.pad_sequence(
                [step.scores.hidden[layer][step.row, read] for step, read in pairs],
                batch_first=True,
            )
            for layer in self._module.reads
        }
        slots = [self._cache.slot(s.id) for s in sequences]
        starts = [self._cache.lengths[slot] for slot in slots]
        tokens = [
            s.tokens[start : start + len(each)]
            for s, start, each in zip(sequences, starts, slots_of, strict=True)
        ]
        feed = chain_feed(self._cache, slots, tokens)
        context = self._module.context(self._module.features(hidden), feed.positions)
        for layer, both in zip(self._cache.layer, context, strict=True):
            attention.write(layer, torch.stack(both, 2), feed)
        for slot, each in zip(slots, slots_of, strict=True):
            self._cache.lengths[slot] += len(each)

    def block_states(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, N, D] the outputs at the N places after each root, by one pass."""
        slots = [self._cache.slot(s.id) for s in sequences]
        roots = torch.tensor([[s.tokens[-1]] for s in sequences], device=self.device)
        sees, size = self._module.sees, self._module.block_size
        kinds = {causal for _, causal in sees}
        feeds = {each: block_feed(self._cache, slots, roots, size, each) for each in kinds}
        attends = [
            attend_cached(layer, feeds[causal], window)
            for layer, (window, causal) in zip(self._cache.layer, sees, strict=True)
        ]
        blocks = self._module.block_inputs(roots, self._access.embed)
        positions = next(iter(feeds.values())).positions
        return self._module.apply_layers(blocks, positions, attends)[:, 1:]

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text; the block's others are kept for `next_logits`."""
        states = self.block_states(sequences)
        self._logits, self._next = self._module.head_logits(states, self._access.head), 0
        return self._read()

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits of the next place, whatever the tokens before it are."""
        return self._read()

    def _read(self) -> Tensor:
        assert self._logits is not None
        self._next += 1
        return self._logits[:, self._next - 1 : self._next]
