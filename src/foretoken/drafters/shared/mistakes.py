"""Where a drafter was wrong while it served, and what the target said there, within a bound.

A place is wrong where a draft offered a token and the target wrote another one. The target's
distribution is kept as its state there, from which its head makes all of it: D numbers instead of
V.

Legend: B texts, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.protocols import Step
from foretoken.trainable.lesson import Lesson


class Example(NamedTuple):
    """A stretch of one text. tokens: T ids. first: the place of the first of them in the text.
    written: index of the first one after the prompt that has one before it here. wrong: indices
    into the tokens. hidden: layer -> [S, D] at the first S of them, T - 1 at least."""

    tokens: Seq[int]
    first: int
    written: int
    wrong: Seq[int]
    hidden: Mapping[int, Tensor]

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        states = sum(each.numel() * each.element_size() for each in self.hidden.values())
        return states + 8 * (len(self.tokens) + len(self.wrong))


@dataclass
class Followed:
    """One sequence as it is written. window: how many of its last tokens are kept in mind."""

    window: int
    wrong: list[int] = field(default_factory=list)
    read: int = 0  # tokens whose states have been seen
    _held: int = 0  # those of them whose states are still here
    _parts: deque[dict[int, Tensor]] = field(default_factory=deque)

    def add(self, step: Step) -> None:
        """The states of a step, or of a chunk of the prompt; and where its draft went wrong."""
        count = step.read or len(step.path) + 1
        slots: slice | list[int] = slice(count)
        if not step.read:
            if not step.tree.is_chain:
                slots = [0, *step.path]
            _, depth = step.tree.offered[step.row]
            if len(step.path) < depth and not step.failed:
                self.wrong.append(self.read + count)
        hidden = step.scores.hidden.items()
        self._parts.append({layer: states[step.row, slots].clone() for layer, states in hidden})
        self._held, self.read = self._held + count, self.read + count
        while self._held - (first := _count(self._parts[0])) >= self.window:
            self._parts.popleft()
            self._held -= first

    def copy(self, tokens: int) -> Followed:
        """Another text with the same first `tokens`, of which no more than that is known."""
        first = self.read - self._held
        if first >= tokens:
            return Followed(self.window, read=tokens)
        held = {layer: states[: tokens - first] for layer, states in self._joined().items()}
        return Followed(self.window, [], tokens, tokens - first, deque([held]))

    def example(self, tokens: Seq[int], prompt: int) -> Example | None:
        """Of the text's tokens, the first `prompt` of them given, those up to the last wrong one;
        None where all was right."""
        first = self.read - self._held
        wrong = [place - first for place in self.wrong if first < place < len(tokens)]
        if not wrong:
            return None
        end = wrong[-1] + 1
        hidden = {layer: states[: end - 1] for layer, states in self._joined().items()}
        written = max(1, prompt - first)  # nothing here predicts the first one
        return Example(list(tokens[first : first + end]), first, written, wrong, hidden)

    def _joined(self) -> dict[int, Tensor]:
        layers = self._parts[0]
        return {layer: torch.cat([part[layer] for part in self._parts]) for layer in layers}


def _count(part: Mapping[int, Tensor]) -> int:
    return len(next(iter(part.values())))


class Buffer:
    """Examples of at most so many bytes; where there are more, the oldest go."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._examples: deque[Example] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._examples)

    def add(self, example: Example) -> None:
        self._examples.append(example)
        self.bytes += example.bytes
        while self.bytes > self._most:
            self.bytes -= self._examples.popleft().bytes

    def take(self) -> list[Example]:
        """All of them; the buffer is empty afterwards."""
        taken = list(self._examples)
        self.clear()
        return taken

    def clear(self) -> None:
        self._examples.clear()
        self.bytes = 0


Head = Callable[[Tensor], Tensor]


def lesson(
    examples: Seq[Example], head: Head, embed: Head, dtype: torch.dtype, known: float
) -> Lesson:
    """The examples as a batch, one a row, in which a written token that was right counts `known`
    and one that was wrong 1."""
    device = next(iter(examples[0].hidden.values())).device
    shape = (len(examples), max(len(example.tokens) for example in examples))
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    records, room = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
    positions, weight = torch.zeros_like(tokens), torch.zeros(shape, device=device)
    hidden = {
        layer: torch.zeros(*shape, states.shape[-1], dtype=dtype, device=device)
        for layer, states in examples[0].hidden.items()
    }
    for row, example in enumerate(examples):
        size = len(example.tokens)
        tokens[row, :size] = torch.tensor(example.tokens)
        positions[row, :size] = torch.arange(example.first, example.first + size)
        records[row, :size] = 0
        weight[row, example.written : size] = known
        weight[row, example.wrong] = 1.0
        for layer, states in example.hidden.items():
            hidden[layer][row, : len(states)] = states
    return Lesson(tokens, positions, records, weight, room, hidden, head, embed, _no_more, _no_more)


def _no_more(*given: object) -> Any:
    raise ForetokenError(
        "This drafter learns by passes of the target, which serving has no time for; train it by "
        "'foretoken train'."
    )
