"""An encoder–decoder as the target of the loop: a prompt is its source.

Reading the source is a part of prefill. It is done once a request, for all of its samples, whole
and not in chunks, since each of its tokens sees all others; the text begins with the model's
`opening`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

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
        self.opening = model.opening

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        super().fork(sequence, copy)
        self.cache.copy_source(self.cache.slot(sequence.id), self.cache.slot(copy.id))

    def pending(self, sequence: Sequence) -> int:
        """Tokens of the source, where it has not been read, and of the text before the root that
        are not yet in the cache."""
        return self._unread(sequence) + super().pending(sequence)

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        unread = [s for s in sequences if self._unread(s)]
        if unread:
            self.model.read([s.source for s in unread], self._slots(unread), self.cache)
        behind = [s for s in sequences if super(Seq2SeqTarget, self).pending(s)]
        return super().prefill(behind, chunk) if behind else Pass(None)

    def _unread(self, sequence: Sequence) -> int:
        return len(sequence.source) - self.cache.sources.lengths[self.cache.slot(sequence.id)]


def target_for(model: CausalLM, *given: Any, **options: Any) -> ModelTarget:
    """The target of any model, with what a `ModelTarget` takes."""
    if isinstance(model, Seq2Seq):
        return Seq2SeqTarget(model, *given, **options)
    return ModelTarget(model, *given, **options)
