"""A request and its samples, from arrival to the last token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

from foretoken.engine.drafts import drafted
from foretoken.engine.grammars import Requested
from foretoken.engine.logprobs import TokenTexts, entries
from foretoken.engine.outputs import CompletionOutput, Logprob, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.engine.stopping import LEAD, Criterion, OutputText, StopChecker
from foretoken.errors import Overloaded, caught
from foretoken.protocols import Step
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence

_ids = count()
_MOMENT = 0.01  # seconds, after which an idle engine looks around
_ROWS = 64  # of logits whose log-probabilities are computed at a time


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
        opening: Seq[int] = (),
        grammar: Requested | None = None,
        arrived: float | None = None,
    ) -> None:
        """opening: what the text of an encoder–decoder begins with; its prompt is the source.
        grammar: what its samples wait for. arrived: see `Engine.add`."""
        self.id = next(_ids)
        self.opening = list(opening) or prompt
        self.prompt, self.params, self.text = prompt, params, text
        # Token ids may be a conversation, whose answer is a text of its own.
        self.before: tuple[int, ...] = () if text is None or opening else tuple(prompt[-LEAD:])
        self.tokenizer, self.grammar = tokenizer, grammar
        self.texts = TokenTexts(tokenizer)
        self.stats = RequestStats(arrived=perf_counter() if arrived is None else arrived)
        self.forgotten = RequestStats()  # what the engine had counted of it when it began anew
        self.error: str | None = None
        self.cause: BaseException | None = None  # what a user's own code raised
        self.wrong_grammar = False  # which is the request's own mistake
        self.overloaded = False  # by what others asked for
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        ends = frozenset() if params.ignore_eos else eos_ids
        sequences = [
            Sequence.start(
                self.opening,
                params,
                seed=seed,
                sample=index,
                end_ids=ends | frozenset(params.stop_token_ids),
                late_ids=eos_ids,
                source=prompt if opening else (),
            )
            for index in range(params.n)
        ]
        self.samples = [
            Sample(
                self,
                index,
                sequence,
                StopChecker(
                    params,
                    eos_ids,
                    limit,
                    tokenizer,
                    _ends(sequence, criterion),
                    self.before,
                ),
                limit,
            )
            for index, sequence in enumerate(sequences)
        ]

    @property
    def finished(self) -> bool:
        return all(sample.output.finish_reason for sample in self.samples)

    def note_prompt(self, read: int, done: Step) -> None:
        """Keep the log-probabilities of prompt tokens that a step of prefill predicted. read: how
        many tokens of a sample's text have been read by now. What is known stays: a sample that
        starts again reads the prompt once more."""
        known, wanted = self.prompt_logprobs, self.params.prompt_logprobs
        if known is None or wanted is None:
            return
        first = read - done.read + 1  # the place after the first token of this step
        logits, end = done.scores.logits[done.row], min(read + 1, len(self.prompt))
        for start in range(max(first, len(known)), end, _ROWS):
            tokens = self.prompt[start : min(start + _ROWS, end)]
            rows = logits[start - first :][: len(tokens)]
            known += [entry for entry, _ in entries(rows, tokens, wanted, self.texts)]

    def note_start(self) -> None:
        """Remember when the first sample left the queue."""
        if self.stats.queue_time is None:
            self.stats.queue_time = perf_counter() - self.stats.arrived

    def counted(self) -> RequestStats:
        """What the engine's totals have of it."""
        counted = self.stats.copy()
        counted.remove(self.forgotten)
        return counted

    def note_time(self) -> None:
        """Remember when the first token came, and the last."""
        now = perf_counter() - self.stats.arrived
        if self.stats.time_to_first_token is None:
            self.stats.time_to_first_token = now
        self.stats.total_time = now

    def snapshot(self) -> RequestOutput:
        """The request as it stands; the output objects are shared and keep growing."""
        outputs = [sample.output for sample in self.samples]
        return RequestOutput(
            self.id,
            self.text,
            self.prompt,
            outputs,
            self.stats,
            self.error,
            self.cause,
            self.prompt_logprobs,
            self.before,
            self.wrong_grammar,
            self.overloaded,
        )


def admissible(waiting: Iterable[Sample], *, idle: bool) -> Iterator[Sample]:
    """Those that wait for no grammar any more, in their order. Where nothing runs (`idle`), the
    first one's grammar is waited for a moment."""
    for sample in list(waiting):
        grammar = sample.request.grammar
        if idle and grammar is not None:
            grammar.pending.wait(_MOMENT)
        idle = False
        if not sample.ended and (grammar is None or grammar.pending.settled):
            yield sample


