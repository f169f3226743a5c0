"""A language model as the target of the loop: cache slots, prefill, scoring, commit.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.access import Pass
from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache
from foretoken.models.contrastive import Contrastive
from foretoken.models.feed import Feed, chain_feed, rerun_feed, scratch_feed, tree_feed
from foretoken.models.model import CausalLM
from foretoken.models.native.transformer import Transformer
from foretoken.models.warm import Text
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, ResumePoint


class ModelTarget:
    """`Target` over any `CausalLM`; also the `Access` that drafters are bound to.

    hidden: the layers whose states every pass returns, counted as in `Wants`. draft_passes: those
    made so far; each may overwrite what an earlier one wrote after the committed lengths.
    """

    def __init__(
        self,
        model: CausalLM,
        slots: int,
        max_length: int,
        nodes: int = 64,
        *,
        tokenizer: Any = None,
        trust_remote_code: bool = False,
        hidden: Seq[int] = (),
        budget: CacheBudget | None = None,
    ) -> None:
        """`slots` sequences at a time, each up to `max_length` tokens and trees of `nodes`, or of
        as many as the drafter needs that is bound.

        trust_remote_code: of the checkpoints that drafters load. budget: of all caches, the
        drafter's included; None allows any number of bytes."""
        self.model = model
        self.vocab_size, self.max_length, self.slots = model.vocab_size, max_length, slots
        self.levels, self.width, self.layers = model.levels, model.width, model.layers
        self.kv_heads, self.head_dim = model.kv_heads, model.head_dim
        self.device, self.dtype, self.backend = model.device, model.dtype, model.backend
        self.source, self.tokenizer = model.source, tokenizer
        self.opening: tuple[int, ...] = ()
        self.encoder: Any = None
        self.amateur = model.amateur if isinstance(model, Contrastive) else None
        self.trust_remote_code = trust_remote_code
        self.nodes, self.hidden = nodes, tuple(hidden)
        self.budget = budget or CacheBudget()
        self.cache = self._new_cache()
        self._extra = torch.empty(0, self.width, dtype=self.dtype, device=self.device)
        self.draft_passes = 0
        self._changes = 0  # to the cache: passes, and sequences that take or leave slots

    @property
    def free(self) -> int:
        """Slots that no sequence owns."""
        return self.cache.free

    def bind(self, drafter: Drafter) -> None:
        """Give a drafter access; from now on passes return the states that it wants."""
        drafter.bind(self)
        self.hidden = drafter.wants.hidden  # read after `bind`, which may set it, as are its nodes
        if drafter.nodes > self.nodes:
            self.nodes = drafter.nodes
            del self.cache  # a GPU, where all of it is there at once, may not have room for two
            self.cache = self._new_cache()
        if "f" in drafter.wants.levels:
            self.cache.keep_windows()

    def _new_cache(self) -> KVCache:
        return self.model.new_cache(
            self.slots, self.max_length, spare=self.nodes + 1, budget=self.budget
        )

    def begin(self, sequence: Sequence) -> None:
        self.cache.acquire(sequence.id, Text.of(sequence), sequence.reusable)

    def holds(self, sequence: Sequence) -> bool:
        return self.cache.owns(sequence.id) and self.cache.keeps(
            self.cache.slot(sequence.id), sequence.prompt_length - 1
        )

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        source, target = self._slots([sequence, copy])
        self.cache.copy(source, target, copy.prompt_length - 1)

    def pending(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - 1 - self.cache.lengths[self.cache.slot(sequence.id)]

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        slots = self._slots(sequences)
        starts = [self.cache.lengths[slot] for slot in slots]
        chunks = [
            s.tokens[start : min(start + chunk, len(s.tokens) - 1)]
            for s, start in zip(sequences, starts, strict=True)
        ]
        scored = any(s.params.prompt_logprobs is not None for s in sequences)
        feed = chain_feed(self.cache, slots, chunks, logits=scored)
        feed.last = None  # where logits are wanted, all are
        out = self.model.forward(feed, self.cache, self.hidden)
        for slot, tokens in zip(slots, chunks, strict=True):
            self.cache.lengths[slot] += len(tokens)
        return out

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        resume, changes = trees.resume, self._changes
        feed = self.feed(sequences, trees)
        if resume is not None and resume.changes == changes and self._fits(resume, trees, feed):
            return self._resumed(resume, feed)
        return self.model.forward(feed, self.cache, self.hidden)

    def feed(self, sequences: Seq[Sequence], trees: DraftTree) -> Feed:
        """A pass over root and nodes of every tree."""
        roots = [s.tokens[-1] for s in sequences]
        feed = tree_feed(self.cache, self._slots(sequences), roots, trees)
        feed.amateur_logits = trees.amateur_logits
        if trees.extras is not None:
            numbers = F.pad(trees.extras, (1, 0))  # the root's is 0
            feed.replaced = numbers > 0, self._extra[numbers.clamp(min=1) - 1]
        return feed

    def commit(self, sequences: Seq[Sequence], paths: Seq[Seq[int]]) -> None:
        self.cache.keep(self._slots(sequences), paths)

    def end(self, sequence: Sequence) -> None:
        self._changes += 1
        self.cache.release(sequence.id, warm=sequence.salt is not None)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.embed(tokens)

    def norm(self, states: Tensor) -> Tensor:
        return self.native.normed(states)

    def head(self, states: Tensor) -> Tensor:
        return self.model.head(states)

    def draft_states(
        self, sequences: Seq[Sequence], tokens: Tensor, ahead: int, sublayers: Iterable[int]
    ) -> Tensor:
        self.draft_passes += 1
        feed = scratch_feed(self.cache, self._slots(sequences), tokens, ahead)
        return self._run(feed, sublayers)

    def rerun_states(
        self, sequences: Seq[Sequence], count: int, sublayers: Iterable[int]
    ) -> Tensor:
        self.draft_passes += 1
        tokens = torch.tensor([s.tokens[-1 - count : -1] for s in sequences], device=self.device)
        return self._run(rerun_feed(self.cache, self._slots(sequences), tokens), sublayers)

    def draft_logits(self, sequences: Seq[Sequence], trees: DraftTree) -> Tensor:
        self.draft_passes += 1
        logits = self.model.forward(self.feed(sequences, trees), self.cache).logits
        assert logits is not None
        return logits

    def substitute_logits(
        self, lm: CausalLM, sequences: Seq[Sequence], tokens: Tensor, ahead: int
    ) -> Tensor:
        feed = scratch_feed(self.cache, self._slots(sequences), tokens, ahead)
        logits = lm.forward(feed, self.cache).logits
        assert logits is not None
        return logits

    def resume_point(self, layers: int, tokens: Tensor, states: Tensor) -> ResumePoint:
        return ResumePoint(layers, tokens, states, self._changes)

    def extra_tokens(self, embeddings: Tensor) -> int:
        self._extra = torch.cat((self._extra, embeddings.detach().to(self._extra)))
        return len(self._extra) - len(embeddings) + 1

    def kv(self, sequence: Sequence, layer: int) -> tuple[Tensor, Tensor]:
        slot = self.cache.slot(sequence.id)
        keys, values = self.cache.layer[layer]
        length = self.cache.lengths[slot]
        return keys[slot, :, :length].to(self.dtype), values[slot, :, :length].to(self.dtype)

    @property
    def native(self) -> Transformer:
        """The model, if it can run single sub-layers. Raises `ForetokenError` otherwise."""
        if not isinstance(self.model, Transformer):
            raise ForetokenError(
                "Only the native model runs single sub-layers; use model_impl='native'."
            )
        return self.model

    def _slots(self, sequences: Seq[Sequence]) -> list[int]:
        """The sequences' cache slots. Counts a change: callers are about to write to them."""
        self._changes += 1
        return [self.cache.slot(s.id) for s in sequences]

    def _run(self, feed: Feed, sublayers: Iterable[int]) -> Tensor:
        model = self.native
        return model.run(model.embed(feed.tokens), feed, self.cache, sublayers)

    def _fits(self, resume: ResumePoint, trees: DraftTree, feed: Feed) -> bool:
        """Whether the states belong to these trees (the last node's may be missing), and no other
        layer's states are requested."""
        count, width = resume.tokens.shape[1], feed.tokens.shape[1]
        missing = set(self.hidden) - {resume.layers, -1}
        if missing or not trees.is_chain or not width - 1 <= count <= width:
            return False
        return torch.equal(resume.tokens, feed.tokens[:, :count])

    def _resumed(self, resume: ResumePoint, feed: Feed) -> Pass:
        """A scoring pass that resumes from a drafter's states."""
        model, states, count = self.native, resume.states, resume.states.shape[1]
        if count < feed.tokens.shape[1]:  # the last token was drafted and not run
            last = scratch_feed(self.cache, feed.slots, feed.tokens[:, -1:], count)
            states = torch.cat((states, self._run(last, range(2 * resume.layers))), 1)
        upper = range(2 * resume.layers, 2 * self.layers)
        normed = model.normed(model.run(states, feed, self.cache, upper))
        return Pass(model.head(normed), {resume.layers: states, -1: normed})
