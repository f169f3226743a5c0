"""GliDe's decoder layer, which also attends to the target's cache: the module, and its serving.

Source: Du et al. 2024 (GliDe), section 3.1. After its self-attention the layer attends to the keys
and values of the text in one of the target's layers. For the root and for drafted tokens the target
has none yet: a draft attends to those of all tokens before its root. In training the text is cut
into blocks of `block_size` at a random place, and a block attends to what comes before it.
Embedding and head are the target's. Departures: one layer, so that its own keys and values follow
from the text alone and not from earlier drafts; queries are rotated by `rope_theta` and
`rope_scaling`, which a training takes from the target, as its keys are rotated by them, and so are
the layer's heads and its feed-forward where the shape doesn't say otherwise.

Legend: B rows, T places, N drafted places, D width, H heads, K key/value heads, W head width,
V vocabulary, C tokens in the target's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import chain_feed, scratch_feed
from foretoken.models.native import attention
from foretoken.models.warm import Text
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.head_losses import predictions_loss
from foretoken.trainable.layer import (
    Attend,
    Attention,
    LayerShape,
    Mlp,
    attend_cached,
    rotary_angles,
    rotate,
)
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.masked_attention import attend_masked

_CHUNK = 512  # tokens of all texts in a pass that reads them
_SPARE = 64  # cache places after the context, at least, for drafts that reach over its end

AttendTarget = Callable[[Tensor], Tensor]
"""Queries [B, T, H, W] -> their attention over the target's cache [B, T, H·W]."""


