"""Logits processors with a state, made for one sequence and copied where its drafts branch.

Plain decoding would call such a processor once for each token, in order. Here the one that a place
needs is a copy of the one that was called at the place before it, so each path of a tree has had
the calls that plain decoding would have made, whatever was drafted and rejected before. Where
nobody has been (a sequence that started again), the calls are made up for, with scores of zeros.

An object is copied with the functions that it holds, in attributes, lists or partials, and with
what these close over. A function that is given by itself isn't, as what it closes over may be
anything, a tokenizer too: where it remembers by that, or in its default arguments, one path goes
on with it, and for the others the factory makes new ones. A function with neither serves all paths:
it has nothing to remember in but global names, which no copy would part.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor

from foretoken.deep_copy import deep_copy
from foretoken.errors import ForetokenError, described
from foretoken.sampling.params import LogitsProcessor
from foretoken.sampling.sequence import Sequence

Text = tuple[int, ...]
"""Output tokens, with those of a draft path."""

_REMEDY = "give its class __deepcopy__, or keep outside of it what can't be copied"


class Branching:
    """One processor of one sequence, itself a `LogitsProcessor`.

    A copy, for a copy of the sequence, shares what is held: a function that one of them goes on
    with is gone for the other, too.
    """

    def __init__(self, make: Callable[[], LogitsProcessor], prompt_length: int) -> None:
        self._make = make
        self._prompt_length = prompt_length
        # As it is after its call there, held in a list that is empty once it has moved on.
        self._called: dict[Text, list[LogitsProcessor]] = {}

    def forget(self, output: Text) -> None:
        """Drop what belongs to shorter texts, and to drafts that were rejected."""
        size = len(output)
        kept = [t for t in self._called if len(t) >= size - 1 and t[:size] == output[: len(t)]]
        self._called = {text: self._called[text] for text in kept}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = tuple(input_ids[0, self._prompt_length :].tolist())
        self._called[text] = held = [self._before(text, input_ids, scores)]
        return held[0](input_ids, scores)

    def _before(self, text: Text, input_ids: Tensor, scores: Tensor) -> LogitsProcessor:
        """The processor as it is before its call at this text."""
        known = next((n for n in range(len(text) - 1, -1, -1) if self._called.get(text[:n])), -1)
        process = self._make() if known < 0 else _going_on(self._called[text[:known]])
        for length in range(known + 1, len(text)):
            process(input_ids[:, : self._prompt_length + length], torch.zeros_like(scores))
        return process


def _going_on(held: list[LogitsProcessor]) -> LogitsProcessor:
    """A processor that was called at a text, to go on from there, as others may too."""
    match held[0]:
        case FunctionType(__closure__=None, __defaults__=None, __kwdefaults__=None) as bare:
            return bare  # it has no state of its own
    try:
        copied = held[0] if isinstance(held[0], FunctionType) else deep_copy(held[0])
    except Exception as error:
        told = described("Copying a logits processor", error)
        raise ForetokenError(f"{told}; {_REMEDY}.") from error
    if copied is held[0]:  # as every function: what it remembers moves on with it
        held.clear()
    return copied


def stateful(sequence: Sequence) -> list[LogitsProcessor]:
    """The processors that a sequence's factories make, for a pass over it."""
    factories, start = sequence.params.logits_processor_factories, sequence.prompt_length
    sequence.processors = sequence.processors or [Branching(make, start) for make in factories]
    for processor in sequence.processors:
        processor.forget(tuple(sequence.output))
    return sequence.processors
