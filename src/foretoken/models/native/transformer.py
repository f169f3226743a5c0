"""The native decoder: Llama, Mistral, Qwen2, Qwen3, Gemma and what shares their shape.

Few operations a layer (q, k, v in one product, gate and up in one, one norm operation, rotary in
three), a preallocated cache, and sub-layers that can be run one by one. Numerically it is
transformers' forward with SDPA: norms and the rotary table in float32, also for float64 models.

Legend: B rows, T tokens, D width, H query heads, K key/value heads, W head width, F feed-forward,
V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache, KVShape
from foretoken.models.feed import Feed
from foretoken.models.model import Output
from foretoken.models.native import block, rope
from foretoken.models.native.backends.whole import spans, whole_for
from foretoken.models.native.layer import ACTIVATIONS, Embedding, Layer, Linear, Runner, Shape
from foretoken.models.native.norm import Norm
from foretoken.models.native.offloaded import Loops, Offloaded
from foretoken.models.reduced_vocabulary import spread

Rotary = Seq[tuple[Tensor, Tensor]]
"""For each of a model's rotary tables: cos and signed sin, each [B, T, H + 2K, W]."""


def unsupported(config: Any, trust_remote_code: bool = False) -> str | None:
    """Why the native model can't serve this configuration, or None where it can.
    trust_remote_code: whether code that comes with a checkpoint runs in place of transformers'."""
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or ()):
        return "it runs by code that comes with it"
    if config.model_type not in block.FAMILIES:
        return f"its family {config.model_type!r} is not one of {', '.join(block.FAMILIES)}"
    if getattr(config, "is_heterogeneous", False):
        return "its layers differ in their numbers"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised"
    if getattr(config, "text_config", None) is not None:
        return "its configuration holds another one"
    both_ways = getattr(config, "use_bidirectional_attention", None)
    if both_ways or not getattr(config, "is_causal", True):
        return "its tokens see those after them"
    if foreign := set(block.types(config) or ()) - _KINDS:
        return f"it has layers of type {min(foreign)!r}"
    for turning in (block.rope_of(config, kind) for kind in block.rope_kinds(config)):
        if (how := turning.get("rope_type")) not in rope.SERVED:
            return f"its rotary scaling {how!r} depends on the length seen so far"
        if turning.get("partial_rotary_factor", 1.0) != 1.0:
            return "it rotates part of each head only"
    if (activation := block.activation(config)) not in ACTIVATIONS:
        return f"its activation is {activation!r}, not one of {', '.join(ACTIVATIONS)}"
    return None


_KINDS = {"full_attention", "sliding_attention"}


