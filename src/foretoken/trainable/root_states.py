"""Keeps, while serving, the target's state that each sequence's root was sampled from.

Legend: D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence


@dataclass
class _Kept:
    """The states that the first root after the prompt and the present root were read from, and how
    many tokens have been read in prefill."""

    prompt: Tensor
    last: Tensor
    read: int = 0


class RootStates(Protocol):
    """Keeps for each sequence the state [D] that heads read when they draft after its root. last:
    as in `Wants`."""

    last: int | None

    def begin(self, sequence: Sequence) -> None: ...

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Take the states of a step or of a chunk of the prompt."""
        ...

    def fork(self, sequence: Sequence, copy: Sequence) -> None: ...

    def available(self, sequences: Seq[Sequence]) -> tuple[list[int], Tensor | None]:
        """The rows that have a state, and these states [rows, D]."""
        ...

    def end(self, sequence: Sequence) -> None: ...


class LastStates:
    """The target's normed last state [D] that each sequence's root was read from."""

    last: int | None = 1

    def begin(self, sequence: Sequence) -> None:
        pass

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Keep the last state of a step or of a chunk of the prompt."""
        if not steps:
            return
        states = steps[0].scores.hidden[-1]
        places = torch.tensor([(step.row, last_slot(step)) for step in steps], device=states.device)
        picked = states[places[:, 0], places[:, 1]]  # a copy, so that the pass can be freed
        for sequence, step, state in zip(sequences, steps, picked.unbind(0), strict=True):
            if step.read:
                self._read(sequence, step, states[step.row], state)
            elif self in sequence.state:
                sequence.state[self].last = state
            else:  # a prompt of one token, which was never prefilled
                sequence.state[self] = _Kept(state[:0], state)

    def _read(self, sequence: Sequence, step: Step, states: Tensor, last: Tensor) -> None:
        """Keep the last state of a chunk, and the prompt's where the chunk [S, D] has it."""
        kept = sequence.state.setdefault(self, _Kept(last[:0], last))
        slot = prompt_slot(sequence, step, kept.read)
        if slot is not None:
            kept.prompt = states[slot].clone()
        kept.last, kept.read = last, kept.read + step.read - step.source

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """The copy starts after the prompt, however far the other is."""
        kept = sequence.state.get(self)
        if kept is not None and len(kept.prompt):
            copy.state[self] = _Kept(kept.prompt, kept.prompt)

    def available(self, sequences: Seq[Sequence]) -> tuple[list[int], Tensor | None]:
        """The rows that have a state, and these states [rows, D]."""
        rows = [row for row, sequence in enumerate(sequences) if self in sequence.state]
        states = [sequences[row].state[self].last for row in rows]
        return rows, torch.stack(states) if states else None

    def end(self, sequence: Sequence) -> None:
        pass


def drafting(
    states: RootStates, sequences: Seq[Sequence], budgets: Seq[int]
) -> tuple[list[int], Tensor | None]:
    """The rows that may draft and have a state, and these states [rows, D]."""
    asked = [row for row, budget in enumerate(budgets) if budget > 0]
    rows, found = states.available([sequences[row] for row in asked])
    return [asked[row] for row in rows], found


def last_slot(step: Step) -> int:
    """The slot after which the last token was sampled; in prefill the last one read."""
    return step.read - 1 if step.read else step.path[-1] if step.path else 0


def prompt_slot(sequence: Sequence, step: Step, before: int) -> int | None:
    """The slot, in a chunk that is read, after which the first token after the prompt is sampled;
    None where the chunk doesn't have it. before: tokens that earlier chunks had. A text that starts
    again is read from its beginning, and its output as a prompt's end; any other has no output yet,
    and may have been read in part for another text."""
    if not sequence.output:
        slot = step.read - 1
    else:
        slot = step.source + sequence.prompt_length - 2 - before
    return slot if step.source <= slot < step.read else None


def kept_slots(step: Step) -> list[int]:
    """The slots of the text's tokens that a step, or a chunk of the prompt, put into the cache."""
    return list(range(step.source, step.read)) if step.read else [0, *step.path]
