"""The base of targets that change how roots are scored and leave the rest to a `ModelTarget`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

from foretoken.access import Pass
from foretoken.models.cache import KVCache
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree


class WrappedTarget(ABC):
    """A `Target` that leaves all but scoring to the `ModelTarget` that it wraps.

    A subclass scores steps without a draft in `score_roots`. Where a drafter made nodes, or reads
    states, the wrapped target scores.
    """

    def __init__(self, target: ModelTarget) -> None:
        """Raises `ForetokenError` where the model can't run single sub-layers."""
        self.target, self.model = target, target.native
        self.tokenizer = target.tokenizer
        self.vocab_size, self.max_length = target.vocab_size, target.max_length
        self.device, self.levels = target.device, target.levels
        self.budget, self.opening = target.budget, target.opening
        self.begin, self.holds, self.fork = target.begin, target.holds, target.fork
        self.pending, self.prefill = target.pending, target.prefill
        self.commit, self.end = target.commit, target.end

    @property
    def cache(self) -> KVCache:
        """The wrapped target's, which is made anew for a drafter of large trees."""
        return self.target.cache

    @property
    def nodes(self) -> int:
        """The largest tree of a sequence."""
        return self.target.nodes

    @property
    def free(self) -> int:
        """Slots that no sequence owns."""
        return self.target.free

    def bind(self, drafter: Drafter) -> None:
        """Give a drafter access to the wrapped target."""
        self.target.bind(drafter)

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        if not trees.nodes and not self.target.hidden:
            return self.score_roots(sequences, trees)
        for sequence in sequences:
            sequence.state.pop(self, None)  # the pass overwrites what was computed ahead
        return self.target.score(sequences, trees)

    @abstractmethod
    def score_roots(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        """One pass over the roots; the trees have no nodes."""