class Transformer:
    """A `CausalLM` with all six access levels. Built by `foretoken.models.load`."""

    levels = frozenset("abcdef")

    def __init__(
        self,
        shape: Shape,
        embedding: Embedding,
        layers: list[Layer],
        norm: Norm,
        lm_head: Linear,
        ropes: Seq[rope.Table],
        backend: str,
        parameters: int,
        bytes_read: int,
        eos_ids: Iterable[int] = (),
        source: Path | None = None,
        offloaded: Offloaded | None = None,
        head_ids: Tensor | None = None,
    ) -> None:
        """What `embedding` gives may be narrower than the model's dtype, that of the `ropes`.
        `source`: the checkpoint's folder, where it is from one. offloaded: what reads the layers
        that don't stay in memory, if some don't. head_ids [R]: the tokens that `lm_head` has a row
        for, where it hasn't all; the others have no mass."""
        self.shape = shape
        self.vocab_size, self.max_length, self.width = (
            shape.vocab_size,
            shape.max_length,
            shape.width,
        )
        self.cycle = _cycle(layers)
        self.layers, self.kv_heads, self.head_dim = len(layers), shape.kv_heads, shape.head_dim
        self.dtype, self.device = ropes[0].dtype, ropes[0].device
        self.backend = backend
        self.parameters, self.bytes_read = parameters, bytes_read
        self.eos_ids, self.source = frozenset(eos_ids), source
        self.embedding, self.stack, self._norm = embedding, layers, norm
        self._lm_head, self._head_ids, self.ropes = lm_head, head_ids, list(ropes)
        # Rounded like the weights, as transformers has it.
        self._embedding_scale = torch.tensor(shape.embedding_scale, dtype=self.dtype).item()
        self.runner: Runner | None = None
        self.offloaded = offloaded
        make = whole_for if offloaded is None else offloaded.runs
        self.whole = make(shape, layers, self.ropes)
        self._own_head = True

    def run_by(self, make: Callable[[Transformer], Runner], name: str) -> None:
        """Have whole passes run by a runner of this name."""
        self.whole = None
        self.runner = make(self)
        self.backend = f"{name}+{self.backend}"

    def with_head(self, head: Linear) -> Transformer:
        """The same model, its weights shared, with other logits: what `head` makes of normed states
        [..., D]. It gets padding too, so that what it saw and returned has the pass's own rows."""
        other = copy(self)
        other.shape, other._lm_head = replace(self.shape, logit_cap=None), head
        other._own_head = False
        return other

    def new_cache(
        self, slots: int, max_length: int, *, spare: int = 0, budget: CacheBudget | None = None
    ) -> KVCache:
        shape = self.shape
        width = shape.head_dim
        shapes = [KVShape(shape.kv_heads, width, width, layer.window) for layer in self.stack]
        cache = KVCache(
            shapes,
            slots,
            max_length,
            self.dtype,
            self.device,
            spare=spare,
            positions=shape.max_length,
            budget=budget,
            together=self.whole is None or self.runner is not None,  # the loops read any slot
        )
        if self.runner is not None:
            self.runner.prepare(cache)
        return cache

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        states = self.embed(feed.tokens)
        if feed.replaced is not None:
            states = torch.where(feed.replaced[0][..., None], feed.replaced[1], states)
        states_of: dict[int, Tensor] = {0: states} if 0 in hidden else {}
        if self.runner is not None and not any(index > 0 for index in hidden):
            states = self.runner(states, feed, cache)
        elif self.whole is not None:
            states = self._by_loops(self.whole, states, feed, cache, hidden, states_of)
        else:
            states = self.through(
                states, self.rotary(feed.positions, feed.reach), feed, cache, hidden, states_of
            )
        if not feed.logits and -1 not in hidden:
            return Output(None, states_of)
        if feed.last is not None and -1 not in hidden:
            states = at_places(states, feed.last)
        states = self._norm(states)
        if -1 in hidden:
            states_of[-1] = states
        if not feed.logits:
            return Output(None, states_of)
        if feed.last is not None and -1 in hidden:
            states = at_places(states, feed.last)
        return Output(self._logits(states, feed), states_of)

    @property
    def packs(self) -> bool:
        """Padding costs a pass nothing."""
        return self.whole is not None and self._own_head

    def _logits(self, states: Tensor, feed: Feed) -> Tensor:
        """`head`, without padding where that changes no bits of the others. Padding has no logits:
        its memory, more than a pass reads where one row is long, is left as it is."""
        if feed.last is not None or not feed.ragged or not self.packs:
            return self.head(states)
        logits = self.head(feed.packed(states))
        spread = logits.new_empty(feed.tokens.numel(), logits.shape[-1])
        spread[feed.real_places()] = logits
        return spread.view(*feed.tokens.shape, -1)

    def through(
        self,
        states: Tensor,
        rotary: Rotary,
        feed: Feed,
        cache: KVCache,
        hidden: Seq[int] = (),
        states_of: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """All layers; the states after those named in `hidden` are put into `states_of`."""
        for index in range(self.layers):
            states = self._attention(states, index, rotary, feed, cache)
            states = self._mlp(states, index)
            if states_of is not None and index + 1 in hidden:
                states_of[index + 1] = states
        return states

    def _by_loops(
        self,
        whole: Loops,
        states: Tensor,
        feed: Feed,
        cache: KVCache,
        hidden: Seq[int],
        states_of: dict[int, Tensor],
    ) -> Tensor:
        """`through`, one call of the loops for each layer whose states are asked for."""
        first = 0
        for end in sorted({self.layers, *(index for index in hidden if index > 0)}):
            states = states_of[end] = whole(states, feed, cache, first, 2 * end)
            first = 2 * end
        if self.layers not in hidden:
            del states_of[self.layers]
        return states

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., T] -> [..., T, D]."""
        states = self.embedding(tokens).to(self.dtype)
        return states if self._embedding_scale == 1.0 else states * self._embedding_scale

    def head(self, states: Tensor) -> Tensor:
        """Normed states [..., D] -> logits [..., V]."""
        logits, cap = self._lm_head(states), self.shape.logit_cap
        logits = logits if cap is None else (logits / cap).tanh() * cap
        ids = self._head_ids
        return logits if ids is None else spread(logits, ids, self.vocab_size)

    def normed(self, states: Tensor) -> Tensor:
        """The final norm, [..., D] -> [..., D]."""
        return self._norm(states)

    def rotary(self, positions: Tensor, reach: int) -> Rotary:
        """cos is 1 and sin 0 at the values, which don't turn. reach: what all positions lie below.

        So queries, keys and values go through the rotation as one tensor and needn't be cut apart.
        """
        return [self._spread(table.upto(reach)[positions]) for table in self.ropes]

    def _spread(self, turns: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, 2, W] -> cos and sin [B, T, H + 2K, W]."""
        shape = self.shape
        cos, sin = turns[..., None, :].unbind(2)  # [B, T, 1, W]
        ones = torch.ones_like(cos).expand(-1, -1, shape.kv_heads, -1)
        turning = (-1, -1, shape.heads + shape.kv_heads, -1)
        zeros = torch.zeros_like(cos).expand_as(ones)
        return torch.cat((cos.expand(turning), ones), 2), torch.cat((sin.expand(turning), zeros), 2)

    def run(self, states: Tensor, feed: Feed, cache: KVCache, sublayers: Iterable[int]) -> Tensor:
        """Run the named ones of the 2L sub-layers on [B, T, D], in order, and hand the states back.

        Sub-layer 2i is the attention of layer i (it writes that layer's cache after the committed
        length), 2i + 1 its feed-forward. A prefix can be continued by calling again.
        """
        if self.whole is not None:
            for first, last in spans(sublayers):
                states = self.whole(states, feed, cache, first, last)
            return states
        rotary = self.rotary(feed.positions, feed.reach)
        for sublayer in sublayers:
            if sublayer % 2 == 0:
                states = self._attention(states, sublayer // 2, rotary, feed, cache)
            else:
                states = self._mlp(states, sublayer // 2)
        return states

    def run_together(
        self, states: Tensor, feeds: Seq[Feed], firsts: Seq[int], count: int, cache: KVCache
    ) -> Tensor:
        """`count` layers on [R, 1, D], of each row from its first one on; a feed of a row and
        a token for each. Rows whose layers share their weights go through them in one product."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, first in enumerate(firsts):
            ropes = (layer.rope for layer in self.stack[first : first + count])
            groups.setdefault((first % self.cycle, *ropes), []).append(row)
        out = torch.empty_like(states)
        for rows in groups.values():
            group = [feeds[row] for row in rows], [firsts[row] for row in rows]
            out[rows] = self._together(states[rows], *group, count, cache)
        return out

    def _together(
        self, states: Tensor, feeds: Seq[Feed], firsts: Seq[int], count: int, cache: KVCache
    ) -> Tensor:
        """`run_together` where all rows' layers have the weights and turns of the first row's."""
        positions = torch.cat([feed.positions for feed in feeds])
        rotary = self.rotary(positions, max(feed.reach for feed in feeds))
        for index in range(firsts[0], firsts[0] + count):
            turned, mixed = self._turned(states, index, rotary), []
            for row, feed in enumerate(feeds):
                layer = index - firsts[0] + firsts[row]
                mix = self.stack[layer].mix
                mixed.append(mix(turned[row : row + 1], cache.layer[layer], feed))
            states = self._mlp(states + self._out(torch.cat(mixed), index), index)
        return states

    def _attention(
        self, states: Tensor, index: int, rotary: Rotary, feed: Feed, cache: KVCache
    ) -> Tensor:
        turned = self._turned(states, index, rotary)
        return states + self._out(self.stack[index].mix(turned, cache.layer[index], feed), index)

    def _out(self, mixed: Tensor, index: int) -> Tensor:
        layer = self.stack[index]
        out, norm = layer.out(mixed), layer.attention_out_norm
        return out if norm is None else norm(out)

    def _turned(self, states: Tensor, index: int, rotary: Rotary) -> Tensor:
        """[B, T, H + 2K, W] a layer's queries, keys and values, rotated."""
        layer, shape = self.stack[index], self.shape
        batch, width, _ = states.shape
        qkv = layer.qkv(layer.attention_norm(states))
        qkv = qkv.view(batch, width, -1, shape.head_dim)  # [B, T, H + 2K, W]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), 2)
            qkv = torch.cat((layer.q_norm(q), layer.k_norm(k), v), 2)
        cos, sin = rotary[layer.rope]
        return torch.addcmul(qkv * cos, qkv.roll(shape.head_dim // 2, -1), sin)

    def _mlp(self, states: Tensor, index: int) -> Tensor:
        layer = self.stack[index]
        gate, up = layer.gate_up(layer.mlp_norm(states)).chunk(2, -1)
        down = layer.down(ACTIVATIONS[layer.activation](gate).mul_(up))
        return states + (down if layer.mlp_out_norm is None else layer.mlp_out_norm(down))


def _cycle(layers: Seq[Layer]) -> int:
    """After how many layers their weights repeat; all, where they never do."""
    again = (i for i, layer in enumerate(layers) if i and layer.qkv is layers[0].qkv)
    return next(again, len(layers))


def at_places(states: Tensor, places: list[int]) -> Tensor:
    """[B, T, D] at one place of each row -> [B, 1, D]."""
    if len(places) == 1:
        return states[:, places[0] : places[0] + 1]
    rows = torch.arange(len(places), device=states.device)
    return states[rows, torch.tensor(places, device=states.device)][:, None]
