"""Raises at every call that a step makes, one call at a time, and checks that nothing is lost.

    from foretoken.config import build
    from foretoken.testing import check_faults

    check_faults(build({"method": MyDrafter()}))

Four samples of three requests are served through three slots: a prompt that is read in chunks, one
of two samples, one of a single token, which waits. First undisturbed, and the calls of the target,
its model, the drafter and its parts, their models, the rule, the caches and the user's own code are
counted. Then again and again on the same engine, and each time one call raises:

- *once*, before the call does anything or after it has: the memory ran out, for one. Then at most
  one request may fail, the one that it served, and none where it served several.
- *for a request*: each such call that its sequences take part in. Then that request fails alone.

Afterwards the engine must be idle, every slot of every cache free, no sequence reachable, the
statistics those of the requests that didn't fail, every other text what it was, and the next
request must be served as ever. Texts are compared where the rule is exact: at temperature 0, and at
a seed where the drafts are chosen; drawn ones depend on when a request started again.

Calls are taken for equal where they are made inside the same calls, for one request or for several;
of equal ones the first and the last are made to fail where they are a drafter's verbs, else one of
the two.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from foretoken.config import BuiltMethod
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.engine.stats import AcceptanceStats
from foretoken.models.cache import KVCache
from foretoken.models.drafting.vocabulary import Vocabulary
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Scores, Step
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing.calls import Call, Calls, For, Once
from foretoken.testing.models import ByteTokenizer, Pair, tiny_pair
from foretoken.tree import Kind

TARGET = ("begin", "holds", "fork", "pending", "prefill", "score", "commit", "end")
ACCESS = (
    *("embed", "norm", "head", "kv"),
    *("draft_states", "rerun_states", "draft_logits", "substitute_logits"),
)
MODEL = ("forward", "embed", "head", "run", "run_together")
DRAFTER = ("begin", "draft", "observe", "fork", "end")
VOCABULARY = ("groups", "text", "starting", "continuing")
"""The methods whose calls are watched; a class may lack some."""

_SLOTS, _CHUNK, _MOST_STEPS = 3, 4, 300
_CHOSEN = frozenset({Kind.CHOSEN, Kind.AUXILIARY})

_PROMPTS = ((5, 9, 2, 5, 9, 2, 5), (11, 40, 11), (7,))
_ENDS = (type, ModuleType, FunctionType, FrameType, torch.Tensor, torch.nn.Module, str, int)
"""Where the search for what is still held does not go on."""


@dataclass
class _Run:
    """What one run wrote. texts: of each sample of each request; failed: the requests that did."""

    texts: list[list[list[int]]]
    failed: dict[int, str | None]
    finished: list[list[str | None]]
    stats: AcceptanceStats
    states: int


class _Harness:
    """An engine with a method, whose calls are watched."""

    def __init__(self, built: BuiltMethod, pair: Pair, stack: ExitStack) -> None:
        self.calls = Calls()

        def watch(thing: Any, label: str, names: Seq[str]) -> None:
            stack.enter_context(self.calls.watching(thing, label, names))

        self.vocab_size, tokenizer = pair.target.vocab_size, ByteTokenizer(pair.target.vocab_size)
        watch(tokenizer, "tokenizer", ["decode"])
        watch(pair.target, "model", MODEL)
        inner = ModelTarget(pair.target, _SLOTS, 64, 16, tokenizer=tokenizer)
        watch(inner, "target", [*TARGET, *ACCESS])
        target = built.wrapped(inner)
        if target is not inner:
            watch(target, "wrapper", ["score"])
        watch(built.verifier, "rule", ["__call__"])
        for label, part in _parts(built.drafter, "drafter"):
            watch(part, label, DRAFTER)
        self.engine = Engine(target, built.drafter, built.verifier, chunk=_CHUNK)
        for number, model in enumerate(built.drafter.small_models):
            watch(model, f"small model {number}", MODEL)
        for number, vocabulary in enumerate(_reachable(self.engine, Vocabulary)):
            watch(vocabulary, f"vocabulary {number}", VOCABULARY)
        self.caches = list(_reachable(self.engine, KVCache))
        for cache in self.caches:
            watch(cache, "cache", ["acquire"])
        self._reads_logits, self.exact = built.verifier.reads_logits, built.verifier.exact
        self.repeatable = self.exact and built.drafter.kinds <= _CHOSEN

    def prompts(self) -> list[tuple[int, ...]]:
        return [tuple(token % self.vocab_size for token in each) for each in _PROMPTS]

    def ask(self, temperature: float) -> list[Request]:
        """Queue the batch; all but the first request are sampled at this temperature."""
        first, second, third = self.prompts()
        processor = self.calls.watched("processor", lambda ids, logits: logits, frozenset({first}))
        criterion = self.calls.watched("criterion", lambda output: False, frozenset({second}))
        greedy = SamplingParams(
            temperature=0,
            max_tokens=4,
            seed=3,
            logits_processors=[] if self._reads_logits else [processor],
        )
        sampled = replace(greedy, temperature=temperature, max_tokens=3, logits_processors=[])
        add = self.engine.add
        return [
            add(first, greedy),
            add(second, replace(sampled, n=2), criterion=criterion),
            add(third, replace(sampled, stop="never")),
        ]

    def run(self, temperature: float, fault: Once | For | None = None) -> _Run:
        """Serve the batch while this call fails."""
        shared = self.engine.drafter.shared
        if shared is not None:
            shared.reset()
        self.engine.reset_stats()
        self.calls.begin(fault)
        requests = self.ask(temperature)
        self._finish()
        self.calls.fault = None
        total = AcceptanceStats()
        for request in requests:
            if request.error is None:
                total.add(request.stats)
        return _Run(
            [[sample.output.token_ids for sample in request.samples] for request in requests],
            {number: r.error for number, r in enumerate(requests) if r.error is not None},
            [[sample.output.finish_reason for sample in request.samples] for request in requests],
            total,
            sum(bool(sample.sequence.state) for r in requests for sample in r.samples),
        )

    def _finish(self) -> None:
        for _ in range(_MOST_STEPS):
            if not self.engine.busy:
                return
            self.engine.step()
        raise AssertionError(f"The engine still runs after {_MOST_STEPS} steps.")

    def check_at_rest(self, run: _Run) -> None:
        """Nothing is left of the batch but its statistics."""
        left = self.engine.cancel_all()
        assert not left, f"{len(left)} requests were forgotten"
        lost = [len(cache.lengths) - cache.free for cache in self.caches]
        assert not any(lost), f"slots lost in the caches: {lost}"
        budget = self.engine.target.budget
        assert not budget.reserved, f"{budget.reserved} bytes of the caches are still reserved"
        assert not (budget.lazy and budget.written), f"{budget.written} bytes are still filled"
        assert not run.states, f"the states of {run.states} sequences are left"
        assert _counts(self.engine.stats) == _counts(run.stats), "other totals than the requests'"
        held = {type(each).__name__ for each in _reachable(self.engine, (Sequence, Step, Scores))}
        assert not held, f"still reachable: {', '.join(sorted(held))}"

    def check(
        self, fault: Once | For, temperature: float, plain: _Run, next_text: list[int]
    ) -> int:
        """Run with a fault and compare with the undisturbed run; how often it was raised."""
        run = self.run(temperature, fault)
        raised = self.calls.raised
        self.check_at_rest(run)
        assert all(reason for each in run.finished for reason in each), "a request never ended"
        assert len(run.failed) <= 1 and self._may_fail(fault).issuperset(run.failed), (
            f"failed: {run.failed}"
        )
        self._check_texts(temperature, plain, run)
        assert not self.exact or self.next_text() == next_text, "the next request's text differs"
        return raised

    def _may_fail(self, fault: Once | For) -> set[int]:
        """The requests that may fail: the one that the call served, any where that isn't known."""
        served = {fault.prompt} if isinstance(fault, For) else fault.call.prompts
        if len(served) > 1:
            return set()
        return {n for n, prompt in enumerate(self.prompts()) if not served or prompt in served}

    def _check_texts(self, temperature: float, plain: _Run, run: _Run) -> None:
        """Those that didn't fail wrote what they write undisturbed."""
        for number, (right, mine) in enumerate(zip(plain.texts, run.texts, strict=True)):
            sampled = number > 0 and temperature > 0
            if number not in run.failed and (self.repeatable if sampled else self.exact):
                assert mine == right, f"request {number} wrote {mine} instead of {right}"

    def next_text(self) -> list[int]:
        """A short greedy text."""
        params = SamplingParams(temperature=0, max_tokens=1)
        request = self.engine.add(self.prompts()[1], params)
        self._finish()
        assert request.error is None, f"the next request fails: {request.error}"
        return request.samples[0].output.token_ids


