"""The thread that owns an engine: calls from everywhere, streams, re-entry, closing, forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import GREEDY, PROMPTS, known
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.auto import Auto
from foretoken.drafters.either import Either
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.suffix import Suffix
from foretoken.engine.checks import check_device
from foretoken.engine.engine import Engine
from foretoken.engine.worker import check_unserved
from foretoken.testing import ByteTokenizer, Pair

TEXTS = [list(prompt) for prompt in PROMPTS]


@pytest.fixture
def llm(pair: Pair) -> Iterator[LLM]:
    with LLM(pair.target, tokenizer=ByteTokenizer(), eos_ids=()) as made:
        yield made


def at_rest(llm: LLM) -> bool:
    return llm._worker.call(lambda engine: not engine.busy and engine.target.free == 8)


def slow(ids: Any, scores: Any) -> Any:
    """A logits processor that makes 200 tokens take ten seconds."""
    time.sleep(0.05)
    return scores


LONG = SamplingParams(temperature=0, max_tokens=200, logits_processors=[slow])


def threads() -> set[threading.Thread]:
    """Every engine's thread: also of LLMs that other tests forgot, whose threads end in time."""
    return {each for each in threading.enumerate() if each.name == "foretoken-engine"}


def test_calls_from_many_threads(llm: LLM, pair: Pair) -> None:
    """Every one of them gets its own answer."""
    texts, before = known(pair), threads()

    def ask(number: int) -> bool:
        prompt = PROMPTS[number % len(PROMPTS)]
        [output] = llm.generate(list(prompt), GREEDY)
        return output.token_ids == texts[tuple(prompt)]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(120)))
    assert len(threads() - before) == 1 and at_rest(llm)


def test_a_call_beside_an_open_stream(llm: LLM, pair: Pair) -> None:
    """Neither takes the other's outputs: the stream goes on to its end."""
    texts = known(pair)
    stream = llm.stream(TEXTS[0], GREEDY)
    first = next(stream)
    assert len(first.token_ids) >= 1
    [other] = llm.generate(TEXTS[1], GREEDY)
    assert other.token_ids == texts[tuple(PROMPTS[1])]
    *_, last = stream
    assert last.finished and last.token_ids == texts[tuple(PROMPTS[0])]


def test_streams_side_by_side(llm: LLM, pair: Pair) -> None:
    """Read in turns, each ends with its own text."""
    streams = [llm.stream(text, GREEDY) for text in TEXTS]
    last: dict[int, list[int]] = {}
    open_ones = dict(enumerate(streams))
    while open_ones:
        for number, stream in list(open_ones.items()):
            output = next(stream, None)
            if output is None:
                del open_ones[number]
            else:
                last[number] = output.token_ids
    assert [last[i] for i in range(len(TEXTS))] == [known(pair)[tuple(p)] for p in PROMPTS]


def test_an_abandoned_stream_frees_its_slot(llm: LLM) -> None:
    """Dropped, not closed."""
    stream = llm.stream(TEXTS[0], LONG)
    next(stream)
    del stream
    gc.collect()
    assert at_rest(llm)


def test_a_stream_that_is_collected_as_something_is_posted(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in a cycle is thrown away wherever the collector runs: in a thread, too, that is just
    about to post something else. It says there that the stream is over, and waits for nobody."""
    check, answers = llm.worker.check, list[Any]()

    def collecting() -> None:
        gc.collect()
        check()

    def ask() -> None:
        answers.extend(llm.generate(TEXTS[1], GREEDY))

    gc.disable()
    try:
        stream = llm.stream(TEXTS[0], LONG)
        next(stream)
        cycle: list[Any] = [stream]
        cycle.append(cycle)
        del stream, cycle
        monkeypatch.setattr(llm.worker, "check", collecting)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(30)
    finally:
        gc.enable()
    assert len(answers) == 1 and at_rest(llm)


def test_what_was_streamed_stays_as_it_was(llm: LLM) -> None:
    """A piece doesn't change while the next ones are written."""
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=1)
    pieces = [(len(p.token_ids), p) for p in llm.stream(TEXTS[0], params)]
    for length, piece in pieces:
        [sample] = piece.outputs
        assert len(sample.token_ids) == len(sample.logprobs or []) == length
    passes = [piece.stats.passes for _, piece in pieces]
    assert passes == list(range(1, len(pieces) + 1))


