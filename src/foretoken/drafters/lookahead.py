"""Lookahead: Jacobi trajectories bring n-grams, and n-grams that fit are the draft, in one pass.

Source: Fu et al. 2024 (Lookahead decoding), sections 3.1 to 3.3; defaults of their README. A window
has W columns and N - 1 levels. The first level is the root and a chain of W - 1 guesses; guess i of
a later level stands one place after guess i of the level before and follows it. So the paper's mask
is the ancestor mask of one tree, whose nodes are auxiliary. The target's predictions after the last
level complete W n-grams, the first of which begins with the root; they go to a pool and become the
new last level. The first one is dropped, so the window moves by one place a step however many
tokens were accepted. The pool's n-grams that begin with the root's token, at most G of them, are
the chosen branches of the same tree.

The first level is made of random tokens of the prompt (an encoder–decoder's source), the others of
the first N - 2 steps. When sampling, trajectories stay greedy. Departures: the n-grams of prompt
and output are in the pool too (`pool_from_prompt`, off in the reference code); W, N and G may be
planned for measured costs. Then a tree by rank is planned for the n-grams, counting each of its
nodes twice, since the window takes as many (W = G, section 3.3): of its M nodes in L levels follow
N = L + 1 and W = G = M / L, rounded up. A window whose size changes begins again, and then keeps it
for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from math import ceil
from random import Random

import torch

from foretoken.access import Access, Wants
from foretoken.control.cost_model import CostModel
from foretoken.drafters.shared.planned_tree import TreePlanner, check_tree, whole
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter, Drafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, Kind, empty
from foretoken.trees.from_lists import from_parents, from_paths
from foretoken.trees.join import join
from foretoken.trees.plan import AUTO, TreePlan

_RATES = (0.35, 0.1, 0.06, 0.04, 0.03, 0.03, 0.02)  # of n-grams, the latest first, before any count

_KEPT = 32  # steps for which a window keeps its size: the number of sequences may change at each


@dataclass(frozen=True)
class Sizes:
    """window: columns (W); ngram_size: length of an n-gram (N); guesses: n-grams tried in a step
    (G)."""

    window: int
    ngram_size: int
    guesses: int


@dataclass(eq=False)
class Lookahead(BaseDrafter):
    """window: columns, of which each completes an n-gram a step (W); ngram_size: length of an
    n-gram (N), its first token included; guesses: n-grams kept for each first token, and tried in a
    step (G); pool_from_prompt: whether the n-grams of prompt and output may be tried;
    num_speculative_tokens: instead of ngram_size, one less than it; tree: "paper" (these sizes), or
    "auto": sizes planned for measured costs, at most these; as "paper" where none are known."""

    window: int = 7
    ngram_size: int = 5
    guesses: int = 7
    pool_from_prompt: bool = True
    num_speculative_tokens: int | None = None
    tree: str = AUTO

    wants = Wants("ab")
    kinds = frozenset({Kind.CHOSEN, Kind.AUXILIARY})
    trees = True

    def __post_init__(self) -> None:
        if self.num_speculative_tokens is not None:
            self.ngram_size = self.num_speculative_tokens + 1
        if self.window < 1 or self.ngram_size < 2 or self.guesses < 1:
            raise ForetokenError(
                f"window is {self.window}, ngram_size {self.ngram_size} and guesses "
                f"{self.guesses}; they must be at least 1, 2 and 1."
            )
        places = (self.window + self.guesses) * (self.ngram_size - 1)
        check_range(1, MOST_NODES, **{"(window + guesses) * (ngram_size - 1)": places})
        check_tree(self.tree)
        self._paper = Sizes(self.window, self.ngram_size, self.guesses)
        levels = self.ngram_size - 1
        self._planner = TreePlanner(
            _RATES[: self.guesses], self.guesses * levels, levels, self._sizes, scored=2
        )
        if self.tree == AUTO:
            self.shared = self._planner

    def _sizes(self, plan: TreePlan) -> Sizes:
        grams = ceil(len(plan.paths) / plan.depth) if plan.paths else 0
        return Sizes(min(self.window, grams), plan.depth + 1, grams)

    @property
    def nodes(self) -> int:
        levels = range(1, self.ngram_size)
        window = max(level * (self.window + self.ngram_size - 1 - level) for level in levels) - 1
        return window + self.guesses * (self.ngram_size - 1)

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        if self.tree == AUTO:
            self._planner.price(measure, self, whole)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        """The n-grams that fit, then the window, where there is room for all of it."""
        sizes = self._planner.tree(len(sequences), self._paper)
        if not sizes.window:
            return empty(len(sequences), self._device)
        states = [self._state(sequence) for sequence in sequences]
        fitting = []
        for state, sequence in zip(states, sequences, strict=True):
            state.take_sizes(sizes, sequence)
            state.root = sequence.tokens[-1]
            fitting.append(state.fitting(sequence.tokens[-1]))
        grams = from_paths(fitting, self._device).trim(budgets)
        for state, count, budget in zip(states, grams.counts, budgets, strict=True):
            whole = count + state.size
            state.scored = whole if whole <= budget else None
        told = from_parents(
            [state.tokens() if state.scored is not None else [] for state in states],
            [state.parents() if state.scored is not None else [] for state in states],
            self._device,
        )
        return join((grams, replace(told, kind=Kind.AUXILIARY)))

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """The window's nodes are the last ones of a row, and its last level the last of these."""
        if not steps or not steps[0].tokens:
            return  # prefill brings no scores
        predicted = steps[0].scores.best.tolist()  # [B][S]
        for sequence, step in zip(sequences, steps, strict=True):
            state, end = self._state(sequence), step.drafted + 1
            if state.scored == step.drafted:  # else it was cut, or another's
                after_nodes = predicted[step.row][end - state.size : end]
                new = [predicted[step.row][0], *after_nodes][-state.width :]
                self._advance(state, new)
            state.scored = None
        self._planner.observe(steps)

    def _advance(self, state: _State, new: list[int]) -> None:
        """The predictions after the columns complete n-grams, once all levels are there."""
        if len(state.levels) < state.sizes.ngram_size - 1:
            state.levels = [level[1:] for level in (*state.levels, new)]
            return
        first, *later = state.levels
        for gram in zip([state.root, *first], *later, new, strict=True):
            state.add(gram, self.guesses)
        first, *later = (*later, new)
        state.levels = [first[1:], *later]

    def _state(self, sequence: Sequence) -> _State:
        state: _State | None = sequence.state.get(self)
        if state is None:
            state = sequence.state[self] = _State(self._paper)
            state.begin_window(self._paper, sequence)
            if self.pool_from_prompt:
                self._pool(state, sequence.source, 0)
        if self.pool_from_prompt:
            self._pool(state, sequence.tokens, state.read)
            state.read = len(sequence.tokens)
        return state

    def _pool(self, state: _State, text: Seq[int], known: int) -> None:
        """Add a text's n-grams, but for those among its first `known` tokens."""
        for end in range(max(self.ngram_size, known + 1), len(text) + 1):
            state.add(tuple(text[end - self.ngram_size : end]), self.guesses)


