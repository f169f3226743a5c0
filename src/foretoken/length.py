"""When a draft ends. A rule decides from the prefix and the past, never from the drawn tokens.

Legend: d drafted tokens, a accepted ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from foretoken.errors import ForetokenError
from foretoken.protocols import Sequence


class LengthRule(Protocol):
    """How many tokens to draft next for a sequence."""

    def limit(self, sequence: Sequence) -> int: ...

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None: ...


@dataclass(frozen=True)
class Fixed:
    """Always `tokens` (Leviathan et al. 2023: gamma)."""

    tokens: int

    def __post_init__(self) -> None:
        _at_least_one(self.tokens)

    def limit(self, sequence: Sequence) -> int:
        return self.tokens

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        pass


@dataclass(frozen=True)
class Heuristic:
    """Two more after a draft that was accepted whole, one less otherwise.

    Source: transformers' `num_assistant_tokens_schedule="heuristic"`; kept per sequence.
    """

    tokens: int

    def __post_init__(self) -> None:
        _at_least_one(self.tokens)

    def limit(self, sequence: Sequence) -> int:
        current: int = sequence.state.get(self, self.tokens)
        return current

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if drafted:
            now = self.limit(sequence)
            sequence.state[self] = now + 2 if accepted == drafted else max(1, now - 1)


def _at_least_one(tokens: int) -> None:
    if tokens < 1:
        raise ForetokenError(
            f"num_speculative_tokens is {tokens}; it must be at least 1 "
            "(use method 'autoregressive' to draft nothing)."
        )


SCHEDULES: dict[str, Callable[[int], LengthRule]] = {"constant": Fixed, "heuristic": Heuristic}


def schedule(name: str, tokens: int) -> LengthRule:
    """The rule that transformers calls by this schedule name."""
    if name not in SCHEDULES:
        raise ForetokenError(
            f"num_assistant_tokens_schedule is {name!r}; it must be one of {', '.join(SCHEDULES)}."
        )
    return SCHEDULES[name](tokens)
