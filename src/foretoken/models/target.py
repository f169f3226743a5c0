"""A language model as the target of the loop: cache slots, prefill, scoring, commit.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.access import Pass
from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed, again_feed, chain_feed, scratch_feed, tree_feed
from foretoken.models.model import CausalLM
from foretoken.models.native.transformer import Transformer
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree


class ModelTarget:
    """`Target` over any `CausalLM`; also the `Access` that drafters are bound to."""

    def __init__(self, model: CausalLM, slots: int, max_length: int, nodes: int = 64) -> None:
        """`slots` sequences at a time, each up to `max_length` tokens and trees of `nodes`."""
        self.model = model
        self.vocab_size, self.max_length, self.slots = model.vocab_size, max_length, slots
        self.levels, self.width, self.layers = model.levels, model.width, model.layers
        self.kv_heads, self.head_dim = model.kv_heads, model.head_dim
        self.device, self.dtype, self.backend = model.device, model.dtype, model.backend
        self.nodes = nodes
        self.cache: KVCache = model.new_cache(slots, max_length + nodes + 1)
        self.hidden: tuple[int, ...] = ()
        self.source = model.source
        self.cycle: int = getattr(model, "cycle", model.layers)
        self.tokenizer: Any = None
        self.scratches = 0
        self._extra = torch.empty(0, self.width, dtype=self.dtype, device=self.device)
        self._score_by: Callable[[Seq[Sequence], Feed], Pass] = self.whole

    def begin(self, sequence: Sequence) -> None:
        self.cache.acquire(sequence.id)

    def holds(self, sequence: Sequence) -> bool:
        return self.cache.owns(sequence.id)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        source, target = self.cache.slot(sequence.id), self.cache.slot(copy.id)
        self.cache.copy(source, target, copy.prompt_length - 1)

    def pending(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - 1 - self.cache.lengths[self.cache.slot(sequence.id)]

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        slots = [self.cache.slot(s.id) for s in sequences]
        held = [self.cache.lengths[slot] for slot in slots]
        chunks = [
            s.tokens[start : min(start + chunk, len(s.tokens) - 1)]
            for s, start in zip(sequences, held, strict=True)
        ]
        feed = chain_feed(self.cache, slots, chunks, logits=False)
        out = self.model.forward(feed, self.cache, self.hidden)
        for slot, tokens in zip(slots, chunks, strict=True):
            self.cache.lengths[slot] += len(tokens)
        return out

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        return self._score_by(sequences, self._fed(sequences, trees))

    def _fed(self, sequences: Seq[Sequence], trees: DraftTree) -> Feed:
        slots = [self.cache.slot(s.id) for s in sequences]
        feed = tree_feed(self.cache, slots, [s.tokens[-1] for s in sequences], trees)
        if trees.extras is not None:
            numbers = F.pad(trees.extras, (1, 0))  # the root's is 0
            feed.replaced = numbers > 0, self._extra[numbers.clamp(min=1) - 1]
        return feed

    def score_by(self, run: Callable[[Seq[Sequence], Feed], Pass]) -> None:
        self._score_by = run

    def whole(self, sequences: Seq[Sequence], feed: Feed) -> Pass:
        return self.model.forward(feed, self.cache, self.hidden)

    def commit(self, sequences: Seq[Sequence], paths: Seq[Seq[int]]) -> None:
        self.cache.keep([self.cache.slot(s.id) for s in sequences], paths)

    def end(self, sequence: Sequence) -> None:
        self.cache.release(sequence.id)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.embed(tokens)

    def head(self, states: Tensor) -> Tensor:
        return self.model.head(states)

    def scratch(self, sequences: Seq[Sequence], tokens: Seq[Seq[int]]) -> Feed:
        self.scratches += 1
        return chain_feed(self.cache, [self.cache.slot(s.id) for s in sequences], tokens)

    def scratch_next(self, sequences: Seq[Sequence], tokens: Tensor, ahead: int) -> Feed:
        self.scratches += 1
        return scratch_feed(self.cache, [self.cache.slot(s.id) for s in sequences], tokens, ahead)

    def scratch_again(self, sequences: Seq[Sequence], count: int) -> Feed:
        self.scratches += 1
        tokens = [s.tokens[-1 - count : -1] for s in sequences]
        slots = [self.cache.slot(s.id) for s in sequences]
        return again_feed(self.cache, slots, torch.tensor(tokens, device=self.device))

    def scratch_tree(self, sequences: Seq[Sequence], trees: DraftTree) -> Feed:
        self.scratches += 1
        return self._fed(sequences, trees)

    def extra_tokens(self, embeddings: Tensor) -> int:
        self._extra = torch.cat((self._extra, embeddings.detach().to(self._extra)))
        return len(self._extra) - len(embeddings) + 1

    def scratch_first(self, sequence: Sequence, place: int) -> None:
        slot = self.cache.slot(sequence.id)
        first = self.cache.lengths[slot]
        self.cache.data[:, :, slot, :, first] = self.cache.data[:, :, slot, :, first + place]

    def run(self, states: Tensor, feed: Feed, sublayers: Iterable[int]) -> Tensor:
        return self._partial().run(states, feed, self.cache, sublayers)

    def run_beside(self, states: Tensor, feeds: Seq[Feed], firsts: Seq[int], count: int) -> Tensor:
        return self._partial().run_beside(states, feeds, firsts, count, self.cache)

    def norm(self, states: Tensor) -> Tensor:
        return self._partial().normed(states)

    def _partial(self) -> Transformer:
        if not isinstance(self.model, Transformer):
            raise ForetokenError(
                "Only the native model runs single sub-layers; use model_impl='native'."
            )
        return self.model

    def kv(self, sequence: Sequence, layer: int) -> tuple[Tensor, Tensor]:
        slot = self.cache.slot(sequence.id)
        held = self.cache.layer[layer][:, slot, :, : self.cache.lengths[slot]]
        return held[0], held[1]
