"""Logits processors with a state, made for one sequence and copied where its drafts branch.

Plain decoding would call such a processor once for each token, in order. Here the one that a place
needs is a copy of the one that was called at the place before it, so each path of a tree has had
the calls that plain decoding would have made, whatever was drafted and rejected before. Where
nobody has been (a sequence that started again), the calls are made up for, with scores of zeros.

A function that remembers by what it closes over can't be copied. One path goes on with it, and for
the others the factory makes new ones.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, described
from foretoken.sampling.params import LogitsProcessor
from foretoken.sampling.sequence import Sequence

Text = tuple[int, ...]
"""Output tokens, with those of a draft path."""

_REMEDY = "give its class __deepcopy__, or keep outside of it what can't be copied"


class Branching:
    """One processor of one sequence, itself a `LogitsProcessor`."""

    def __init__(self, sequence: Sequence, number: int) -> None:
        self._make = sequence.params.logits_processor_factories[number]
        self._prompt_length = sequence.prompt_length
        self._called: dict[Text, LogitsProcessor] = {}  # as it is after its call there

    def forget(self, output: Text) -> None:
        """Drop what belongs to shorter texts, and to drafts that were rejected."""
        size = len(output)
        kept = [t for t in self._called if len(t) >= size - 1 and t[:size] == output[: len(t)]]
        self._called = {text: self._called[text] for text in kept}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = tuple(input_ids[0, self._prompt_length :].tolist())
        self._called[text] = process = self._before(text, input_ids, scores)
        return process(input_ids, scores)

    def _before(self, text: Text, input_ids: Tensor, scores: Tensor) -> LogitsProcessor:
        """The processor as it is before its call at this text."""
        known = next((n for n in range(len(text) - 1, -1, -1) if text[:n] in self._called), -1)
        process = self._make() if known < 0 else self._after(text[:known])
        for length in range(known + 1, len(text)):
            process(input_ids[:, : self._prompt_length + length], torch.zeros_like(scores))
        return process

    def _after(self, text: Text) -> LogitsProcessor:
        """The processor that was called at this text, to go on from there, as others may too."""
        process = self._called[text]
        try:
            copied = deepcopy(process)
        except Exception as error:
            told = described("copy.deepcopy of a logits processor", error)
            raise ForetokenError(f"{told}; {_REMEDY}.") from error
        if copied is process:  # as of every function: what it remembers moves on with it
            del self._called[text]
        return copied


def stateful(sequence: Sequence) -> list[LogitsProcessor]:
    """The processors that a sequence's factories make, for a pass over it."""
    count = len(sequence.params.logits_processor_factories)
    sequence.processors = sequence.processors or [Branching(sequence, n) for n in range(count)]
    output = tuple(sequence.output) if count else ()
    for processor in sequence.processors:
        processor.forget(output)
    return sequence.processors
