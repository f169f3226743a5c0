"""A smaller language model drafts a chain by its own sampling.

Source: Leviathan et al. 2023; Chen et al. 2023. The proposal is the small model's law under the
request's own sampling parameters (temperature, truncation, penalties), as those papers' section on
sampling settings asks; the draft length is a rule of `length.py`. The rule "fallback" makes it the
small model of Big Little Decoder (Kim et al. 2023; see `length.Fallback`).

Legend: B sequences, N = longest draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.length import LengthRule, schedule
from foretoken.models.draft_model import DraftModel
from foretoken.models.model import CausalLM
from foretoken.protocols import Access, BaseDrafter, Sequence, Step, Wants
from foretoken.sampling import best, fold
from foretoken.tree import DraftTree, Kind, empty, placed


@dataclass(eq=False)
class SmallLM(BaseDrafter):
    """model: folder, hub id, bundled name or loaded model; num_speculative_tokens: draft length;
    num_assistant_tokens_schedule: when a draft ends before it, a name in `length.SCHEDULES` or a
    rule; assistant_confidence_threshold, draft_cost: the rule's own, where it has them."""

    model: Any = None
    num_speculative_tokens: int = 4
    num_assistant_tokens_schedule: str | LengthRule = "constant"
    assistant_confidence_threshold: float | None = None
    draft_cost: float | None = None

    wants = Wants("a")
    kinds = frozenset({Kind.INDEPENDENT})

    def __post_init__(self) -> None:
        if self.model is None:
            raise ForetokenError(
                "This method drafts with a small model; name it, e.g. "
                'speculative_config={"method": "sps", "model": "folder-or-hub-id"}.'
            )
        self.length: LengthRule = schedule(
            self.num_assistant_tokens_schedule,
            self.num_speculative_tokens,
            {
                "assistant_confidence_threshold": self.assistant_confidence_threshold,
                "draft_cost": self.draft_cost,
            },
        )

    def bind(self, access: Access) -> None:
        self._lm = DraftModel(self.model, access)

    @property
    def lm(self) -> CausalLM:
        """The model, one pass of which drafts one token of every sequence."""
        return self._lm.lm

    def begin(self, sequence: Sequence) -> None:
        self._lm.begin(sequence)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        limits = [
            min(self.length.limit(s), budget, self._lm.room(s))
            for s, budget in zip(sequences, budgets, strict=True)
        ]
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        if len(rows) == len(limits):
            return self._chain(sequences, limits, draws)
        some, own = [sequences[row] for row in rows], [limits[row] for row in rows]
        pieces = [(rows, self._chain(some, own, draws.take(rows)))] if rows else []
        return placed(pieces, len(sequences), self._lm.device)

    def _chain(self, sequences: Seq[Sequence], counts: list[int], draws: Draws) -> DraftTree:
        """At most `counts` tokens of each sequence."""
        greedy = all(s.params.greedy for s in sequences)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []

        def contexts() -> list[list[list[int]]]:
            so_far = torch.stack(tokens, 1).tolist() if tokens else [[] for _ in sequences]
            return [[path] for path in so_far]

        while len(tokens) < max(counts):
            again = bool(tokens)
            logits = self._lm.after(sequences, tokens[-1]) if again else self._lm.behind(sequences)
            law = None if greedy else fold(logits, sequences, contexts).probs[:, 0]
            counts = self._ended(sequences, logits, law, counts, len(tokens))
            if len(tokens) >= max(counts):
                break
            if law is None:
                tokens.append(best(logits, sequences, contexts)[:, 0])
            else:
                laws.append(law)
                tokens.append(draws.draft(law, len(tokens)))
        if not tokens:
            return empty(len(sequences), self._lm.device)
        kind = Kind.INDEPENDENT if laws else Kind.CHOSEN
        return DraftTree(
            torch.stack(tokens, 1),
            counts,
            kind=kind,
            proposals=torch.stack(laws, 1) if laws else None,
        )

    def _ended(
        self, sequences: Seq[Sequence], logits: Tensor, law: Tensor | None, counts: list[int],
        made: int,
    ) -> list[int]:  # fmt: skip
        """`counts`, cut where the rule ends a draft at its next token: the level's one transfer."""
        made += not self.length.stops_before
        if not self.length.looks or made >= max(counts):
            return counts
        ends = self.length.ends(sequences, _looked_at(logits[:, 0], law, sequences)).tolist()
        return [min(c, made) if end else c for c, end in zip(counts, ends, strict=True)]

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            self._lm.follow(sequence, step)
            if step.tokens:
                self.length.observe(sequence, step.drafted, len(step.path))

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._lm.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._lm.end(sequence)


def _looked_at(logits: Tensor, law: Tensor | None, sequences: Seq[Sequence]) -> Tensor:
    """[B, V] what a length rule sees: the law to draw from, at temperature 0 the softmax."""
    cold = [s.params.greedy for s in sequences]
    if law is None:
        return logits.softmax(-1)
    if not any(cold):
        return law
    plain = logits.softmax(-1)
    return torch.where(torch.tensor(cold, device=logits.device)[:, None], plain, law)
