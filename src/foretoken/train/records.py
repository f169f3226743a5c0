"""Prompts and answers as flat arrays of token ids."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretoken.repetition import distinct_4

Ids = NDArray[np.integer]


@dataclass(frozen=True)
class Records:
    """Prompts, each with its answer. tokens: all records one after the other. starts: [N + 1] where
    each begins. answers: [N] where its answer begins (its end, if it has none). limit: the most
    tokens of an answer that serving would write; no draft goes beyond it."""

    tokens: Ids
    starts: Ids
    answers: Ids
    limit: int

    ARRAYS: ClassVar[tuple[str, ...]] = ("tokens", "starts", "answers")
    """The arrays' names in a file."""

    @property
    def arrays(self) -> dict[str, Ids]:
        """The arrays of a file of records, by name."""
        return {"tokens": self.tokens, "starts": self.starts, "answers": self.answers}

    def __len__(self) -> int:
        return len(self.answers)

    @classmethod
    def of(cls, pairs: Seq[tuple[Seq[int], Seq[int]]], limit: int, vocab_size: int) -> Records:
        """Records of (prompt, answer) pairs of token ids."""
        kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        lengths = [[len(prompt), len(answer)] for prompt, answer in pairs]
        sizes = np.array(lengths, dtype=np.int64).reshape(-1, 2)
        starts = np.concatenate(([0], sizes.sum(1).cumsum()))
        flat = [token for prompt, answer in pairs for token in (*prompt, *answer)]
        return cls(np.array(flat, dtype=kind), starts, starts[:-1] + sizes[:, 0], limit)

    @classmethod
    def joined(cls, parts: Seq[Records]) -> Records:
        """One after the other, under the largest limit."""
        ends = np.cumsum([0, *(len(part.tokens) for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends, strict=False)]
        answers = [part.answers + end for part, end in zip(parts, ends, strict=False)]
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate(answers),
            max(part.limit for part in parts),
        )

    def take(self, which: Seq[int]) -> Records:
        """The records of these numbers, in that order."""
        numbers = np.asarray(which, dtype=np.int64)
        first, end = self.starts[numbers], self.starts[numbers + 1]
        starts = np.concatenate(([0], (end - first).cumsum()))
        spans = [self.tokens[a:b] for a, b in zip(first, end, strict=True)]
        tokens = np.concatenate(spans) if spans else self.tokens[:0]
        return Records(tokens, starts, starts[:-1] + self.answers[numbers] - first, self.limit)

    def span(self, first: int, end: int) -> Records:
        """The records from one to before another, without a copy."""
        a, b = int(self.starts[first]), int(self.starts[end])
        starts = self.starts[first : end + 1] - a
        return Records(self.tokens[a:b], starts, self.answers[first:end] - a, self.limit)

    def prompt(self, i: int) -> list[int]:
        return [int(t) for t in self.tokens[self.starts[i] : self.answers[i]]]

    def answer(self, i: int) -> list[int]:
        return [int(t) for t in self.tokens[self.answers[i] : self.starts[i + 1]]]

    def without_loops(self, distinct: float) -> Records:
        """The records with at least this share of distinct 4-grams in the answer."""
        return self.take([i for i in range(len(self)) if distinct_4(self.answer(i)) >= distinct])

    def counts(self, vocab_size: int) -> Tensor:
        """[V] how often each token occurs in an answer."""
        answers = [self.tokens[a:b] for a, b in zip(self.answers, self.starts[1:], strict=True)]
        return torch.from_numpy(np.bincount(np.concatenate(answers), minlength=vocab_size))

    def apart(self, held_out: Records) -> Records:
        """The records whose prompts are not among the held-out ones."""
        known = {held_out._key(i) for i in range(len(held_out))} - {b""}
        return self.take([i for i in range(len(self)) if self._key(i) not in known])

    def _key(self, i: int) -> bytes:
        """What tells a prompt from others."""
        return self.tokens[self.starts[i] : self.answers[i]].astype(np.int64).tobytes()

    def split(self, count: int) -> tuple[Records, Records]:
        """The records to learn from, and `count` held-out ones, spread evenly."""
        count = min(count, len(self) // 2)
        chosen = {i * len(self) // count for i in range(count)} if count else set()
        return (
            self.take([i for i in range(len(self)) if i not in chosen]),
            self.take(sorted(chosen)),
        )