class CrossAttention(nn.Module):
    """Attention to the target's keys and values."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.layer_shape = shape
        inner = shape.heads * shape.head_dim
        self.q_proj = nn.Linear(shape.reads, inner, bias=False)
        self.o_proj = nn.Linear(inner, shape.outer, bias=False)

    def forward(self, x: Tensor, positions: Tensor, attend_target: AttendTarget) -> Tensor:
        queries = self.q_proj(x).view(
            *x.shape[:-1], self.layer_shape.heads, self.layer_shape.head_dim
        )
        out: Tensor = self.o_proj(
            attend_target(rotate(queries, *rotary_angles(self.layer_shape, positions, x)))
        )
        return out


class CrossAttentionLayer(nn.Module):
    """Self-attention, attention to the target's cache, feed-forward."""

    def __init__(self, shape: LayerShape, cross: LayerShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.outer, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.cross_layernorm = nn.RMSNorm(shape.outer, eps=shape.norm_eps)
        self.cross_attn = CrossAttention(cross)
        self.post_attention_layernorm = nn.RMSNorm(shape.outer, eps=shape.norm_eps)
        self.mlp = Mlp(shape.outer, shape.intermediate)

    def forward(
        self, x: Tensor, positions: Tensor, attend: Attend, attend_target: AttendTarget
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = x + self.self_attn(self.input_layernorm(x), positions, attend)
        x = x + self.cross_attn(self.cross_layernorm(x), positions, attend_target)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class CrossAttentionModule(Trained):
    """GliDe's layer and norm. read_layer: the target's layer whose keys and values it reads,
    counted from 0 or from the end (-1); heads, kv_heads, intermediate and `layer` (as in
    `LayerShape`): of its own layer; block_size: tokens that attend to the same part of the target's
    cache in training."""

    method: ClassVar[str] = "glide"
    like_target = True
    target_rotary = True

    def __init__(
        self,
        facts: Facts,
        read_layer: int = -1,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        block_size: int = 5,
        **layer: Any,
    ) -> None:
        width, kv, size = facts.hidden_size, facts.kv_heads or 1, facts.head_dim or 2
        if not -facts.layers <= read_layer < facts.layers:
            raise ValueError(f"read_layer must be below the target's {facts.layers} layers")
        shape = LayerShape.for_width(width, 1, heads, kv_heads, intermediate, **layer)
        super().__init__(
            facts,
            read_layer=read_layer,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            intermediate=shape.intermediate,
            block_size=block_size,
            **layer,
        )
        query_heads = kv * -(-width // (kv * size))  # as wide as the target, or a little wider
        cross = LayerShape.for_width(width, 1, query_heads, kv, 0, **{**layer, "head_width": size})
        self.layer_shape, self.read_layer = shape, read_layer % facts.layers
        self.layers = nn.ModuleList([CrossAttentionLayer(shape, cross)])
        self.norm = nn.RMSNorm(width, eps=shape.norm_eps)

    def apply_layer(
        self, x: Tensor, positions: Tensor, attend: Attend, attend_target: AttendTarget
    ) -> Tensor:
        """Embeddings [B, T, D] -> outputs for the target's head [B, T, D]."""
        out: Tensor = self.norm(self.layers[0](x, positions, attend, attend_target))
        return out

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The self-attention's keys and values [B, T, K, W] of embeddings [B, T, D]."""
        layer: Any = self.layers[0]
        both: tuple[Tensor, Tensor] = layer.self_attn.keys(
            layer.input_layernorm(x), rotary_angles(self.layer_shape, positions, x)
        )
        return both

    def outputs(self, lesson: Lesson, ahead: Tensor) -> Tensor:
        """[B, T, D] of every token, as if it were drafted `ahead` [B, T] places after its root."""
        places = torch.arange(lesson.tokens.shape[1], device=ahead.device)
        roots, first = places - ahead, (lesson.positions == 0)[:, None]

        def before_root(at: slice) -> Tensor:
            same = lesson.records[:, at, None] == lesson.records[:, None]
            return same & ((places < roots[:, at, None]) | first)  # seeing nothing would give NaN

        keys, values = (x.transpose(1, 2) for x in lesson.kv(self.read_layer))
        return self.apply_layer(
            lesson.embed(lesson.tokens),
            lesson.positions,
            partial(attend_masked, mask=lesson.mask),
            partial(attend_masked, key=keys, value=values, mask=before_root),
        )

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        size: int = self.shape["block_size"]
        places = torch.arange(lesson.tokens.shape[1], device=lesson.tokens.device)
        first = torch.randint(size, (len(lesson.tokens), 1), device=places.device)
        ahead = (places - first) % size  # [B, T]
        continues = lesson.positions.roll(-1, 1) == lesson.positions + 1
        counts = continues & (lesson.positions > ahead) & (lesson.weight.roll(-1, 1) > 0)
        row, place = counts.nonzero(as_tuple=True)
        states = self.outputs(lesson, ahead)[row, place]
        given = states, row, place + 1, ahead[row, place], objective
        loss, self.total = predictions_loss(lesson, *given)
        return loss

    def states(self, lesson: Lesson, count: int) -> Tensor:
        """[B, T, N, D] the outputs of a draft's `count` places, stored at the place before its
        root, as those of heads are."""
        places = [
            self.outputs(lesson, torch.full_like(lesson.tokens, n)).roll(-1 - n, 1)
            for n in range(count)
        ]
        return torch.stack(places, 2)


class CrossAttentionModel:
    """Serves the module as a `ChainModel` of at most `longest` tokens, with a cache of the layer's
    keys and values.

    For a text of n tokens, the last of which is the root, it has n - 1, as the target's cache has.
    Root and drafted tokens are written after them and discarded.
    """

    def __init__(self, module: CrossAttentionModule, access: Access, longest: int) -> None:
        self.device = access.device
        self._module, self._access, self._longest = module, access, longest
        self._cache = KVCache(
            alike(1, module.layer_shape.kv_heads, module.layer_shape.head_dim),
            access.slots,
            access.max_length,
            access.dtype,
            access.device,
            spare=max(_SPARE, longest),  # a short draft's row runs along with the longest
            budget=access.budget,
        )
        self._ahead = 0  # tokens of this draft so far
        self._target_kv: list[tuple[Tensor, Tensor]] = []  # of each row [K, C, W]

    def begin(self, sequence: Sequence) -> None:
        self._cache.acquire(sequence.id, Text.of(sequence), sequence.reusable)

    def end(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id, warm=sequence.salt is not None)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """Copy what is cached of the prompt."""
        source, target = self._cache.slot(sequence.id), self._cache.slot(copy.id)
        count = min(self._cache.lengths[source], copy.prompt_length - 1)
        self._cache.copy(source, target, count)

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted: none where the target's cache is empty."""
        return self._longest if len(sequence.tokens) > 1 else 0

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Read prompts along with the target; new tokens are read with the next draft."""
        reading = [(s, step) for s, step in zip(sequences, steps, strict=True) if not step.tokens]
        self._read([s for s, _ in reading], max((step.read for _, step in reading), default=0))

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text."""
        while self._read(sequences, max(1, _CHUNK // max(1, len(sequences)))):
            pass
        self._ahead = 0
        self._target_kv = [self._access.kv(s, self._module.read_layer) for s in sequences]
        roots = torch.tensor([s.tokens[-1] for s in sequences], device=self.device)
        return self.next_logits(sequences, roots)

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of each chain."""
        feed = scratch_feed(self._cache, self._slots(sequences), tokens[:, None], self._ahead)
        self._ahead += 1
        x = self._access.embed(feed.tokens)
        attend = attend_cached(self._cache.layer[0], feed)
        return self._access.head(
            self._module.apply_layer(x, feed.positions, attend, self._attend_target)
        )

    def _slots(self, sequences: Seq[Sequence]) -> list[int]:
        return [self._cache.slot(s.id) for s in sequences]

    def _read(self, sequences: Seq[Sequence], most: int) -> bool:
        """Write keys and values of the tokens since the last draft, up to the root: at most so many
        of each text. Returns whether there were any."""
        slots, lengths = self._slots(sequences), self._cache.lengths
        missing = [
            s.tokens[lengths[slot] : min(lengths[slot] + most, len(s.tokens) - 1)]
            for s, slot in zip(sequences, slots, strict=True)
        ]
        if not any(missing):
            return False
        feed = chain_feed(self._cache, slots, missing)
        both = self._module.keys(self._access.embed(feed.tokens), feed.positions)
        attention.write(self._cache.layer[0], torch.stack(both, 2), feed)
        for slot, tokens in zip(slots, missing, strict=True):
            lengths[slot] += len(tokens)
        return True

    def _attend_target(self, queries: Tensor) -> Tensor:
        """Attention of one token of each row over its row of the target's cache, in place."""
        mixed_rows = []
        for query, (keys, values) in zip(queries[:, 0], self._target_kv, strict=True):
            grouped = query.view(1, len(keys), -1, query.shape[-1])  # [1, K, G, W]
            mixed = F.scaled_dot_product_attention(grouped, keys[None], values[None])
            mixed_rows.append(mixed.reshape(1, -1))
        return torch.stack(mixed_rows)
