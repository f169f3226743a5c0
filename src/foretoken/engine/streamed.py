"""A stream's outputs: the text so far, without what might turn into a stop string."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stopping import TextTracker
from foretoken.errors import caught, described
from foretoken.sampling.params import SamplingParams


class Streamed:
    """One request's outputs as a stream shows them, each read once, in their order."""

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        self._samples = [_Text(tokenizer, params) for _ in range(params.n)]

    def read(self, output: RequestOutput) -> RequestOutput:
        """The output with its texts written in. What the tokenizer raises ends it by an error."""
        if output.error is not None:  # of a refused request, however many samples it wanted
            return output
        try:
            for text, sample in zip(self._samples, output.outputs, strict=True):
                sample.text = text.of(sample, output.before)
        except caught() as error:
            told = described("The tokenizer", error)
            ended = [replace(o, finish_reason=o.finish_reason or "error") for o in output.outputs]
            return replace(output, outputs=ended, error=str(told), cause=told.__cause__)
        return output


class _Text:
    """One sample's text so far."""

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        self._withheld = max(map(len, params.stops), default=1) - 1
        self._tokenizer, self._skip = tokenizer, params.skip_special_tokens
        self._tracker: TextTracker | None = None
        self._read = 0

    def of(self, output: CompletionOutput, before: Seq[int]) -> str:
        """before: the last tokens of what the text goes on from."""
        if self._tokenizer is None or output.finish_reason:
            return output.text
        if self._tracker is None:
            self._tracker = TextTracker(self._tokenizer, self._skip, before)
        self._tracker.extend(output.token_ids[self._read :])
        self._read = len(output.token_ids)
        text = self._tracker.text
        return text[: max(0, len(text) - self._withheld)]
