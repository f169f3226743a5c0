"""The base of drafters that sample a chain from a model, token by token.

The proposal is the model's distribution under the request's own sampling parameters (temperature,
truncation, penalties); when a draft ends is decided by a rule of `length.py`. The model, and where
its keys and values are stored, differ between drafters.

Legend: B sequences, N = longest draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.length import LengthRule, schedule
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.fold import best, fold
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind, empty
from foretoken.trees.join import assemble


class ChainModel(Protocol):
    """A model that follows the sequences and predicts the next token (`DraftModel` is one)."""

    @property
    def device(self) -> torch.device: ...

    def begin(self, sequence: Sequence) -> None: ...

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted."""
        ...

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text."""
        ...

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of each chain."""
        ...

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Learn the results of a step, with whose tokens the sequences already end."""
        ...

    def fork(self, sequence: Sequence, copy: Sequence) -> None: ...

    def end(self, sequence: Sequence) -> None: ...


class AllAtOnce:
    """Makes a `ChainModel` of a model that predicts all places in one pass, `ahead`. So no
    distribution depends on the tokens drafted before it."""

    _logits: Tensor  # [B, C, V] of the pass
    _next = 0

    def ahead(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, C, V] logits after each text and of the C - 1 places after it."""
        raise NotImplementedError

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text; those of later places are kept for `next_logits`."""
        self._logits, self._next = self.ahead(sequences), 0
        return self._logits[:, :1]

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] of the next place, whatever the tokens [B] before it."""
        self._next += 1
        return self._logits[:, self._next : self._next + 1]