def _ends(sequence: Sequence, criterion: Criterion | None) -> Criterion | None:
    """The user's criterion, or that the text is whole by its grammar and can't go on."""
    if sequence.params.structured_outputs is None:
        return criterion

    def ended(output: Seq[int]) -> bool:
        met = criterion is not None and criterion(output)
        constraint = sequence.constraint
        return met or (constraint is not None and constraint.finished(list(output)))

    return ended


@dataclass(slots=True)
class Written:
    """The tokens of a block that count, why the sample ends with them (None if it doesn't), and
    the whole text where it is known."""

    tokens: list[int]
    finish_reason: str | None
    stop_reason: str | int | None
    text: str | None


def longest(prompt: Seq[int], opening: Seq[int], limit: int) -> int:
    """Tokens that a text of at most `limit` new ones may have in the end, or its source has."""
    return max(len(prompt), len(opening) + limit)


class Sample:
    """One of a request's samples: its sequence, its stopping rules, its output so far."""

    __slots__ = ("_limit", "_text", "output", "request", "sequence", "stop")

    def __init__(
        self, request: Request, index: int, sequence: Sequence, stop: StopChecker, limit: int
    ) -> None:
        self.request, self.sequence, self.stop = request, sequence, stop
        self.output = CompletionOutput(index)
        if request.params.logprobs is not None:
            self.output.logprobs, self.output.cumulative_logprob = [], 0.0
        if request.params.return_drafts:
            self.output.drafts = []
        self._limit = limit
        skip = request.params.skip_special_tokens
        self._text = OutputText(request.tokenizer, skip, request.before)

    @property
    def longest(self) -> int:
        """Tokens that the sequence may have in the end, or its source has."""
        return longest(self.request.prompt, self.request.opening, self._limit)

    @property
    def left(self) -> int:
        """Tokens that may still be written."""
        return self._limit - len(self.output.token_ids)

    def budget(self, nodes: int) -> int:
        """Tokens that a step may draft, where the target takes trees of so many nodes."""
        most = self.request.params.max_draft_tokens
        return min(self.left - 1, nodes if most is None else min(nodes, most))

    @property
    def ended(self) -> bool:
        return self.output.finish_reason is not None

    def constrain(self) -> None:
        """Give the sequence its compiled grammar, if it has one. Raises `ForetokenError` where the
        grammar couldn't be compiled."""
        grammar = self.request.grammar
        if grammar is None:
            return
        try:
            self.sequence.params = grammar.applied(self.request.params)
        except Overloaded:
            self.request.overloaded = True
            raise
        except BaseException:
            self.request.wrong_grammar = True
            raise

    def restore(self) -> None:
        """Give the sequence its tokens back, after a pass that failed: prompt and output."""
        self.sequence.tokens[:] = [*self.request.opening, *self.output.token_ids]

    def close(self) -> None:
        """Cut the sequence to what was written; of one that failed, nothing is learned or kept."""
        if self.output.finish_reason == "error":
            self.sequence.spoil()
        else:
            self.sequence.cut(len(self.output.token_ids))

    def check(self, block: list[int]) -> Written:
        """What of a block of new tokens counts. Calls the user's criterion and the tokenizer; what
        they raise comes through, and nothing has been written then."""
        ending = self.stop.check(block)
        tokens, text = block[: ending.emitted], ending.text
        if ending.finish_reason is None:
            self._text.read(self.output.token_ids)
            text = None if self.stop.tracker is None else self.stop.tracker.text
        elif text is None:
            shown = tokens[:-1] if ending.without_last else tokens
            text = self._text.whole(self.output.token_ids, shown)
        return Written(tokens, ending.finish_reason, ending.stop_reason, text)

    def emit(
        self, written: Written, accepted: int, logprobs: Seq[tuple[dict[int, Logprob], float]]
    ) -> None:
        """Write a checked block, of which the first `accepted` tokens had been drafted."""
        output, tokens = self.output, written.tokens
        output.token_ids.extend(tokens)
        output.accepted.extend([True] * accepted + [False] * (len(tokens) - accepted))
        for entry, logprob in logprobs:
            assert output.logprobs is not None and output.cumulative_logprob is not None
            output.logprobs.append(entry)
            output.cumulative_logprob += logprob
        if written.text is not None:
            output.text = written.text
        output.finish_reason, output.stop_reason = written.finish_reason, written.stop_reason

    def note_draft(self, done: Step, written: int, accepted: int) -> None:
        """Keep what a step drafted, where that was asked for."""
        if self.output.drafts is not None:
            seconds = perf_counter() - self.request.stats.arrived
            self.output.drafts.append(drafted(done, written, accepted, seconds))

    def abort(self, reason: str) -> None:
        """End for a reason that isn't the text's own. Where the tokenizer can't decode what was
        written, the text stays what it was."""
        self.output.finish_reason = reason
        if self.request.grammar is not None:
            self.request.grammar.pending.leave()
        with suppress(caught()):
            self.output.text = self._text.whole(self.output.token_ids) or self.output.text
