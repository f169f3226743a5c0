"""A cascade: small models write the draft, with drafts from still smaller models or copying.

Sources: Chen et al. 2024 (CS-Drafting), algorithm 1; Spector and Ré 2023 (staged speculative
decoding), which is the cascade of one model and an n-gram model. A stage drafts
for one reviewer: some tokens are written by the largest model of the stage, then some by the next
one (the horizontal cascade), the last ones are copied by Max-Gram. A model writes in a
`foretoken.step` loop in which it is the target and the next stage drafts (the vertical cascade). So
its tokens have its distribution, whoever drafted them; with a lenient review inside, the proposal
of a token is the distribution that it was really drawn from under leniency. Copied tokens, and
those whose distribution is a point mass, are marked as chosen.

Departures: for Max-Gram's see `max_gram`; it is also the n-gram model of staged decoding, whose
drafts are chains here and not trees. At temperature 0 leniency is `Lenience`'s: a token passes
whose probability p exceeds l times the likeliest one's. CS-Drafting's code, which is greedy only,
compares p with l·q, where q is what the token's drafter gave to it, 1 if it was copied.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import WithModels
from foretoken.drafters.shared.depth import draft_depth
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.lookup.longest_match import copy_after
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.model import CausalLM
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import PenaltyCounts, Sequence
from foretoken.step import step
from foretoken.tree import MOST_NODES, DraftTree, Kind, chains
from foretoken.verify.lenience import Lenience, written_distributions
from foretoken.verify.speculative import Speculative

PAPERS = {2: ((13, 10), (0, 10)), 3: ((5, 14, 10), (0, 1, 10), (0, 0, 10))}
"""CS-Drafting's k-matrix for one small model and Max-Gram, and for two and Max-Gram."""


@dataclass(eq=False)
class Cascade(WithModels):
    """model: folder, hub id, bundled name or loaded model; models: several, the largest first.
    draft_backend: how their linear layers run, e.g. "q4", by default as the target's do.
    draft_vocab_size: how many tokens they may write, the first ids and the ends of text, None for
    all.

    k_matrix: how many tokens each drafter writes for each reviewer. Rows are the target and the
    models, columns the models and Max-Gram; entries below the diagonal are not read. None takes the
    paper's for one or two models. lenience: what q is multiplied by in reviews inside the cascade;
    1 is exact, 1/3 is the paper's 3. The target's own review is always exact.
    num_speculative_tokens: a shorter draft than k_matrix makes, which ends there.
    """

    model: Any = None
    models: Seq[Any] = ()
    k_matrix: Seq[Seq[int]] | None = None
    lenience: float = 1.0
    num_speculative_tokens: int | None = None
    draft_backend: str | None = None
    draft_vocab_size: int | None = None

    wants = Wants("a")
    kinds = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})

    def __post_init__(self) -> None:
        if (self.model is None) == (not self.models):
            raise ForetokenError(
                "A cascade drafts with small models; name one as model or several as models, the "
                'largest first, e.g. {"method": "cs_drafting", "model": "folder-or-hub-id"}.'
            )
        size = 1 + (len(self.models) or 1)
        matrix = self.k_matrix if self.k_matrix is not None else PAPERS.get(size, ())
        if len(matrix) != size or any(len(row) != size or min(row) < 0 for row in matrix):
            raise ForetokenError(
                f"k_matrix is {self.k_matrix}; {size - 1} models and Max-Gram need {size} rows of "
                f"{size} numbers of tokens, none of them negative."
            )
        rule = Speculative() if self.lenience == 1 else Lenience(self.lenience)
        self._stages: list[_Stage] = []
        for row in reversed(range(size)):
            self._stages.insert(0, _Stage(matrix[row][row:], list(self._stages), rule))
        check_range(0, MOST_NODES, k_matrix=max(map(max, matrix)))
        most = sum(self._stages[0].counts)
        self._most = draft_depth(
            self.num_speculative_tokens, most, f"k_matrix drafts {most} tokens"
        )

    @property
    def nodes(self) -> int:
        return self._most

    def bind(self, access: Access) -> None:
        for stage in self._stages:
            stage.device = access.device
        self._models = [
            DraftModel(model, access, backend=self.draft_backend, vocab_size=self.draft_vocab_size)
            for model in self.models or [self.model]
        ]
        for row, stage in enumerate(self._stages):
            stage.models = self._models[row:]

    @property
    def small_models(self) -> Seq[CausalLM]:
        return [model.lm for model in self._models]

    @property
    def followers(self) -> Seq[DraftModel]:
        return self._models

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return self._stages[0].draft(sequences, [min(n, self._most) for n in budgets], draws)