def test_a_processor_that_calls_the_llm(llm: LLM) -> None:
    """It gets one sentence, and only its own request ends by it."""

    def again(ids: Any, scores: Any) -> Any:
        return llm.generate(TEXTS[1], GREEDY)

    bad = SamplingParams(temperature=0, logits_processors=[again])
    one, two = llm.generate(TEXTS[:2], [bad, GREEDY])
    assert "call it from outside" in str(one.error)
    assert len(two.token_ids) == 20
    with pytest.raises(ForetokenError, match="call it from outside"):
        llm.generate(TEXTS[0], bad)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_processor_that_wants_to_end_the_program(llm: LLM, error: type[BaseException]) -> None:
    """It ends its own request: no interrupt reaches the thread that runs it."""

    def leave(ids: Any, scores: Any) -> Any:
        raise error

    bad, good = llm.generate(TEXTS[:2], [SamplingParams(logits_processors=[leave]), GREEDY])
    assert f"A logits processor raised {error.__name__}" in str(bad.error)
    assert len(good.token_ids) == 20
    assert len(llm.generate(TEXTS[0], GREEDY)[0].token_ids) == 20 and at_rest(llm)


def test_a_tokenizer_that_wants_to_end_the_program(pair: Pair) -> None:
    """The thread lives on, though the tokenizer raises again as the request is ended."""

    class Leaves(ByteTokenizer):
        def decode(self, *given: Any, **options: Any) -> str:
            raise SystemExit(1)

    own = LLM(pair.target, tokenizer=Leaves(97))
    for _ in range(2):
        [output] = own.generate([[5, 9]], GREEDY)
        assert "SystemExit" in str(output.error)


