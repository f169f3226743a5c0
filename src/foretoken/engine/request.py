"""A request and its samples, from arrival to the last token."""

from __future__ import annotations

from itertools import count
from time import perf_counter
from typing import Any

from foretoken.engine.outputs import CompletionOutput, Logprob, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.engine.stopping import Criterion, Ending, StopChecker
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence

_ids = count()


class Request:
    """One prompt with its parameters, and n samples."""

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        text: str | None,
        seed: int,
        limit: int,
        eos_ids: frozenset[int],
        tokenizer: Any,
        criterion: Criterion | None = None,
    ) -> None:
        self.id = next(_ids)
        self.prompt, self.params, self.text = prompt, params, text
        self.tokenizer = tokenizer
        self.stats = RequestStats(arrived=perf_counter())
        self.error: str | None = None
        ends = frozenset() if params.ignore_eos else eos_ids
        self.samples = [
            Sample(
                self,
                index,
                Sequence.start(
                    prompt,
                    params,
                    seed=seed,
                    sample=index,
                    end_ids=ends | frozenset(params.stop_token_ids),
                ),
                StopChecker(params, eos_ids, limit, tokenizer, criterion),
                limit,
            )
            for index in range(params.n)
        ]

    @property
    def finished(self) -> bool:
        return all(sample.output.finish_reason for sample in self.samples)

    def note_time(self) -> None:
        """Remember when the first token came, and the last."""
        now = perf_counter() - self.stats.arrived
        if self.stats.time_to_first_token is None:
            self.stats.time_to_first_token = now
        self.stats.total_time = now

    def snapshot(self) -> RequestOutput:
        """The request as it stands; the output objects are shared and keep growing."""
        outputs = [sample.output for sample in self.samples]
        return RequestOutput(self.id, self.text, self.prompt, outputs, self.stats, self.error)


class Sample:
    """One of a request's samples: its sequence, its stopping rules, its output so far."""

    __slots__ = ("_limit", "output", "request", "sequence", "stop")

    def __init__(
        self, request: Request, index: int, sequence: Sequence, stop: StopChecker, limit: int
    ) -> None:
        self.request, self.sequence, self.stop = request, sequence, stop
        self.output = CompletionOutput(index)
        if request.params.logprobs is not None:
            self.output.logprobs, self.output.cumulative_logprob = [], 0.0
        self._limit = limit

    @property
    def left(self) -> int:
        """Tokens that may still be written."""
        return self._limit - len(self.output.token_ids)

    def emit(self, block: list[int], accepted: int) -> None:
        """Write a block, of which the first `accepted` tokens had been drafted."""
        self.output.token_ids.extend(block)
        self.output.accepted.extend([True] * accepted + [False] * (len(block) - accepted))
        if self.stop.tracker is not None:
            self.output.text = self.stop.tracker.text

    def add_logprob(self, entry: dict[int, Logprob], logprob: float) -> None:
        assert self.output.logprobs is not None and self.output.cumulative_logprob is not None
        self.output.logprobs.append(entry)
        self.output.cumulative_logprob += logprob

    def finish(self, ending: Ending) -> None:
        self.output.finish_reason = ending.finish_reason
        self.output.stop_reason = ending.stop_reason
        if ending.text is not None:
            self.output.text = ending.text
        elif self.request.tokenizer is not None:
            self.output.text = self.decode()

    def fail(self, reason: str) -> None:
        self.output.finish_reason = "error"
        self.request.error = reason
        if self.request.tokenizer is not None:
            self.output.text = self.decode()

    def decode(self) -> str:
        """The text of all tokens so far."""
        text: str = self.request.tokenizer.decode(
            self.output.token_ids,
            skip_special_tokens=self.request.params.skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text
