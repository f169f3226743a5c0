"""EAGLE: a decoder layer guesses the target's next state, and from that the next token, in a tree.

Source: Li et al. 2024 (EAGLE), sections 3.1 and 3.2 and appendix A (the tree of 25 nodes). The
layer reads the target's normed last state of each token and the embedding of the token behind it,
and its outputs in place of states while drafting. At temperature 0 a node's children are the
likeliest tokens, above it they are drawn without replacement. Departure: there a greedy sequence
beside sampled ones gets the same tree; here it gets a chain.

Legend: B sequences, T places, M frontier nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from foretoken.builders import Frontier, expand, sample, widths_of
from foretoken.draws import Draws
from foretoken.features import EagleModule
from foretoken.heads import Paths, accepted, fitting
from foretoken.lesson import Lesson
from foretoken.models.feature_layer import FeatureModel
from foretoken.protocols import Access, BaseDrafter, Sequence, Step, Wants
from foretoken.sampling import fold
from foretoken.trained import Facts, Trained
from foretoken.tree import DraftTree, Kind, placed

_TREE = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
TREE = tuple(tuple(map(int, path)) for path in _TREE.split())
"""The paper's static tree."""


@dataclass(eq=False)
class Eagle(BaseDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree: rank paths, each with all its
    earlier siblings and its parent (a chain: [[0], [0, 0], [0, 0, 0]])."""

    model: Any = None
    tree: Seq[Seq[int]] = TREE

    module: ClassVar[type[Trained]] = EagleModule
    wants = Wants("bc", (-1,))
    kinds = frozenset({Kind.WITHOUT_REPLACEMENT})

    def __post_init__(self) -> None:
        EagleModule.named(self.model)
        widths_of(self.tree)
        self.trees = any(max(path) for path in self.tree)

    def bind(self, access: Access) -> None:
        module = EagleModule.load(self.model, access)
        self._widths = widths_of(self._paths(module.facts))
        self._access, self._model = access, FeatureModel(module, module.of, access)

    def _paths(self, facts: Facts) -> Paths:
        """Level by level, as far as so small a vocabulary can fill them."""
        paths = tuple(sorted((tuple(p) for p in self.tree), key=lambda path: (len(path), path)))
        return fitting(paths, max(map(len, paths), default=0), facts.vocab_size)

    def reached(self, module: EagleModule, lesson: Lesson) -> Tensor:
        """[B, T, depth] whether a step whose root stands there accepts more than n places, at
        temperature 0."""
        paths = self._paths(module.facts)
        ranks = module.ranks(lesson, max(map(len, paths)))
        return accepted(ranks, lesson.room, paths)

    def begin(self, sequence: Sequence) -> None:
        self._model.begin(sequence)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows = [b for b, s in enumerate(sequences) if budgets[b] > 0 and self._model.ready(s)]
        device = self._access.device
        if not rows or not self._widths:
            return placed([], len(sequences), device)
        some, limits = [sequences[row] for row in rows], [budgets[row] for row in rows]
        greedy = all(s.params.greedy for s in some)
        views = [_softmax(s) for s in some] if greedy else some

        def ask(frontier: Frontier) -> Tensor:
            return fold(self._model.level(some, frontier), views, frontier.contexts).probs

        if greedy:
            tree = expand(ask, self._widths, limits, device)
        else:
            kind = Kind.WITHOUT_REPLACEMENT
            tree = sample(ask, self._widths, limits, device, draws.take(rows), kind)
        return placed([(rows, tree)], len(sequences), device)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._model.observe(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._model.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._model.end(sequence)


def _softmax(sequence: Sequence) -> Sequence:
    """The same sequence at temperature 1: what `fold` makes of it ranks the tokens."""
    warm = replace(sequence.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return replace(sequence, params=warm)