def test_an_interrupt_cancels_what_it_interrupts(llm: LLM, monkeypatch: Any) -> None:
    """Ctrl-C while a call waits: its requests end; a stream beside it goes on."""
    looked = threading.Event()

    def slow_until_then(ids: Any, scores: Any) -> Any:
        return scores if looked.is_set() else slow(ids, scores)

    params = SamplingParams(temperature=0, max_tokens=200, logits_processors=[slow_until_then])
    stream = llm.stream(TEXTS[0], params)
    next(stream)

    class Interrupted:
        put = staticmethod(lambda output: None)

        def get(self) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr("foretoken.llm.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS, LONG)
    assert llm._worker.call(lambda engine: engine.target.free) == 7
    looked.set()
    *_, last = stream
    assert len(last.token_ids) == 200


def test_timeouts(llm: LLM) -> None:
    """The request ends with what it has, whether it runs or waits; the others go on."""

    def slower(ids: Any, scores: Any) -> Any:
        time.sleep(0.25)
        return scores

    late = SamplingParams(timeout=5.0, max_tokens=200, logits_processors=[slower])
    waits = SamplingParams(timeout=0.01, max_tokens=5, n=8)
    one, two, three = llm.generate(TEXTS[:3], [late, GREEDY, waits], raise_on_error=True)
    assert one.outputs[0].finish_reason == "timeout"
    assert 1 <= len(one.token_ids) <= 20 and one.outputs[0].text
    assert len(two.token_ids) == 20
    assert "timeout" in {sample.finish_reason for sample in three.outputs}
    assert at_rest(llm)


def test_a_bounded_queue(pair: Pair) -> None:
    """What is one too many is refused with both numbers, and the others are served."""
    with LLM(pair.target, eos_ids=(), max_num_seqs=2, max_queued=1) as llm:
        *served, refused = llm.generate(TEXTS[:4], GREEDY)
        assert [len(output.token_ids) for output in served] == [20] * 3
        said = str(refused.error)
        assert "2 sequences would wait" in said and "max_queued is 1" in said
        four, three = (replace(GREEDY, n=n, temperature=1.0) for n in (4, 3))
        assert "2 sequences would wait" in str(llm.generate(TEXTS[:1], four)[0].error)
        assert len(llm.generate(TEXTS[:1], three)[0].outputs) == 3


def test_a_bounded_queue_for_memory(pair: Pair) -> None:
    """A free slot is no place where memory lacks; nothing waits for what would be admitted now."""
    with LLM(pair.target, eos_ids=(), max_num_seqs=8) as llm:
        longest = len(llm.generate(TEXTS[:1], GREEDY)[0].prompt_token_ids) + 20
        needs = llm.engine.target.budget.needs(longest)
    texts = TEXTS[:1] * 6
    with LLM(
        pair.target, eos_ids=(), max_num_seqs=8, max_queued=1, kv_cache_memory=2 * needs
    ) as llm:
        *served, first, second, third = llm.generate(texts, GREEDY)
        assert [len(output.token_ids) for output in served] == [20] * 3
        assert all("max_queued is 1" in str(refused.error) for refused in (first, second, third))
        assert not llm.generate(texts[:3], GREEDY)[-1].error


@pytest.mark.parametrize("way", ["generate", "stream"])
def test_an_interrupt_before_the_request_was_added(
    llm: LLM, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not served for nobody."""
    worker, go, before = llm._worker, threading.Event(), llm.stats.tokens
    begin = worker.begin

    def interrupted(work: Any) -> None:
        worker.submit(work)
        raise KeyboardInterrupt

    def begun(*given: Any) -> Any:
        added = begin(*given)
        known, times = added.result, iter([True])

        def result() -> Any:
            if next(times, False):
                raise KeyboardInterrupt
            return known()

        monkeypatch.setattr(added, "result", result)
        return added

    worker.submit(lambda _: go.wait())
    with monkeypatch.context() as patch:
        patch.setattr(worker, "call", interrupted)
        patch.setattr(worker, "begin", begun)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(TEXTS[0], LONG) if way == "generate" else list(llm.stream(TEXTS[0], LONG))
    go.set()
    assert at_rest(llm) and llm.stats.tokens - before < 10


def test_closing(pair: Pair) -> None:
    """What runs is cancelled, the thread ends, and every later call says so."""
    before = threads()
    with LLM(pair.target, eos_ids=()) as llm:
        engine_target = llm.engine.target
        assert "method='autoregressive'" in repr(llm) and "float64" in repr(llm)
        stream = llm.stream(TEXTS[0], LONG)
        next(stream)
    *_, last = stream
    assert last.outputs[0].finish_reason == "cancelled" and "closed" in repr(llm)
    assert threads() <= before
    target = weakref.ref(engine_target)
    del engine_target
    gc.collect()
    assert target() is None  # the memory is free, though the LLM is still there
    llm.close()
    for call in (llm.generate, llm.stream):
        with pytest.raises(ForetokenError, match="closed"):
            list(call(TEXTS[0], GREEDY))
    with pytest.raises(ForetokenError, match="closed"):
        _ = llm.stats


def test_a_forgotten_llm_is_freed(pair: Pair) -> None:
    """The thread keeps nothing alive, and ends."""
    before = threads()
    llm = LLM(pair.target, eos_ids=())
    llm.generate(TEXTS[0], GREEDY)
    engine = weakref.ref(llm.engine)
    [thread] = threads() - before
    del llm
    gc.collect()
    assert engine() is None
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads: what is tested
def test_a_fork_is_refused(llm: LLM) -> None:
    """The child has no thread that would answer: it is told so, can show it, and can leave."""
    llm.generate(TEXTS[0], GREEDY)
    child = os.fork()
    if not child:
        try:
            shown = repr(llm).endswith("loaded by another process)")
            llm.generate(TEXTS[0], GREEDY)
        except ForetokenError as error:
            os._exit(0 if shown and "forked" in str(error) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(llm.generate(TEXTS[0], GREEDY)[0].token_ids) == 20


def test_the_interpreter_ends_while_a_stream_is_open() -> None:
    """Quietly, and at once."""
    code = (
        "import torch\n"
        "from foretoken import LLM, SamplingParams\n"
        "from foretoken.testing import tiny_pair\n"
        "llm = LLM(tiny_pair().target, eos_ids=())\n"
        "stream = llm.stream([1, 2], SamplingParams(temperature=0, max_tokens=240))\n"
        "next(stream)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_while_a_model_is_freed() -> None:
    """By the thread, which may hold it last: cut off there, tensors that need the lock of Python's
    end the process."""
    code = """
import threading, time, weakref
from foretoken.engine.worker import Worker

class Engine:
    busy = False
    def __del__(self):
        time.sleep(0.5)
        print("freed")

go = threading.Event()
worker = Worker(Engine())
worker._post(go.wait)
reference = weakref.ref(worker)
time.sleep(0.05)  # the thread has taken the order, and holds the worker
del worker
go.set()
while reference() is not None:
    time.sleep(0.001)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\n", "")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_threads_that_wait_keep_no_cores() -> None:
    """Helpers of several threads together would outnumber the cores, and every barrier sleep."""
    code = """
import os, time, torch
from foretoken import LLM, SamplingParams
from foretoken.machine import yield_cores
from foretoken.testing import tiny_pair

torch.set_num_threads(2)
compute = lambda: torch.randn(1000, 1000).exp().sum()
params = SamplingParams(max_tokens=9, logits_processors=[lambda ids, at: at + 0 * compute()])
llm = LLM(tiny_pair().target, eos_ids=())

def count(wanted=None):
    for _ in range(400):  # the thread lets its helpers go a moment after it has answered
        threads = len(os.listdir("/proc/self/task"))
        if threads == wanted:
            break
        time.sleep(0.005)
    return threads

compute()
with_helper = count()
yield_cores()
alone = count()
compute()
llm.generate([1, 2], params)
print(with_helper - alone, count(alone + 1) - alone)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1", "1"], done.stderr  # one helper; the engine's thread


def within(seconds: float, work: Any) -> Any:
    """What `work()` returns, which must not wait for ever."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result(seconds)
        except TimeoutError:
            os._exit(9)  # the thread that waits can't be ended, and would hold up the others


def bent(**fields: Any) -> SamplingParams:
    """Parameters that were changed after they had been checked."""
    params = SamplingParams(temperature=0, max_tokens=4)
    for name, value in fields.items():
        object.__setattr__(params, name, value)
    return params


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0},
        {"n": "2"},
        {"temperature": "hot"},
        {"max_tokens": "x"},
        {"stop": [None]},
        {"references": None, "top_k": 1.5},
        {"timeout": "soon"},
    ],
)
def test_bent_parameters(llm: LLM, fields: dict[str, Any]) -> None:
    """They are refused by a sentence that names the field, and the neighbour is served."""
    params = [bent(**fields), GREEDY]
    refused, served = within(30, lambda: llm.generate(TEXTS[:2], params))
    assert f"{[*fields][-1]} is " in str(refused.error) and len(served.token_ids) == 20
    with pytest.raises(ForetokenError, match=f"{[*fields][-1]} is "):
        within(30, lambda: list(llm.stream(TEXTS[0], params[0])))
    assert at_rest(llm)


