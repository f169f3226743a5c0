"""An encoder–decoder as the target of the loop: a prompt is its source.

Reading the source is a part of prefill. It is done once a request, for all of its samples, whole
and not in chunks, since each of its tokens sees all others; the text begins with the model's
`opening`. The source's tokens have no states of the decoder's: in prefill these are zeros, and so
is the state that the first root is drafted after where the opening is one token.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from foretoken.access import Pass
from foretoken.models.model import CausalLM
from foretoken.models.seq2seq.cache import SourcedCache
from foretoken.models.seq2seq.model import Seq2Seq
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence


class Seq2SeqTarget(ModelTarget):
    """`Target` over a `Seq2Seq`."""

    model: Seq2Seq
    cache: SourcedCache

    def __init__(self, model: Seq2Seq, *given: Any, **options: Any) -> None:
        """As a `ModelTarget`."""
        super().__init__(model, *given, **options)
        self.opening, self.encoder = model.opening, model.encoder

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        super().fork(sequence, copy)
        self.cache.copy_source(self.cache.slot(sequence.id), self.cache.slot(copy.id))

    def pending(self, sequence: Sequence) -> int:
        """Tokens of the source, where it has not been read, and of the text before the root that
        are not yet in the cache."""
        return self._unread(sequence) + super().pending(sequence)

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        before = [self.pending(s) for s in sequences]
        unread = [s for s in sequences if self._unread(s)]
        if unread:
            self.model.read([s.source for s in unread], self._slots(unread), self.cache)
        texts = [super(Seq2SeqTarget, self).pending(s) for s in sequences]
        behind = [row for row, count in enumerate(texts) if count]
        out = super().prefill([sequences[row] for row in behind], chunk) if behind else Pass(None)
        if not self.hidden:
            return out
        read = [n - self.pending(s) for n, s in zip(before, sequences, strict=True)]
        states = torch.zeros(len(read), max(read), self.width, dtype=self.dtype, device=self.device)
        for row, own in zip(behind, out.hidden[-1] if behind else (), strict=True):
            count = min(texts[row], chunk)
            states[row, read[row] - count : read[row]] = own[:count]
        return Pass(out.logits, {-1: states})

    def _unread(self, sequence: Sequence) -> int:
        return len(sequence.source) - self.cache.sources.lengths[self.cache.slot(sequence.id)]


def target_for(model: CausalLM, *given: Any, **options: Any) -> ModelTarget:
    """The target of any model, with what a `ModelTarget` takes."""
    if isinstance(model, Seq2Seq):
        return Seq2SeqTarget(model, *given, **options)
    return ModelTarget(model, *given, **options)
