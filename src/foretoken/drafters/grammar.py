"""Draft what a request's grammar forces: keys, quotes and brackets that must follow in any case.

Where a JSON schema leaves one continuation only, no model is needed to know it. Inserting it
unscored (SGLang's jump-forward decoding, Zheng et al. 2024, section 4) changes how the text is cut
into tokens, and with it what the model goes on to write. Here it is a chosen draft instead, cut
into tokens as the tokenizer cuts it from the last token on: the target scores it under the masks of
its grammar, and where it would cut otherwise, the rest of the draft is rejected. A request without
`structured_outputs` gets no draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, chains


@dataclass(eq=False)
class Grammar(BaseDrafter):
    """num_speculative_tokens: most tokens of what is forced that are drafted in a step."""

    num_speculative_tokens: int = 16

    wants = Wants("a")
    follows = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device
        self._vocab_size = access.vocab_size

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [self._forced(s, budget) for s, budget in zip(sequences, budgets, strict=True)]
        return chains(drafts, self._device)

    def _forced(self, sequence: Sequence, budget: int) -> list[int]:
        constraint, most = sequence.constraint, min(budget, self.num_speculative_tokens)
        if constraint is None or most < 1:
            return []
        return [t for t in constraint.forced(sequence.output)[:most] if t < self._vocab_size]