def test_parameters_are_checked_once_a_request(llm: LLM, monkeypatch: Any) -> None:
    """And once more with the ids of the texts in them."""
    checked = list[SamplingParams]()
    check = SamplingParams._check_ranges
    monkeypatch.setattr(SamplingParams, "_check_ranges", lambda p: (checked.append(p), check(p)))
    texts = SamplingParams(temperature=0, max_tokens=2, references=["ab"], prediction="cd")
    for params, times in ((GREEDY, 1), (texts, 2)):
        checked.clear()
        llm.generate(TEXTS[:3], params)
        assert len(checked) == 3 * times
        checked.clear()
        assert list(llm.stream(TEXTS[0], params)) and len(checked) == times


def test_a_request_that_gets_lost(llm: LLM, monkeypatch: Any) -> None:
    """Who waits for it is told so, in one call and in a stream, and the next one is served."""
    monkeypatch.setattr(Engine, "_admit", lambda engine: engine._waiting.clear())
    params = SamplingParams(temperature=0, max_tokens=4, n=3)
    outputs = within(30, lambda: llm.generate(TEXTS[:2], params, raise_on_error=False))
    assert all("lost the request" in str(output.error) for output in outputs)
    [last] = within(30, lambda: list(llm.stream(TEXTS[0], params)))
    assert "lost the request" in str(last.error)
    monkeypatch.undo()
    assert len(within(30, lambda: llm.generate(TEXTS[0], GREEDY))[0].token_ids) == 20


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_an_engine_that_breaks(llm: LLM, monkeypatch: Any, error: type[BaseException]) -> None:
    """Where requests can't even be ended, all who wait are answered, and so are later calls."""

    def broken(engine: Engine, *given: object) -> Any:
        raise error("inside")

    stream = llm.stream(TEXTS[0], LONG)
    next(stream)
    monkeypatch.setattr(Engine, "step", broken)
    monkeypatch.setattr(Engine, "fail_all", broken)
    *_, last = within(30, lambda: list(stream))
    assert last.error == (
        f"This LLM has stopped: The engine raised {error.__name__}: inside; load another one."
    )
    monkeypatch.undo()
    for call in (llm.generate, llm.stream):
        with pytest.raises(ForetokenError, match="has stopped: The engine raised"):
            within(30, lambda call=call: list(call(TEXTS[0], GREEDY)))
    llm.close()


def test_a_device_that_fails_for_good(llm: LLM, monkeypatch: Any) -> None:
    """Whose request failed is told by what, and nothing is served from then on; after any other
    error the next request is."""

    def wrong(ids: Any, scores: Any) -> Any:
        raise LookupError("inside")

    def gone(device: torch.device) -> None:
        raise ForetokenError(f"The device {device} is gone.")

    params = SamplingParams(logits_processors=[wrong])
    for check in (check_device, gone):
        monkeypatch.setattr("foretoken.engine.worker.check_device", check)
        assert len(llm.generate(TEXTS[0], GREEDY)[0].token_ids) == 20
        [output] = within(30, lambda: llm.generate(TEXTS[:1], params))
        assert "LookupError: inside" in str(output.error)
    with pytest.raises(ForetokenError) as told:
        within(30, lambda: llm.generate(TEXTS[0], GREEDY))
    assert str(told.value) == "This LLM has stopped: The device cpu is gone; load another one."
    with pytest.raises(ForetokenError, match="is gone"):
        llm.worker.check()


