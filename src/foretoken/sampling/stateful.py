"""Logits processors with a state, made for one sequence and copied where its drafts branch.

Plain decoding would call such a processor once for each token, in order. Here the one that a place
needs is a copy of the one that was called at the place before it, so each path of a tree has had
the calls that plain decoding would have made, whatever was drafted and rejected before. Where
nobody has been (a sequence that started again), the calls are made up for, with scores of zeros.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from foretoken.sampling.params import LogitsProcessor
from foretoken.sampling.sequence import Sequence

Text = tuple[int, ...]
"""Output tokens, with those of a draft path."""


class Branching:
    """One processor of one sequence, itself a `LogitsProcessor`."""

    def __init__(self, sequence: Sequence, number: int) -> None:
        self._make = sequence.params.logits_processor_factories[number]
        self._prompt_length = sequence.prompt_length
        self._called: dict[Text, LogitsProcessor] = {}  # as it is after its call there

    def forget(self, output: Text) -> None:
        """Drop what belongs to shorter texts, and to drafts that were rejected."""
        size = len(output)
        self._called = {
            text: process
            for text, process in self._called.items()
            if len(text) >= size - 1 and text[:size] == output[: len(text)]
        }

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = tuple(input_ids[0, self._prompt_length :].tolist())
        process = self._before(text, input_ids, scores)
        given = process(input_ids, scores)
        self._called[text] = process
        return given

    def _before(self, text: Text, input_ids: Tensor, scores: Tensor) -> LogitsProcessor:
        """The processor as it is before its call at this text."""
        known = next((n for n in range(len(text) - 1, -1, -1) if text[:n] in self._called), None)
        process = self._make() if known is None else deepcopy(self._called[text[:known]])
        for length in range(0 if known is None else known + 1, len(text)):
            end = self._prompt_length + length
            process(input_ids[:, :end], torch.zeros_like(scores))
        return process


def stateful(sequence: Sequence) -> list[LogitsProcessor]:
    """The processors that a sequence's factories make, for a pass over it."""
    count = len(sequence.params.logits_processor_factories)
    if len(sequence.processors) < count:
        sequence.processors = [Branching(sequence, number) for number in range(count)]
    output = tuple(sequence.output) if count else ()
    for processor in sequence.processors:
        processor.forget(output)
    return sequence.processors
