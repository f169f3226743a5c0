"""REST: draft what most often follows the end of the text in a datastore of other texts.

Source: He et al. 2024 (REST), section 3. The longest end of the text that stands in the datastore,
at most `max_token_span` tokens, is looked up; what follows it there is counted as a trie, and the
prefixes that are seen most are drafted. The paper accepts the nodes that equal tokens sampled from
the target, which is target-only verification. Departures from the reference code: of more than
`max_matches` matches evenly spread ones are read, since neighbours in a suffix array continue
alike; continuations end with their text; without a match nothing is drafted, instead of a
dummy token.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.lookup.datastore import ORDERED, Datastore
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.best_first import NONE, Branches, best_first
from foretoken.trees.from_lists import from_parents

_Place = tuple[int, int, int]
"""Rows from, rows to, and how many of their tokens the path holds."""


@dataclass(eq=False)
class Rest(BaseDrafter):
    """datastore: a folder that `foretoken datastore build` wrote; num_speculative_tokens: most
    nodes; max_token_span, min_token_span: lengths of the phrase looked up; continuation_tokens: how
    deep the trie is; max_matches: places read for it."""

    datastore: str | Path | None = None
    num_speculative_tokens: int = 64
    max_token_span: int = 16
    min_token_span: int = 2
    continuation_tokens: int = 10
    max_matches: int = 5000

    wants = Wants("ab")
    follows = True
    trees = True

    def __post_init__(self) -> None:
        if self.datastore is None:
            raise ForetokenError(
                'REST needs a datastore; make one by "foretoken datastore build FILES --tokenizer '
                'MODEL --out FOLDER" and give its folder as the option datastore.'
            )
        if not 1 <= self.min_token_span <= self.max_token_span <= ORDERED:
            raise ForetokenError(
                f"min_token_span is {self.min_token_span} and max_token_span "
                f"{self.max_token_span}; need 1 <= min <= max <= {ORDERED}."
            )
        if min(self.num_speculative_tokens, self.continuation_tokens, self.max_matches) < 1:
            raise ForetokenError(
                "num_speculative_tokens, continuation_tokens and max_matches must be at least 1."
            )
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        assert self.datastore is not None
        self._device: torch.device = access.device
        self._store = Datastore(self.datastore, {"vocab_size": access.vocab_size})

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        branches = [
            self._guess(sequence.tokens, min(self.num_speculative_tokens, budget))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        return from_parents(
            [b.tokens for b in branches], [b.parents for b in branches], self._device
        )

    def _guess(self, text: Seq[int], most: int) -> Branches:
        """The prefixes that are seen most after the longest end of the text that is known."""
        if most < 1:
            return NONE
        span = self._store.longest(text, self.min_token_span, self.max_token_span)
        if not span:
            return NONE
        rows = self._store.continuations(text[-span:], self.continuation_tokens, self.max_matches)

        def following(place: _Place) -> Iterator[tuple[float, int, _Place]]:
            start, stop, depth = place
            if depth == self.continuation_tokens:
                return
            column = rows[start:stop, depth]  # sorted, so equals stand together
            edges = [0, *(np.flatnonzero(column[1:] != column[:-1]) + 1).tolist(), stop - start]
            for first, last in pairwise(edges):
                token = int(column[first])
                if token < self._store.vocab_size:
                    share = (last - first) / (stop - start)
                    yield share, token, (start + first, start + last, depth + 1)

        return best_first((0, len(rows), 0), following, most)
