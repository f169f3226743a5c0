"""Collects the places where a drafter was wrong while it served, with the target's states there.

A place is wrong where a draft offered a token and the target wrote another one. The target's
distribution is stored as the hidden state from which its head computes it: D numbers instead of V.
A buffer bounds the memory.

Legend: B texts, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.errors import ForetokenError
from foretoken.models.load import read_config
from foretoken.protocols import Step
from foretoken.trainable.checkpoint import weight_of
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.root_states import kept_slots


class Example(NamedTuple):
    """A part of one text with its mistakes. tokens: T ids. first: position of the first of them in
    the text. written: index of the first one to learn from, which is not the prompt's and has a
    state before it. wrong: indices of the mistakes. hidden: layer -> [S, D] states at the first S
    tokens, S >= T - 1."""

    tokens: Seq[int]
    first: int
    written: int
    wrong: Seq[int]
    hidden: Mapping[int, Tensor]

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        states = sum(state.numel() * state.element_size() for state in self.hidden.values())
        return states + 8 * (len(self.tokens) + len(self.wrong))


def refused(step: Step) -> bool:
    """Whether the draft offered a token after the accepted path, where the target wrote another.
    After a leaf nothing was offered, however deep other branches are."""
    tree, row = step.tree, step.row
    shorter = len(step.path) < tree.offered[row][1]
    if not shorter or tree.is_chain:
        return shorter
    end = step.path[-1] if step.path else 0
    return bool((tree.valid[row] & (tree.parent_slots[row] == end)).any())


@dataclass
class Recording:
    """Records the states and mistakes of a sequence's last `window` tokens while it is decoded."""

    window: int
    wrong: list[int] = field(default_factory=list)  # positions in the text
    read: int = 0  # tokens whose states have been seen
    _stored: int = 0  # tokens whose states are stored: the last ones read
    _chunks: deque[dict[int, Tensor]] = field(default_factory=deque)

    def add(self, step: Step) -> None:
        """Record the states of a step or of a chunk of the prompt, and the step's mistake."""
        slots, hidden = kept_slots(step), step.scores.hidden.items()
        count, kept = len(slots), slots[-self.window :]  # a prompt's chunk may be long
        own = step.drafted and step.error is None  # not another part's draft, or a prediction's
        if own and refused(step):
            self.wrong.append(self.read + count)
        self._chunks.append({layer: states[step.row, kept] for layer, states in hidden})
        self._stored, self.read = self._stored + len(kept), self.read + count
        while self._stored - (first := _count(self._chunks[0])) >= self.window:
            self._chunks.popleft()
            self._stored -= first

    def copy(self, tokens: int) -> Recording:
        """A recording for a text that has only the first `tokens` in common with this one."""
        first = self.read - self._stored
        if first >= tokens:
            return Recording(self.window, read=tokens)
        states = {layer: rows[: tokens - first] for layer, rows in self._joined().items()}
        return Recording(self.window, [], tokens, tokens - first, deque([states]))

    def example(self, tokens: Seq[int], prompt: int) -> Example | None:
        """What is recorded up to the last mistake, or None where there was none. tokens: the text,
        of which `prompt` are the prompt's."""
        first = self.read - self._stored
        wrong = [place - first for place in self.wrong if first < place < len(tokens)]
        if not wrong:
            return None
        end = wrong[-1] + 1
        hidden = {layer: states[: end - 1] for layer, states in self._joined().items()}
        written = max(1, prompt - first)  # no state here predicts the first token
        return Example(list(tokens[first : first + end]), first, written, wrong, hidden)

    def _joined(self) -> dict[int, Tensor]:
        layers = self._chunks[0]
        return {layer: torch.cat([chunk[layer] for chunk in self._chunks]) for layer in layers}


def _count(chunk: Mapping[int, Tensor]) -> int:
    return len(next(iter(chunk.values())))


class Buffer:
    """Examples of at most `max_bytes`; the oldest are dropped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._examples: deque[Example] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._examples)

    def add(self, example: Example) -> None:
        self._examples.append(example)
        self.bytes += example.bytes
        while self.bytes > self._max_bytes:
            self.bytes -= self._examples.popleft().bytes

    def take(self) -> list[Example]:
        """All of them; the buffer is empty afterwards."""
        examples = list(self._examples)
        self.clear()
        return examples

    def clear(self) -> None:
        self._examples.clear()
        self.bytes = 0


Head = Callable[[Tensor], Tensor]
"""States [..., D] -> logits [..., V], or ids [...] -> embeddings [..., D]."""


def head_of(access: Access, dtype: torch.dtype) -> Head:
    """The target's head as a product with its matrix, through which gradients pass: a backend's own
    product may have none."""
    like = torch.empty(0, dtype=access.dtype, device=access.device)
    matrix, cap = weight_of(access, access.width, like).to(dtype), _logit_cap(access)
    if cap is None:
        return lambda states: states @ matrix.T
    matrix = (matrix / cap).atanh() * cap  # the head had capped it
    return lambda states: (states @ matrix.T / cap).tanh() * cap


def _logit_cap(access: Access) -> float | None:
    """The target's soft cap c, if it has one: its logits l are c · tanh(l / c)."""
    source = access.source
    if source is None:
        return None
    from_file = isinstance(source, (str, Path))
    config = read_config(Path(source), access.trust_remote_code) if from_file else source.config
    cap: float | None = config.get_text_config().to_dict().get("final_logit_softcapping")
    return cap


def batches(examples: Seq[Example], most: int) -> Iterator[list[Example]]:
    """The examples in groups of at most `most` tokens with their padding, but at least one each;
    those of like length together, so that there is little padding."""
    group: list[Example] = []
    for example in sorted(examples, key=lambda example: len(example.tokens)):
        if group and (len(group) + 1) * len(example.tokens) > most:
            yield group
            group = []
        group.append(example)
    if group:
        yield group


def lesson(
    examples: Seq[Example], head: Head, embed: Head, dtype: torch.dtype, right_weight: float
) -> Lesson:
    """The examples as a batch to learn from, one a row; wrong tokens weigh 1, the other written
    ones `right_weight`."""
    device = next(iter(examples[0].hidden.values())).device
    shape = (len(examples), max(len(example.tokens) for example in examples))
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    records, max_nodes = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
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
        weight[row, example.written : size] = right_weight
        weight[row, example.wrong] = 1.0
        for layer, states in example.hidden.items():
            hidden[layer][row, : len(states)] = states
    return Lesson(
        tokens,
        positions,
        records,
        weight,
        max_nodes,
        hidden,
        head,
        embed,
        _not_while_serving,
        _not_while_serving,
    )


def _not_while_serving(*args: object) -> Any:
    raise ForetokenError(
        "This drafter learns from passes of the target, for which there is no time while it "
        "serves; train it by 'foretoken train'."
    )
