"""Continuous batching: requests join and leave between steps; rows never wait for each other.

One engine step admits what fits, prefills one chunk of the prompts that are not yet read, and
advances every other sequence through `foretoken.step`.

A step is a transaction. What raises while one sample is read or written (a criterion, a tokenizer)
ends that sample's request. What raises in a pass over several samples names nobody: all of them
start again from fresh slots, one by one, and the request whose own pass raises is ended. The others
write what they would have written, or where drafts are drawn a text of the same distribution.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import partial
from random import Random, SystemRandom
from time import perf_counter
from typing import TypeVar

import torch

from foretoken.engine.checks import check_pairing, check_queue, check_request
from foretoken.engine.clock import Clock, TimedDrafter, TimedTarget
from foretoken.engine.costs import price
from foretoken.engine.grammars import Grammars
from foretoken.engine.guard import GuardedDrafter, guarded, insist
from foretoken.engine.logprobs import entries
from foretoken.engine.outputs import Logprob, RequestOutput
from foretoken.engine.predictions import Predicting
from foretoken.engine.prefixes import Prefixes
from foretoken.engine.request import Request, Sample, admissible
from foretoken.engine.stats import EngineStats
from foretoken.engine.stopping import Criterion
from foretoken.errors import ForetokenError, caught, described
from foretoken.protocols import Drafter, Step, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.step import prefill, step

_log = logging.getLogger("foretoken")  # tracebacks of what became a sentence, at level DEBUG

T = TypeVar("T")


class Engine:
    """Serves requests in a continuous batch. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        *,
        eos_ids: frozenset[int] = frozenset(),
        chunk: int = 512,
        max_queued: int | None = None,
        seed: int | None = None,
        prefix_caching: bool = False,
        structured_outputs_backend: str = "auto",
    ) -> None:
        """`chunk`: prompt tokens read in one step, all prompts together. `max_queued`: sequences
        that may wait for a slot, or None for any number. `seed`: of the seeds of requests that have
        none; None takes each from the system. See `Prefixes` and `grammar.compiling`."""
        self._guarded = GuardedDrafter(drafter, target)
        self._drafts = Predicting(self._guarded, target.device)
        self._guarded.call(check_pairing, target, drafter, verifier)
        self.target, self.drafter, self.verifier = target, drafter, verifier
        self._rule = guarded(verifier, target.vocab_size)
        # A tokenizer may know ends that the model can't write, and -1 is some files' word for none.
        self.eos_ids = frozenset(i for i in eos_ids if 0 <= i < target.vocab_size)
        self.tokenizer, self.chunk, self.max_queued = target.tokenizer, chunk, max_queued
        self._grammars = Grammars(target, self.eos_ids, structured_outputs_backend)
        self._name = f"A step of {type(drafter).__name__} and {type(verifier).__name__}"
        self._seeds = SystemRandom() if seed is None else Random(seed)
        self._waiting, self._running = deque[Sample](), list[Sample]()
        self._requests, self._changed = dict[int, Request](), dict[int, Request]()  # in this step
        self._limited: dict[int, Request] = {}  # in time
        self.reset_stats()
        self.prefixes = Prefixes(target, drafter, prefix_caching)
        self._guarded.call(target.bind, drafter)
        self._guarded.call(price, target, drafter, verifier)

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._running)

    def add(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        text: str | None = None,
        criterion: Criterion | None = None,
        arrived: float | None = None,
    ) -> Request:
        """Queue a request. Raises `ForetokenError` for one that can't be served.

        `params` are not checked again, as `encoded` does it. `criterion` ends a sample of it after
        the first token for which it is true. `arrived`: since when it is timed, as `perf_counter`
        tells it; None is now.
        """
        limit = check_request(self.target, self.verifier, prompt, params)
        check_queue(self.target, self._waiting, prompt, limit, params.n, self.max_queued)
        seed = self._seeds.getrandbits(62) if params.seed is None else params.seed
        known = self.eos_ids, self.tokenizer, criterion, self.target.opening
        grammar = self._grammars.requested(prompt, params)
        request = Request(list(prompt), params, text, seed, limit, *known, grammar, arrived)
        self._requests[request.id] = request
        self._limited |= {request.id: request} if params.timeout else {}
        self._waiting.extend(request.samples)
        return request

    def cancel(self, request_id: int) -> RequestOutput | None:
        """End a request now; returns what it wrote, or None where there is no such request."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        self._end(request, "cancelled")
        self._changed.pop(request_id)
        return request.snapshot()

    def cancel_all(self) -> list[RequestOutput]:
        """End all requests now; returns what they wrote."""
        return [output for known in list(self._requests) if (output := self.cancel(known))]

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Advance every request by one step; returns the outputs of those that changed.

        Raises nothing but interrupts, after which `fail_all` makes the engine serve again.
        """
        try:
            self._advance_all()
        except caught() as error:
            return self.fail_all(error)
        changed, self._changed = self._changed, {}
        for request in changed.values():
            if request.finished:
                for known in (self._requests, self._limited):
                    known.pop(request.id, None)
                _log.debug("Request %d ended: %s", request.id, request.stats)
        return [request.snapshot() for request in changed.values()]

    def fail_all(self, error: BaseException) -> list[RequestOutput]:
        """End all requests by an error; returns what they wrote."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            self._fail(request, "The engine", error)
        self._changed = {}
        return [request.snapshot() for request in requests.values()]

    def _advance_all(self) -> None:
        self._end_late(now := perf_counter())
        self._admit()
        ready = self._prefill()
        for sample, done in self._decode(ready):
            self._settle(sample, done)
        self.clock.total += perf_counter() - now
        self._update_times(bool(ready))

    def _end_late(self, now: float) -> None:
        """End the requests whose time is over."""
        for request in list(self._limited.values()):
            if now - request.stats.arrived >= (request.params.timeout or 0):
                self._end(request, "timeout")

    def _admit(self) -> None:
        """Begin what fits, in the order of arrival: what is next in turn waits for its memory, and
        what waits for its grammar lets others pass."""
        for sample in admissible(self._waiting if self.target.free else (), idle=not self._running):
            if not (self.target.free and self.target.budget.fits(sample.longest)):
                break
            self._waiting.remove(sample)
            self._running.append(sample)
            try:
                self.prefixes.offer(sample)
                self._begin(sample)
                self.prefixes.count(sample, self.stats)
            except caught() as error:
                self._fail(sample.request, "Admission", error)

    def _begin(self, sample: Sample) -> None:
        sample.constrain()
        sample.request.note_start()
        self.target.budget.reserve(sample.sequence.id, sample.longest)
        self.target.begin(sample.sequence)
        self._guarded.begin(sample.sequence)
        self.target.budget.make_room()

    def _prefill(self) -> list[Sample]:
        """Read a chunk of each unread prompt; returns the samples that are ready to decode.

        Samples of one request wait for the one that has read most and then copy its prompt.
        """
        late: dict[int, list[Sample]] = {}  # by request
        ready: list[Sample] = []
        for sample in list(self._running):
            if sample.ended:  # with its request, while its siblings were looked at
                continue
            try:
                unread = self._unread(sample)
            except caught() as error:
                self._fail(sample.request, "Copying a prompt", error)
                continue
            if unread:
                late.setdefault(sample.request.id, []).append(sample)
            else:
                ready.append(sample)
        if late:
            began = perf_counter()
            leaders = [min(s, key=lambda x: self.target.pending(x.sequence)) for s in late.values()]
            self._read(leaders, max(1, self.chunk // len(leaders)))
            self.clock.prefill += perf_counter() - began
        return [sample for sample in ready if not sample.ended]

    def _read(self, samples: list[Sample], share: int) -> None:
        """Prefill `share` tokens of each."""
        try:
            self._read_chunk(samples, share)
        except caught() as error:
            for sample in samples:
                sample.restore()
            for _ in self._one_by_one(samples, error, self._start_again):
                pass

    def _read_chunk(self, samples: list[Sample], share: int) -> None:
        sequences = [sample.sequence for sample in samples]
        steps = prefill(self.target, self._guarded, sequences, share)
        for sample, text, done in zip(samples, sequences, steps, strict=True):
            sample.request.note_prompt(len(text.tokens) - 1 - self.target.pending(text), done)

    def _unread(self, sample: Sample) -> bool:
        """Whether the prompt must be read; its cache is copied from a running sample of the same
        request, where one has read it."""
        if not self.target.pending(sample.sequence):
            return False
        for other in sample.request.samples:
            running = not other.ended and self.target.holds(other.sequence)
            if running and other is not sample and not self.target.pending(other.sequence):
                self.target.fork(other.sequence, sample.sequence)
                self._guarded.fork(other.sequence, sample.sequence)
                return False
        return True

    def _decode(self, ready: list[Sample]) -> Iterator[tuple[Sample, Step]]:
        """One step of each."""
        if not ready:
            return
        try:
            steps = self._advance(ready)
        except caught() as error:
            yield from self._one_by_one(ready, error, self._advance_again)
        else:
            yield from zip(ready, steps, strict=True)

    def _advance(self, samples: list[Sample]) -> list[Step]:
        sequences = [sample.sequence for sample in samples]
        budgets = [sample.budget(self.target.nodes) for sample in samples]
        try:
            return step(*self._timed, self._rule, sequences, budgets)
        except BaseException:
            for sample in samples:
                sample.restore()
            raise

    def _advance_again(self, sample: Sample) -> Step:
        self._start_again(sample)
        return self._advance([sample])[0]

    def _one_by_one(
        self, samples: list[Sample], error: BaseException, again: Callable[[Sample], T]
    ) -> Iterator[tuple[Sample, T]]:
        """After an error in a pass over all samples: `again` of each alone. The request for which
        it raises, or the only one that there is, is ended."""
        if len(samples) == 1:
            self._fail(samples[0].request, self._name, error)
            return
        _log.debug("A pass over %d sequences", len(samples), exc_info=error)
        told = described(self._name, error)
        _log.warning("%s; its %d sequences start again, one by one.", told, len(samples))
        for sample in samples:
            fresh = sample.sequence.afresh()
            sample.sequence.spoil()
            self._release(sample)
            sample.sequence = fresh
        for sample in samples:
            if sample.ended:  # with a sibling
                continue
            try:
                done = again(sample)
            except caught() as own:
                self._fail(sample.request, self._name, own)
            else:
                yield sample, done

    def _start_again(self, sample: Sample) -> None:
        """Take fresh slots and read the text so far once more."""
        self._running.append(sample)
        self._begin(sample)
        while self.target.pending(sample.sequence):
            self._read_chunk([sample], self.chunk)

    def _settle(self, sample: Sample, done: Step) -> None:
        """Emit the tokens of one step, up to the first stop."""
        if sample.ended:  # with a sibling
            return
        request = sample.request
        self._changed[request.id] = request
        block = done.tokens if done.error is None else done.tokens[:-1]
        try:
            written = sample.check(block)
            logprobs = self._logprobs(sample, done, written.tokens)
        except caught() as error:
            self._fail(request, "The request's criterion or tokenizer", error)
            return
        accepted = min(len(done.path), len(written.tokens))
        sample.emit(written, accepted, logprobs)
        sample.note_draft(done, len(written.tokens), accepted)
        self._count(request, done, len(written.tokens), accepted)
        if done.error is not None and not sample.ended:
            count = len(sample.output.token_ids)
            told = ForetokenError(f"{done.error} (after {count} tokens)")
            told.__cause__ = done.error.__cause__
            self._fail(request, "The target", told)
        elif sample.ended:
            self._leave(sample)

    def _count(self, request: Request, done: Step, emitted: int, accepted: int) -> None:
        drafted, depth = done.tree.offered[done.row]
        copied = done.row in self._drafts.rows
        for stats in (request.stats, self.stats):
            stats.record(emitted, drafted, accepted, depth, min(done.strayed, accepted), copied)
            if self.drafter.chose and not copied:
                stats.chosen[str(self.drafter.chose[done.row])] += 1
        request.note_time()

    def _logprobs(
        self, sample: Sample, done: Step, block: list[int]
    ) -> list[tuple[dict[int, Logprob], float]]:
        wanted = sample.request.params.logprobs
        if wanted is None:
            return []
        slots = [0, *done.path][: len(block)]
        logits = done.scores.logits[done.row, slots]  # [tokens, V]
        return list(entries(logits, block, wanted, sample.request.texts))

    def _fail(self, request: Request, what: str, error: BaseException) -> None:
        """End a request by an error; the totals are as if it had never been."""
        _log.debug("Request %d failed", request.id, exc_info=error)
        if request.error is None and not request.finished:
            told = described(what, error)
            request.error, request.cause = str(told), told.__cause__
            self.stats.remove(request.counted())
        self._end(request, "error")

    def _end(self, request: Request, reason: str) -> None:
        """End the samples of a request that haven't ended."""
        self._changed[request.id] = request
        self._limited.pop(request.id, None)
        for sample in request.samples:
            if not sample.ended:
                sample.abort(reason)
                self._leave(sample)

    def _leave(self, sample: Sample) -> None:
        """Free the sample's slots, or its place in the queue."""
        if sample in self._waiting:
            self._waiting.remove(sample)
            return
        sample.close()
        if sample in self._running:
            self._release(sample)

    def _release(self, sample: Sample) -> None:
        """Free its slots. The last one takes its place, as in a cache that is kept together."""
        sequence = sample.sequence
        self.target.budget.free(sequence.id)
        insist(partial(self._guarded.end, [sequence]), sequence)
        insist(partial(self.target.end, sequence), sequence)
        sequence.state.clear()
        place = self._running.index(sample)
        last = self._running.pop()
        if last is not sample:
            self._running[place] = last

    def _update_times(self, stepped: bool) -> None:
        clock, stats = self.clock, self.stats
        stats.engine_steps += stepped
        stats.prefill_time, stats.draft_time = clock.prefill, clock.draft
        stats.verify_time, stats.other_time = clock.verify, clock.other

    def reset_stats(self) -> None:
        """Start counting again from zero."""
        for request in self._requests.values():
            request.forgotten = request.stats.copy()
        self.clock, self.stats = Clock(), EngineStats()
        self._timed = TimedTarget(self.target, self.clock), TimedDrafter(self._drafts, self.clock)