@dataclass
class _State:
    """sizes: those of the window. levels: the window's guesses, the oldest trajectory first, whose
    first column is the root; each of the first steps adds a level and takes a column away. pool:
    first token -> the rest of its n-grams, the latest first. scored: nodes of the tree that the
    target scores, where the window is in it, else None. root: the token that the draft follows.
    read: tokens of the text whose n-grams are in the pool. age: drafts since the sizes were
    chosen."""

    sizes: Sizes
    levels: list[list[int]] = field(default_factory=list)
    pool: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    scored: int | None = None
    root: int = 0
    read: int = 0
    age: int = _KEPT

    def take_sizes(self, sizes: Sizes, sequence: Sequence) -> None:
        """The sizes of the next draft, unless those that the window has are too new."""
        if self.age >= _KEPT:
            self.age = 0
            if self.sizes != sizes:
                self.begin_window(sizes, sequence)
        self.age += 1

    def fitting(self, first: int) -> list[tuple[int, ...]]:
        """The n-grams that begin with a token, without it."""
        rests = self.pool.get(first, [])[: self.sizes.guesses]
        return [rest[: self.sizes.ngram_size - 1] for rest in rests]

    def begin_window(self, sizes: Sizes, sequence: Sequence) -> None:
        """A new window of these sizes: its first level is made of random tokens of the prompt."""
        prompt = sequence.source or sequence.tokens[: sequence.prompt_length]
        count = sizes.window + sizes.ngram_size - 3
        self.sizes, self.levels = sizes, [Random(sequence.key).choices(prompt, k=count)]

    @property
    def width(self) -> int:
        """Columns, of which the first one begins with the root."""
        return len(self.levels[0]) + 1

    @property
    def size(self) -> int:
        return self.width * len(self.levels) - 1

    def tokens(self) -> list[int]:
        return [token for level in self.levels for token in level]

    def parents(self) -> list[int]:
        """The first level is a chain from the root; below the root and each guess stands the next
        level's."""
        chain = self.width - 1
        return [*range(chain), *range(self.size - chain)]

    def add(self, gram: tuple[int, ...], most: int) -> None:
        """Put an n-gram before the others of its first token, and keep at most `most`."""
        stored = self.pool.get(gram[0], [])
        others = [rest for rest in stored if rest != gram[1:]]
        self.pool[gram[0]] = [gram[1:], *others][:most]
