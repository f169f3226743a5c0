"""One sample of one request, as drafters, targets and rules see it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from foretoken.draws import Draws, GreedyDraws, KeyedDraws, stream_key
from foretoken.grammar.constraint import CompiledGrammar, Constraint
from foretoken.sampling.params import SamplingParams

_ids = count()


@dataclass(slots=True)
class PenaltyCounts:
    """Running counts of a sequence's tokens, so that a step costs the new tokens only."""

    seen: int = 0
    prompt: Tensor | None = None  # [V] bool
    output: Tensor | None = None  # [V] counts


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of one request, from admission to its end.

    `tokens` is prompt and output, `source` what an encoder reads (none in a decoder-only model);
    `key` names its stream of random numbers; `end_ids` are the ids that end it, and `late_ids`
    those that `min_tokens` keeps out: these, and ends of texts that are ignored. `processors` are
    what `sampling.stateful` keeps, `grammar` the state of its grammar, made by `constraint`.
    `state` belongs to drafters (keyed by whatever object they choose). `salt`: caches share what
    they have of texts of the same salt, and nothing where it is None; `reusable`: how many of the
    prompt's tokens need not be read.
    """

    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    key: int = 0
    end_ids: frozenset[int] = frozenset()
    late_ids: frozenset[int] = frozenset()
    source: Seq[int] = ()
    salt: str | None = None
    reusable: int = 0
    penalty: PenaltyCounts = field(default_factory=PenaltyCounts)
    processors: list[Any] = field(default_factory=list)
    grammar: Constraint | None = None
    state: dict[Any, Any] = field(default_factory=dict)
    id: int = field(default_factory=lambda: next(_ids))

    @classmethod
    def start(
        cls,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        seed: int = 0,
        sample: int = 0,
        end_ids: frozenset[int] = frozenset(),
        late_ids: frozenset[int] = frozenset(),
        source: Seq[int] = (),
    ) -> Sequence:
        """A fresh sequence; `seed` and `sample` fix every random draw it will ever make."""
        key = 0 if params.greedy else stream_key(seed, sample)
        return cls(list(prompt), len(prompt), params, key, end_ids, late_ids | end_ids, source)

    def afresh(self) -> Sequence:
        """The same sequence as nobody has seen it yet: no slot, no counts, no drafter's state. It
        shares nothing."""
        given = self.params, self.key, self.end_ids, self.late_ids, self.source
        return Sequence(list(self.tokens), self.prompt_length, *given)

    def cut(self, kept: int) -> None:
        """Forget the output after its first `kept` tokens."""
        del self.tokens[self.prompt_length + kept :]

    def spoil(self) -> None:
        """Forget the output, and share nothing: it failed."""
        self.cut(0)
        self.salt = None

    @property
    def constraint(self) -> Constraint | None:
        """What its grammar allows; None without one, and before it is compiled."""
        if self.grammar is None and isinstance(self.params.structured_outputs, CompiledGrammar):
            self.grammar = Constraint(self.params.structured_outputs, self.end_ids)
        return self.grammar

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def references(self) -> Seq[Seq[int]]:
        """Texts that the output may repeat, an encoder's source first; the engine has seen to it
        that they are token ids."""
        return [self.source] * bool(self.source) + list(self.params.references)  # type: ignore[arg-type]


def draws_for(
    sequences: Seq[Sequence], device: torch.device, keyed: type[KeyedDraws] = KeyedDraws
) -> Draws:
    """The random numbers of one step for these sequences, of the class `keyed` where some draw."""
    if all(s.params.greedy for s in sequences):
        return GreedyDraws()
    return keyed([s.key for s in sequences], [len(s.tokens) for s in sequences], device)
