"""Kangaroo's draft model: the target's first layers with an adapter on top of them.

The shallow layers write their keys and values after the target's committed length, where a scoring
pass would write the same ones. Such a pass can therefore resume from the states that the draft left
after the exit layer and run the other layers only (Liu et al. 2024, Kangaroo, section 3.1):
`resume_point` hands them over. The adapter has its own cache, with an entry for each token before
the root.

Legend: B sequences, T tokens, K passes of a draft, S = N + 1 slots, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import Feed, chain_feed, scratch_feed
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.feature_layer import FeaturePredictor
from foretoken.trainable.layer import LayerShape, attend_cached
from foretoken.trainable.root_states import kept_slots
from foretoken.tree import ResumePoint

_SPARE = 65  # cache places after the context, at least, for drafts that reach over its end
_MOST_WAITING = 128  # states of a sequence, where other drafters draft


class ShallowModel:
    """A `ChainModel`; `layers`: after which of the target's layers the adapter reads; `longest`:
    tokens of a draft. Needs the levels c, d and e."""

    def __init__(
        self,
        access: Access,
        layers: int,
        adapter: FeaturePredictor,
        shape: LayerShape,
        longest: int = 0,
    ) -> None:
        self.device = access.device
        self._access, self._layers, self._adapter = access, layers, adapter
        self._cache = KVCache(
            alike(1, shape.kv_heads, shape.head_dim),
            access.slots,
            access.max_length,
            access.dtype,
            access.device,
            spare=max(_SPARE, longest + 1),  # a short draft's row runs along with the longest
            budget=access.budget,
        )
        self._tokens: list[Tensor] = []  # [B, 1] each, of this draft, the root's first,
        self._states: list[Tensor] = []  # and [B, 1, D] what the shallow layers made of them

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

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Take the states of what was read or accepted; those of prompts run at once, together."""
        for sequence, step in zip(sequences, steps, strict=True):
            new = self._adapter.features(step.scores.hidden)[step.row, kept_slots(step)]
            sequence.state[self] = torch.cat((sequence.state[self], new))
        most = [0 if step.read else _MOST_WAITING for step in steps]
        pairs = zip(sequences, most, strict=True)
        if reading := [s for s, few in pairs if len(s.state[self]) > few]:
            self._run_waiting(reading, None)

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text, whose last token alone is not in the cache."""
        self._tokens, self._states = [], []
        roots = torch.tensor([s.tokens[-1:] for s in sequences], device=self.device)
        return self._logits(self._run_waiting(sequences, self._shallow(sequences, roots)))

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of each chain."""
        states = self._shallow(sequences, tokens[:, None])
        slots = [self._cache.slot(s.id) for s in sequences]
        feed = scratch_feed(self._cache, slots, tokens[:, None], len(self._tokens) - 1)
        return self._logits(self._adapted(states, feed))

    def resume_point(self) -> ResumePoint | None:
        """The states of this draft's tokens, for the pass that scores it to resume from; None where
        nothing was run."""
        tokens, self._tokens = self._tokens, []
        if not tokens:
            return None
        return self._access.resume_point(
            self._layers, torch.cat(tokens, 1), torch.cat(self._states, 1)
        )

    def _shallow(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, D] the states of one more token [B, 1] of each draft after the exit layer."""
        ahead, lower = len(self._tokens), range(2 * self._layers)
        states = self._access.draft_states(sequences, tokens, ahead, lower)
        self._tokens.append(tokens)
        self._states.append(states)
        return states

    def _run_waiting(self, sequences: Seq[Sequence], roots: Tensor | None) -> Tensor:
        """Run the adapter over waiting states, and after them the roots' [B, 1, D] if given;
        outputs [B, 1, D] of the last ones. The roots' entries are not committed."""
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
        following = states  # not read by an adapter
        return self._adapter.predict(
            states, following, feed.positions, [attend_cached(self._cache.layer[0], feed)]
        )

    def _logits(self, outputs: Tensor) -> Tensor:
        return self._adapter.logits(outputs, self._access.head)