def test_a_receiver_that_raises(llm: LLM) -> None:
    """The others are answered."""
    stream = llm.stream(TEXTS[0], LONG)
    next(stream)

    def refuses(output: Any) -> None:
        raise LookupError("receiver")

    def add(engine: Engine) -> None:
        llm._worker.follow(engine.add(TEXTS[1], GREEDY).id, refuses)

    llm._worker.call(add)
    *_, last = within(30, lambda: list(stream))
    assert "The engine raised LookupError: receiver" in str(last.error)


def test_orders_after_a_cancellation_that_came_too_late(llm: LLM) -> None:
    """A request is cancelled as the LLM closes; a call behind it is told, and doesn't wait."""
    worker, behind = llm._worker, threading.Event()
    worker.call(lambda engine: None)

    def close() -> None:
        behind.wait(10)
        worker._shut()

    worker._post(close)
    worker.cancel([7])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(worker.call, lambda engine: 1)
        while worker._orders.qsize() < 2:
            time.sleep(0.001)
        behind.set()
        with pytest.raises(ForetokenError, match="closed"):
            asked.result(10)


def test_a_thread_that_has_ended(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after something that ends it from outside: nobody waits for it."""
    assert len(llm.generate(TEXTS[0], GREEDY)[0].token_ids) == 20
    ended = threading.Thread(target=list)
    ended.start()
    ended.join()
    with monkeypatch.context() as patched:
        patched.setattr(llm._worker, "_thread", ended)
        with pytest.raises(ForetokenError, match="has ended; load it once more"):
            llm.worker.check()
    llm.worker.check()


def test_what_was_cancelled_is_told_nothing_more(llm: LLM) -> None:
    """Least of all that its request got lost."""
    told = list[Any]()

    def add_and_cancel(engine: Engine) -> None:
        request = engine.add(TEXTS[0], GREEDY)
        llm._worker.follow(request.id, told.append)
        llm._worker.cancel([request.id])

    llm._worker.call(add_and_cancel)
    assert len(llm.generate(TEXTS[1], GREEDY)[0].token_ids) == 20
    llm.close()
    assert [output.error for output in told if output.error is not None] == []


def test_torch_is_set_up_on_the_thread(llm: LLM) -> None:
    """No gradients are recorded in passes, whoever calls."""
    seen: list[bool] = []

    def look(ids: Any, scores: Any) -> Any:
        seen.append(torch.is_inference_mode_enabled())
        return scores

    llm.generate(TEXTS[0], SamplingParams(logits_processors=[look], max_tokens=2))
    assert seen and all(seen)


def test_a_drafter_drafts_for_one_llm(pair: Pair) -> None:
    """Another one refuses the object, also where it is a part of others, and the first goes on as
    before; closed, or thrown away, it gives the object back."""
    lookup = PromptLookup(3)
    first = LLM(pair.target, speculative_config={"method": lookup})
    prompt, params = [5, 9, 2, 5, 9, 2, 5], SamplingParams(temperature=0, max_tokens=12)
    text = first.generate(prompt, params)[0].token_ids
    for method in (lookup, Either([lookup, Suffix()]), Auto([lookup], names=["pld"])):
        with pytest.raises(ForetokenError) as error:
            LLM(pair.target, speculative_config={"method": method})
        assert str(error.value) == (
            f"The drafter {type(method).__name__}, or a part of it, drafts for another LLM; make "
            "an object for each LLM, or close the other one first."
        )
    assert first.generate(prompt, params)[0].token_ids == text
    first.close()
    both = LLM(pair.target, speculative_config={"method": Either([lookup, Suffix()])})
    with pytest.raises(ForetokenError, match="drafts for another LLM"):
        LLM(pair.target, speculative_config={"method": lookup})
    del both
    gc.collect()
    with LLM(pair.target, speculative_config={"method": lookup}) as last:
        assert last.generate(prompt, params)[0].token_ids == text


def test_parts_that_raise(pair: Pair) -> None:
    """Are named, where one asks what a drafter is made of."""

    class Broken(PromptLookup):
        @property
        def parts(self) -> Any:
            raise KeyError("x")

    with pytest.raises(ForetokenError, match=r"^The drafter Broken raised KeyError: 'x'$"):
        check_unserved(Broken())