@dataclass(eq=False)
class _Draft:
    """A draft of one sequence while it is written: its tokens are appended to a copy of the
    sequence."""

    sequence: Sequence
    end: int  # the length at which it is full
    distributions: list[Tensor | None] = field(
        default_factory=list
    )  # [V] of each token, None: chosen


class _Stage(BaseDrafter):
    """The drafter of one reviewer: counts[i] tokens of models[i], then counts[-1] copied ones.

    below[i] drafts for models[i], which verifies by `rule`.
    """

    models: Seq[DraftModel]
    device: torch.device

    def __init__(self, counts: Seq[int], below: Seq[_Stage], rule: Speculative | Lenience) -> None:
        self.counts, self.below, self.rule = counts, below, rule

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [
            _Draft(_working_copy(s), len(s.tokens) + budget)
            for s, budget in zip(sequences, budgets, strict=True)
        ]
        for number, model in enumerate(self.models):
            self._write(number, model, drafts, draws)
        for draft in drafts:
            text = draft.sequence.tokens
            copied = copy_after(text, min(self.counts[-1], draft.end - len(text)))
            text += copied
            draft.distributions += [None] * len(copied)
        return _tree(drafts, self.device)

    def _write(self, number: int, model: DraftModel, drafts: Seq[_Draft], draws: Draws) -> None:
        """Let the model write its tokens, drafted by the stage below and verified by the model."""
        goals = [
            min(len(d.sequence.tokens) + min(self.counts[number], model.room(d.sequence)), d.end)
            for d in drafts
        ]
        while rows := [b for b, d in enumerate(drafts) if len(d.sequence.tokens) < goals[b]]:
            sequences = [drafts[b].sequence for b in rows]
            lengths = [len(s.tokens) for s in sequences]
            left = [goals[b] - length - 1 for b, length in zip(rows, lengths, strict=True)]
            inner = draws.take(rows).inner(number, lengths)
            steps = step(model, self.below[number], self.rule, sequences, left, inner)
            distributions = self._proposals(steps)
            for b, done in zip(rows, steps, strict=True):
                drafts[b].distributions += distributions[done.row][: len(done.tokens)]

    def _proposals(self, steps: Seq[Step]) -> list[list[Tensor | None]]:
        """[B][n] the distribution [V] of each token written in this step; None for a point mass."""
        most = max(len(done.tokens) for done in steps)
        probs = steps[0].scores.probs[:, : most + 1]
        drawn = ((probs[:, :most] > 0).sum(-1) > 1).tolist()
        if isinstance(self.rule, Lenience):
            tree = steps[0].tree.trim([most] * len(steps))
            probs = written_distributions(tree, probs, self.rule.lenience)
        return [
            [probs[b, place] if open_ else None for place, open_ in enumerate(row)]
            for b, row in enumerate(drawn)
        ]

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for model in self.models:
            model.follow(sequences, steps)


def _working_copy(sequence: Sequence) -> Sequence:
    """A copy of the sequence with the same id, whose tokens and counts may change. Its processors
    are its own: as its text grows they forget what the sequence's must remember."""
    counts = sequence.penalty
    output = None if counts.output is None else counts.output.clone()
    return replace(
        sequence,
        tokens=list(sequence.tokens),
        penalty=PenaltyCounts(counts.seen, counts.prompt, output),
        processors=[copy(process) for process in sequence.processors],
    )


def _tree(drafts: Seq[_Draft], device: torch.device) -> DraftTree:
    """The drafts as chains; proposals only where something was drawn."""
    starts = [len(draft.sequence.tokens) - len(draft.distributions) for draft in drafts]
    tree = chains([d.sequence.tokens[n:] for d, n in zip(drafts, starts, strict=True)], device)
    example = next(
        (
            distribution
            for draft in drafts
            for distribution in draft.distributions
            if distribution is not None
        ),
        None,
    )
    if example is None:
        return tree
    none = torch.zeros_like(example)
    distributions = [
        [*draft.distributions, *[None] * (tree.nodes - len(draft.distributions))]
        for draft in drafts
    ]
    tree.proposals = torch.stack(
        [
            torch.stack([none if distribution is None else distribution for distribution in row])
            for row in distributions
        ]
    )
    kinds = [
        [Kind.CHOSEN if distribution is None else Kind.INDEPENDENT for distribution in row]
        for row in distributions
    ]
    tree.kinds = torch.tensor(kinds, dtype=torch.int8, device=device)
    return tree
