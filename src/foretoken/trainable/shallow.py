"""The target's first layers and an adapter on top as a model that drafts; the target goes on there.

The shallow layers write their keys and values after the target's committed length, where a scoring
pass would write the same ones, so such a pass begins with the states that the draft left after the
exit layer, and runs the other layers only (Liu et al. 2024, Kangaroo, section 3.1). The adapter has
a cache of its own, with an entry for each token before the root.

Legend: B sequences, T tokens, K passes of a draft, S = N + 1 slots, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretoken.access import Access, Pass
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed, chain_feed, scratch_feed
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.feature_layer import FeaturePredictor
from foretoken.trainable.layer import LayerShape, attend_cached

_SPARE = 65  # cache places after the context, for drafts that reach over its end


@dataclass
class _Run:
    """What the shallow layers have run of a draft: tokens and their states, [B, 1] and [B, 1, D]
    each, the root's first; slots, starts: where in the cache; scratches: passes up to the last."""

    tokens: list[Tensor]
    states: list[Tensor]
    slots: list[int]
    starts: list[int]
    scratches: int

    def holds(self, feed: Any) -> bool:
        """Whether the pass is over this draft, as far as it was run, and at most one token more."""
        known, width = len(self.tokens), feed.tokens.shape[1]
        if (self.slots, self.starts) != (feed.slots, feed.starts) or width > known + 1:
            return False
        mine, theirs = torch.cat(self.tokens, 1)[:, :width], feed.tokens[:, :known]
        chain = feed.ancestors == torch.ones_like(feed.ancestors).tril()
        return bool((mine == theirs).all() & chain.all())


class ShallowModel:
    """A `ChainModel`; `layers`: after which of the target's layers the adapter reads. Scoring
    passes are from now on run here; needs the levels c, d and e."""

    def __init__(
        self, access: Access, layers: int, adapter: FeaturePredictor, shape: LayerShape
    ) -> None:
        self.device = access.device
        self._access, self._layers, self._adapter = access, layers, adapter
        self._lower, self._upper = range(2 * layers), range(2 * layers, 2 * access.layers)
        self._cache = KVCache(
            1,
            access.slots,
            shape.kv_heads,
            access.max_length + _SPARE,
            shape.head_dim,
            access.dtype,
            access.device,
        )
        self._ran: _Run | None = None
        access.score_by(self._score)

    def begin(self, sequence: Sequence) -> None:
        self._cache.acquire(sequence.id)
        none = torch.empty(0, self._access.width, dtype=self._access.dtype, device=self.device)
        sequence.state[self] = none  # states [T, D] that have no entry in the cache yet

    def end(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """Copy the entries of the prompt."""
        source, target = self._cache.slot(sequence.id), self._cache.slot(copy.id)
        self._cache.copy(source, target, copy.prompt_length - 1)

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted before the context ends."""
        return max(0, self._access.max_length + 1 - len(sequence.tokens))

    def follow(self, sequence: Sequence, step: Step) -> None:
        """Take the states of what was read or accepted."""
        places = list(range(step.read)) if step.read else [0, *step.path]
        new = self._adapter.features(step.scores.hidden)[step.row, places]
        sequence.state[self] = torch.cat((sequence.state[self], new))
        if step.read:
            self._enter([sequence], None)

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text, whose last token alone is not in the cache."""
        self._ran = None
        roots = torch.tensor([s.tokens[-1:] for s in sequences], device=self.device)
        return self._said(self._enter(sequences, self._shallow(sequences, roots)))

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of each chain."""
        states = self._shallow(sequences, tokens[:, None])
        assert self._ran is not None
        slots = [self._cache.slot(s.id) for s in sequences]
        feed = scratch_feed(self._cache, slots, tokens[:, None], len(self._ran.tokens) - 1)
        return self._said(self._adapted(states, feed))

    def _shallow(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, D] the states of one more token [B, 1] of each draft after the exit layer."""
        access, ran = self._access, self._ran
        feed = access.scratch_next(sequences, tokens, len(ran.tokens) if ran else 0)
        states = access.run(access.embed(tokens), feed, self._lower)
        if ran is None:
            ran = self._ran = _Run([], [], feed.slots, feed.starts, 0)
        ran.tokens.append(tokens)
        ran.states.append(states)
        ran.scratches = access.scratches
        return states

    def _enter(self, sequences: Seq[Sequence], roots: Tensor | None) -> Tensor:
        """Put what waits into the adapter's cache, and after it the roots' states [B, 1, D] if
        there are any; outputs [B, 1, D] of the last ones. The roots' entries are not committed."""
        slots = [self._cache.slot(s.id) for s in sequences]
        waiting = [s.state[self] for s in sequences]
        rows = waiting
        if roots is not None:
            rows = [torch.cat(pair) for pair in zip(waiting, roots, strict=True)]
        starts = [self._cache.lengths[slot] for slot in slots]
        tokens = [
            s.tokens[at : at + len(row)] for s, at, row in zip(sequences, starts, rows, strict=True)
        ]
        feed = chain_feed(self._cache, slots, tokens)
        outputs = self._adapted(nn.utils.rnn.pad_sequence(rows, batch_first=True), feed)
        for sequence, slot, states in zip(sequences, slots, waiting, strict=True):
            sequence.state[self] = states[:0]
            self._cache.lengths[slot] += len(states)
        last = torch.tensor([len(row) - 1 for row in rows], device=self.device)
        return outputs[torch.arange(len(rows), device=self.device), last][:, None]

    def _adapted(self, states: Tensor, feed: Feed) -> Tensor:
        following = states  # which it doesn't read
        return self._adapter.predict(
            states, following, feed.positions, attend_cached(self._cache.layer[0], feed)
        )

    def _said(self, outputs: Tensor) -> Tensor:
        return self._adapter.logits(outputs, self._access.head)

    def _score(self, sequences: Seq[Sequence], feed: Any) -> Pass:
        """A scoring pass, from the draft's states on where it is this draft that is scored."""
        access, ran, self._ran = self._access, self._ran, None
        wanted = set(access.hidden) - {self._layers, -1}
        if ran is None or wanted or ran.scratches != access.scratches or not ran.holds(feed):
            return access.whole(sequences, feed)
        width = feed.tokens.shape[1]
        if width > len(ran.states):  # the last token was drafted and not run
            self._ran = ran
            self._shallow(sequences, feed.tokens[:, -1:])
            self._ran = None
        entered = torch.cat(ran.states, 1)[:, :width]
        states = access.norm(access.run(entered, feed, self._upper))
        return Pass(access.head(states), {self._layers: entered, -1: states})
