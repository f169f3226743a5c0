"""Continuous batching: requests join and leave between steps; rows never wait for each other.

One engine step admits what fits, prefills one chunk of the prompts that are not yet read, and
advances every other sequence through `foretoken.step`.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence as Seq
from time import perf_counter

import torch

from foretoken.access import check_levels
from foretoken.engine.clock import Clock, TimedDrafter, TimedTarget
from foretoken.engine.costs import price
from foretoken.engine.logprobs import entries
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.request import Request, Sample
from foretoken.engine.stats import EngineStats
from foretoken.engine.stopping import Criterion
from foretoken.errors import ForetokenError
from foretoken.protocols import Drafter, Step, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.step import prefill, step


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
    ) -> None:
        """`chunk`: prompt tokens read in one step, all prompts together."""
        check_pairing(target, drafter, verifier)
        self.target, self.drafter, self.verifier = target, drafter, verifier
        # A tokenizer may know ends that the model can't write.
        self.eos_ids = frozenset(i for i in eos_ids if i < target.vocab_size)
        self.tokenizer, self.chunk = target.tokenizer, chunk
        self.reset_stats()
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self._requests: dict[int, Request] = {}
        target.bind(drafter)
        price(target, drafter, verifier)

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
    ) -> Request:
        """Queue a request. Raises `ForetokenError` for a prompt that can't be served.

        `criterion` ends a sample of it after the first token for which it is true.
        """
        room = self._check_prompt(prompt)
        self._check_ids(params)
        self._check_rule(params)
        if params.stops and self.tokenizer is None:
            raise ForetokenError("Stop strings need a tokenizer; pass tokenizer=… to LLM.")
        limit = min(room, params.max_tokens or room)
        seed = secrets.randbits(62) if params.seed is None else params.seed
        request = Request(
            list(prompt), params, text, seed, limit, self.eos_ids, self.tokenizer, criterion
        )
        self._requests[request.id] = request
        self._waiting.extend(request.samples)
        return request

    def _check_prompt(self, prompt: Seq[int]) -> int:
        """How many tokens may be written after this prompt."""
        room = self.target.max_length - len(prompt)
        if not prompt:
            raise ForetokenError("The prompt is empty; give at least one token.")
        if room < 1:
            raise ForetokenError(
                f"The prompt has {len(prompt)} tokens and the context is {self.target.max_length}; "
                "shorten the prompt or raise max_model_len."
            )
        if not 0 <= min(prompt) <= max(prompt) < self.target.vocab_size:
            raise ForetokenError(
                f"The prompt has token ids outside the vocabulary of {self.target.vocab_size}; "
                "tokenize it with the target's tokenizer."
            )
        return room

    def _check_rule(self, params: SamplingParams) -> None:
        name = type(self.verifier).__name__
        if not (params.greedy or self.verifier.sampling):
            raise ForetokenError(
                f"Verifier {name} serves greedy decoding only and the temperature is "
                f"{params.temperature}; use temperature 0 or another verifier."
            )
        if params.edits and self.verifier.reads_logits:
            raise ForetokenError(
                f"Verifier {name} reads the raw logits, which know nothing of penalties, biases, "
                "allowed or bad ids, min_tokens and processors; leave these out or use another "
                "verifier."
            )

    def _check_ids(self, params: SamplingParams) -> None:
        references = [text for text in params.references if not isinstance(text, str)]
        if len(references) < len(params.references):
            raise ForetokenError(
                "The engine takes references as token ids; tokenize them, or use LLM.generate."
            )
        lists = (
            params.logit_bias,
            params.allowed_token_ids,
            params.bad_token_ids,
            params.stop_token_ids,
            *references,
        )
        for token in (token for ids in lists for token in ids or ()):
            if not 0 <= token < self.target.vocab_size:
                raise ForetokenError(
                    f"Token id {token} of the sampling parameters is outside the vocabulary of "
                    f"{self.target.vocab_size}; use ids from the target's tokenizer."
                )

    def cancel(self, request_id: int) -> None:
        """End a request now; what it wrote stays in its output. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        for sample in request.samples if request else ():
            if sample.output.finish_reason is None:
                sample.output.finish_reason = "cancelled"
                if sample in self._running:
                    self._leave(sample)
                else:
                    self._waiting.remove(sample)
        self._requests.pop(request_id, None)

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Advance every request by one step; returns the outputs of those that decoded."""
        began = perf_counter()
        self._admit()
        ready = self._prefill()
        touched: dict[int, Request] = {}
        if ready:
            sequences = [sample.sequence for sample in ready]
            budgets = [min(sample.left - 1, self.target.nodes) for sample in ready]
            steps = step(*self._timed, self.verifier, sequences, budgets)
            for sample, done in zip(ready, steps, strict=True):
                self._settle(sample, done)
                touched[sample.request.id] = sample.request
        outputs = [request.snapshot() for request in touched.values()]
        for request in touched.values():
            if request.finished:
                self._requests.pop(request.id, None)
        self.clock.total += perf_counter() - began
        self._update_times(bool(ready))
        return outputs

    def _admit(self) -> None:
        while self._waiting and self.target.free:
            sample = self._waiting.popleft()
            self.target.begin(sample.sequence)
            self.drafter.begin(sample.sequence)
            self._running.append(sample)

    def _prefill(self) -> list[Sample]:
        """Read a chunk of each unread prompt; returns the samples that are ready to decode.

        Samples of one request wait for the first of them and then copy its prompt.
        """
        leaders: dict[int, Sample] = {}
        ready: list[Sample] = []
        for sample in self._running:
            if not self.target.pending(sample.sequence) or self._forked(sample):
                ready.append(sample)
            else:
                leaders.setdefault(sample.request.id, sample)
        if leaders:
            share = max(1, self.chunk // len(leaders))
            late = [sample.sequence for sample in leaders.values()]
            began = perf_counter()
            prefill(self.target, self.drafter, late, share)
            self.clock.prefill += perf_counter() - began
        return ready

    def _forked(self, sample: Sample) -> bool:
        """Copy the prompt's cache from a running sample of the same request, where there is one."""
        for other in sample.request.samples:
            running = other.output.finish_reason is None and self.target.holds(other.sequence)
            if running and other is not sample and not self.target.pending(other.sequence):
                self.target.fork(other.sequence, sample.sequence)
                self.drafter.fork(other.sequence, sample.sequence)
                return True
        return False

    def _settle(self, sample: Sample, done: Step) -> None:
        """Emit the tokens of one step, up to the first stop."""
        sequence, request = sample.sequence, sample.request
        block = done.tokens[:-1] if done.failed else done.tokens
        ending = sample.stop.check(block)
        block = block[: ending.emitted]
        if request.params.logprobs is not None:
            self._logprobs(sample, done, block)
        accepted = min(len(done.path), len(block))
        sample.emit(block, accepted)
        drafted, depth = done.tree.offered[done.row]
        for stats in (request.stats, self.stats):
            strayed = min(done.strayed, accepted)
            stats.record(len(block), drafted, accepted, depth, strayed)
            if self.drafter.chose:
                stats.chosen[self.drafter.chose[done.row]] += 1
        request.note_time()
        if ending.finish_reason is not None:
            sample.finish(ending)
        elif done.failed:
            sample.fail(
                "The target gave no probabilities (NaN logits, or every token forbidden) after "
                f"{len(sample.output.token_ids)} tokens; check the weights, dtype and processors."
            )
        if sample.output.finish_reason is not None:
            del sequence.tokens[sequence.prompt_length + len(sample.output.token_ids) :]
            self._leave(sample)

    def _logprobs(self, sample: Sample, done: Step, block: list[int]) -> None:
        slots = [0, *done.path][: len(block)]
        logits = done.scores.logits[done.row, slots]  # [tokens, V]
        for entry, logprob in entries(logits, block, sample.request.params.logprobs or 0):
            sample.add_logprob(entry, logprob)

    def _leave(self, sample: Sample) -> None:
        """Free the sample's slots. As in the cache, the last sample moves into the free place."""
        self.drafter.end([sample.sequence])
        self.target.end(sample.sequence)
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
        self.clock, self.stats = Clock(), EngineStats()
        self._timed = TimedTarget(self.target, self.clock), TimedDrafter(self.drafter, self.clock)


def check_pairing(target: Target, drafter: Drafter, verifier: Verifier) -> None:
    """Raise `ForetokenError` for a drafter that the target can't serve or the rule can't verify."""
    check_levels(f"Drafter {type(drafter).__name__}", drafter.wants.levels, target.levels)
    if drafter.trees and not verifier.trees:
        raise ForetokenError(
            f"Verifier {type(verifier).__name__} takes chains only and {type(drafter).__name__} "
            "drafts trees; use a tree rule such as 'target_only'."
        )
    wrong = drafter.kinds - verifier.kinds
    if wrong:
        names = ", ".join(sorted(kind.name.lower() for kind in wrong))
        raise ForetokenError(
            f"Verifier {type(verifier).__name__} is not valid for {names} nodes, which "
            f"{type(drafter).__name__} makes; choose a verifier that takes them."
        )
