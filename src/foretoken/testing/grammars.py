"""A toy grammar, for exact enumeration: an automaton over the tokens of a tiny vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from foretoken.grammar.constraint import CompiledGrammar, Ids, Words

Moves = Mapping[int, Mapping[int, int]]
"""State -> token -> the state after it. State 0 is the first."""


class Automaton:
    """A `foretoken.grammar.constraint.Matcher`. Raises where it is taken back too far."""

    def __init__(self, moves: Moves, whole: Collection[int]) -> None:
        """whole: the states in which a text may end."""
        self._moves, self._whole, self._states = moves, whole, [0]

    def accept(self, token: int) -> bool:
        after = self._moves[self._states[-1]].get(token)
        if after is not None:
            self._states.append(after)
        return after is not None

    def rollback(self, count: int) -> None:
        assert 0 < count < len(self._states), f"{count} tokens of {len(self._states) - 1}"
        del self._states[-count:]

    def fill(self, words: Words) -> None:
        bits = words.view(np.uint32)  # the last bit of a word is its sign
        for token in self._moves[self._states[-1]]:
            bits[token // 32] |= 1 << token % 32

    @property
    def complete(self) -> bool:
        return self._states[-1] in self._whole

    def forced(self) -> list[int]:
        state, tokens = self._states[-1], list[int]()
        while len(self._moves[state]) == 1 and state not in self._whole:
            [(token, state)] = self._moves[state].items()
            tokens.append(token)
        return tokens


def automaton(
    vocab_size: int, moves: Moves, whole: Collection[int], reasoning_end: tuple[int, ...] = ()
) -> CompiledGrammar:
    """A grammar for `SamplingParams(structured_outputs=…)`."""
    marker = Ids(reasoning_end) if reasoning_end else None
    return CompiledGrammar("a toy", vocab_size, lambda: Automaton(moves, whole), marker)