def check_faults(built: BuiltMethod, pair: Pair | None = None) -> int:
    """Make every call of a method's steps fail, as the module says; how many faults were raised.

    The method's drafter serves this check only. Raises `AssertionError` that names the call.
    """
    pair, raised = pair or tiny_pair(), 0
    warm = 0.8 if built.verifier.sampling else 0.0
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        harness = _Harness(built, pair, stack)
        for temperature, late in ((0.0, False), (warm, True)):
            plain = harness.run(temperature)
            assert not plain.failed, f"undisturbed, requests fail: {plain.failed}"
            harness.check_at_rest(plain)
            made, text = dict(harness.calls.made), harness.next_text()
            for fault in _faults(made, harness.prompts(), late):
                try:
                    raised += harness.check(fault, temperature, plain, text)
                except Exception as error:
                    raise AssertionError(f"{fault}: {error}") from error
    return raised


def _faults(
    made: Mapping[Call, int], prompts: Seq[tuple[int, ...]], late: bool
) -> Iterator[Once | For]:
    """The faults to try for calls that an undisturbed run makes: of equal ones the first or the
    last, and the drafter's verbs at both; for a request each call before it does anything, but its
    end after it has, since who never lets go of a sequence can't be helped."""
    equal: dict[tuple[Any, ...], Call] = {}
    for call, count in made.items():
        kind = (call.path, call.after, len(call.prompts) > 1)
        if late:
            equal[kind] = call._replace(number=count - 1)
        else:
            equal.setdefault(kind, call)
    for turn, call in enumerate(equal.values()):
        if call.path[-1].startswith("drafter") or turn % 2 == late:
            yield Once(call)
    names = dict.fromkeys((call.path[-1], call.after) for call in made)
    for turn, (name, after) in enumerate(names):
        served = {p for c in made if (c.path[-1], c.after) == (name, after) for p in c.prompts}
        victims = [prompt for prompt in prompts if prompt in served]
        tried = name.startswith("drafter") if late else not name.endswith(".end")
        if victims and after == late and tried:
            yield For(name, after, victims[turn % len(victims)])


def _parts(drafter: Drafter, label: str) -> Iterator[tuple[str, Drafter]]:
    """A drafter and all that it is made of, with labels."""
    yield label, drafter
    for number, part in enumerate(drafter.parts):
        yield from _parts(part, f"{label}.part {number}")


def _reachable(start: Any, kinds: Any) -> Iterator[Any]:
    """The objects of these kinds that can be reached from another, each once."""
    seen, waiting = {id(start)}, [start]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, kinds):
            yield thing
        for each in gc.get_referents(thing):
            if id(each) not in seen and not isinstance(each, _ENDS):
                seen.add(id(each))
                waiting.append(each)


def _counts(stats: AcceptanceStats) -> dict[str, Any]:
    """What was counted, without the zeros at ends."""
    names = [each.name for each in fields(AcceptanceStats)]
    counts: dict[str, Any] = {name: getattr(stats, name) for name in names}
    counts["chosen"] = {name: count for name, count in stats.chosen.items() if count}
    for name in ("drafted_at", "accepted_at"):
        while counts[name] and not counts[name][-1]:
            counts[name] = counts[name][:-1]
    return counts


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine warns of every fault."""
    log = logging.getLogger("foretoken")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