class WithModels(BaseDrafter):
    """A drafter whose models follow all sequences."""

    @property
    def followers(self) -> Seq[ChainModel]:
        """These models, from `bind` on."""
        raise NotImplementedError

    def begin(self, sequence: Sequence) -> None:
        for model in self.followers:
            model.begin(sequence)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for model in self.followers:
            model.follow(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        for model in self.followers:
            model.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            for model in self.followers:
                model.end(sequence)


class WithModel(WithModels):
    """A drafter with one such model; `bind` sets `_lm`."""

    _lm: ChainModel

    @property
    def followers(self) -> Seq[ChainModel]:
        return (self._lm,)


class ChainDrafter(WithModel):
    """A drafter of chains. Subclasses set `length` when they are made, and `_lm` in `bind`."""

    kinds = frozenset({Kind.INDEPENDENT})

    length: LengthRule

    @property
    def nodes(self) -> int:
        return self.length.most

    @property
    def hands_over(self) -> bool:
        """Whether trees come with the model's logits, for which the target asks."""
        return False

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        limits = self._limits(sequences, budgets)
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        if len(rows) == len(limits) or self.hands_over:  # of every root the target needs logits
            return self._chain(sequences, limits, draws)
        drafting, counts = [sequences[row] for row in rows], [limits[row] for row in rows]
        pieces = [(rows, self._chain(drafting, counts, draws.take(rows)))] if rows else []
        return assemble(pieces, len(sequences), self._lm.device)

    def _limits(self, sequences: Seq[Sequence], budgets: Seq[int]) -> list[int]:
        """How many tokens may be drafted for each."""
        return [
            min(self.length.limit(s), budget, self._lm.room(s))
            for s, budget in zip(sequences, budgets, strict=True)
        ]

    def _chain(self, sequences: Seq[Sequence], counts: list[int], draws: Draws) -> DraftTree:
        """Draft at most `counts` tokens for each sequence."""
        greedy = all(s.params.greedy for s in sequences)
        tokens: list[Tensor] = []
        distributions: list[Tensor] = []
        handed: list[Tensor] = []  # [B, 1, V] at the root and after each token

        def contexts() -> list[list[list[int]]]:
            so_far = torch.stack(tokens, 1).tolist() if tokens else [[] for _ in sequences]
            return [[path] * going for path, going in zip(so_far, places(), strict=True)]

        def places() -> list[int]:
            return [int(count > len(tokens)) for count in counts]  # 0 where a draft has ended

        while len(tokens) < max(counts):
            logits = self._logits(sequences, tokens)
            if self.hands_over:
                handed.append(logits)
            folded = None if greedy else fold(logits, sequences, contexts, places())
            distribution = None if folded is None else folded.probs[:, 0]
            counts = self._ended(sequences, logits, distribution, counts, len(tokens))
            if len(tokens) >= max(counts):
                break
            if distribution is None:
                tokens.append(best(logits, sequences, contexts)[:, 0])
            else:
                distributions.append(distribution)
                tokens.append(draws.draft(distribution, len(tokens)))
        if self.hands_over and len(handed) == len(tokens):  # the bonus token's are missing
            handed.append(self._logits(sequences, tokens))
        tree = empty(len(sequences), self._lm.device)
        if tokens:
            tree = DraftTree(
                torch.stack(tokens, 1),
                counts,
                kind=Kind.INDEPENDENT if distributions else Kind.CHOSEN,
                proposals=torch.stack(distributions, 1) if distributions else None,
            )
        return replace(tree, amateur_logits=torch.cat(handed, 1)) if handed else tree

    def _logits(self, sequences: Seq[Sequence], tokens: Seq[Tensor]) -> Tensor:
        """[B, 1, V] after each text and the tokens [B] that were drafted so far."""
        if tokens:
            return self._lm.next_logits(sequences, tokens[-1])
        return self._lm.root_logits(sequences)

    def _ended(
        self,
        sequences: Seq[Sequence],
        logits: Tensor,
        distribution: Tensor | None,
        counts: list[int],
        made: int,
    ) -> list[int]:
        """`counts`, lowered where the length rule ends a draft here, with `made` tokens drafted so
        far. The rule is asked about drafts that may go on, whoever is beside them: it may remember
        what it has seen. This is the level's one transfer to the host."""
        made += not self.length.stops_before
        open_ = [row for row, count in enumerate(counts) if count > made]
        if not self.length.looks or not open_:
            return counts
        seen = _distribution_for_length_rule(logits[:, 0], distribution, sequences)
        seen = seen if len(open_) == len(counts) else seen[open_]
        ends = self.length.ends([sequences[row] for row in open_], seen).tolist()
        ended = {row for row, end in zip(open_, ends, strict=True) if end}
        return [made if row in ended else count for row, count in enumerate(counts)]

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        super().observe(sequences, steps)
        for sequence, step in zip(sequences, steps, strict=True):
            if step.tokens:
                self.length.observe(sequence, step.drafted, len(step.path))


@dataclass(eq=False, kw_only=True)
class ScheduledChain(ChainDrafter):
    """num_assistant_tokens_schedule: when a draft ends before its longest, a name in
    `length.SCHEDULES` or a rule; assistant_confidence_threshold: that rule's, where it has one."""

    num_assistant_tokens_schedule: str | LengthRule = "constant"
    assistant_confidence_threshold: float | None = None

    def rule(self, tokens: int, **more: float | None) -> LengthRule:
        """The rule for drafts of so many tokens; more: other options of it, None for its own."""
        threshold = self.assistant_confidence_threshold
        options = {"assistant_confidence_threshold": threshold, **more}
        return schedule(self.num_assistant_tokens_schedule, tokens, options)


def _distribution_for_length_rule(
    logits: Tensor, distribution: Tensor | None, sequences: Seq[Sequence]
) -> Tensor:
    """[B, V] the distribution to draw from; for greedy sequences the softmax of the logits."""
    greedy = [s.params.greedy for s in sequences]
    if distribution is None:
        return logits.softmax(-1)
    if not any(greedy):
        return distribution
    softmax = logits.softmax(-1)
    return torch.where(torch.tensor(greedy, device=logits.device)[:, None], softmax, distribution)
