"""A request's own prediction of its output, drafted for that request whatever the method is.

As in aggressive decoding (Sun et al. 2021, section 3.1) the prediction is the draft for as long as
the output follows it, and again from where the output is found in it. Where it has come to its end,
the served drafter drafts. Which of the two does so follows from the text alone, and copied tokens
are chosen ones, so exact rules stay exact. Departures: after a token that is not the prediction's,
the next place is the one that the output's longest end is followed by, the nearest of several
(only the 64 nearest places of the last token are looked at, since a long prediction may have it
everywhere), or else the one after the token that was replaced; a draft is three times as long as
what has been followed without a break, so after a change a few tokens show whether the place is
right, and it is half of that for each draft in a row of which nothing was accepted, so that a wrong
prediction costs a token a pass.

Legend: B sequences.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch

from foretoken.draws import Draws
from foretoken.protocols import BaseDrafter, Drafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, chains
from foretoken.trees.join import assemble

_LEAST, _MOST = 2, 64  # tokens of a draft
_GROWTH = 3  # tokens of a draft for each that was followed
_CREDIT = 3  # tokens that count as followed before the first
_LONGEST = 8  # tokens by which the output is found again
_NEAR = 32  # places on each side that are looked at for it


class _Copier:
    """Follows an output through its prediction."""

    def __init__(self, text: Seq[int]) -> None:
        self._text = list(text)
        self._after: dict[int, list[int]] = {}  # token -> the places after it
        for place, token in enumerate(self._text, 1):
            self._after.setdefault(token, []).append(place)
        self._next = self._done = 0  # the place that comes next; output tokens that were followed
        self._followed, self._missed = _CREDIT, 0  # tokens, and drafts for nothing, in a row

    def draft(self, sequence: Sequence, budget: int) -> list[int]:
        """What comes next in the prediction, at most `budget` tokens."""
        tokens, start = sequence.tokens, sequence.prompt_length
        for end in range(start + self._done + 1, len(tokens) + 1):
            if self._text[self._next : self._next + 1] == tokens[end - 1 : end]:
                self._next, self._followed = self._next + 1, self._followed + 1
                continue
            output = tokens[max(start, end - _LONGEST - 1) : end]
            self._next = self._found(output)
            self._followed = self._alike(output, self._next)
        self._done = len(tokens) - start
        length = max(1, max(_LEAST, _GROWTH * self._followed) >> self._missed)
        return self._text[self._next : self._next + min(budget, length, _MOST)]

    def _found(self, output: Seq[int]) -> int:
        """The place after the output's longest end, or after the token that was replaced, where
        more of what is before it is alike."""
        replaced = min(self._next + 1, len(self._text))
        places = self._after.get(output[-1], [])
        here = bisect(places, self._next)
        best = max(
            places[max(0, here - _NEAR) : here + _NEAR],
            key=lambda place: (self._alike(output, place), -abs(place - self._next)),
            default=replaced,
        )
        before = self._alike(output[:-1], self._next)
        return best if self._alike(output, best) > before else replaced

    def _alike(self, output: Seq[int], place: int) -> int:
        """How many tokens before a place are the output's last ones, counted up to `_LONGEST`."""
        most = min(_LONGEST, place, len(output))
        ends = zip(reversed(self._text[place - most : place]), reversed(output), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))

    def note(self, accepted: int) -> None:
        """How the last draft fared."""
        self._missed = 0 if accepted else self._missed + 1


class Predicting(BaseDrafter):
    """Drafts and observes as the served drafter does, but for sequences with a prediction. rows: of
    the last step, those whose draft was copied from one."""

    def __init__(self, drafter: Drafter, device: torch.device) -> None:
        self._drafter, self._device = drafter, device
        self.rows: set[int] = set()

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        copies = {
            row: copied
            for row, sequence in enumerate(sequences)
            if sequence.params.prediction
            and (copied := self._copier(sequence).draft(sequence, budgets[row]))
        }
        self.rows = set(copies)
        if not copies:
            return self._drafter.draft(sequences, budgets, draws)
        # A sequence that may draft nothing is one that every drafter meets at the end of a text.
        left = [0 if row in copies else budget for row, budget in enumerate(budgets)]
        tree = self._drafter.draft(sequences, left, draws).trim(left)
        others = [row for row in range(len(sequences)) if row not in copies]
        pieces = [(list(copies), chains(list(copies.values()), self._device))]
        if others and tree.nodes:
            pieces.append((others, tree.take(others)))
        return assemble(pieces, len(sequences), self._device)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """The served drafter takes no copied token for its own."""
        copied = self.rows if steps and steps[0].tokens else set()
        for row in copied:
            self._copier(sequences[row]).note(len(steps[row].path))
        self._drafter.observe(
            sequences,
            [replace(s, drafted=0) if row in copied else s for row, s in enumerate(steps)],
        )

    def _copier(self, sequence: Sequence) -> _Copier:
        copier: _Copier | None = sequence.state.get(self)
        if copier is None:
            text: Any = sequence.params.prediction  # as token ids: see `check_request`
            copier = sequence.state[self] = _Copier(text)
        return copier
