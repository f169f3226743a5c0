"""Threads, re-entry, closing in the middle, forks, interrupts."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from foretoken import LLM, ForetokenError, SamplingParams
from hostile_inputs.case import Case, Outcome
from hostile_inputs.stand import BESIDE, GOOD, GREEDY, LONG, METHODS, Stand

Act = Callable[[Stand, LLM, Random, Outcome], None]
CLOSED = ("closed", "LLM")


def cases(random: Random, count: int) -> Iterator[Case]:
    """All of the acts in turn, each time with another method, seed and number of threads."""
    names = list(ACTS)
    for number in range(count):
        name = names[number % len(names)]
        seed = random.randrange(2**62)
        yield _case(name, ACTS[name], random.choice(METHODS), seed)


def _case(name: str, act: Act, method: str, seed: int) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        llm = stand.new(method, max_queued=50)
        with stand.neighbour(stand.llm(), outcome):
            act(stand, llm, Random(seed), outcome)
        if name not in CLOSING:
            stand.serves(llm, outcome)
        llm.close()

    names = ("closed", "LLM", "queued", "fork", "timeout", "time", "processor", "prompt")
    return Case(f"{name}, {method} (#{seed % 10_000})", run, names)


def _together(works: list[Callable[[], Any]], outcome: Outcome, seconds: float = 20) -> None:
    """Each in a thread of its own; raw exceptions and threads that never end are faults."""
    threads = [threading.Thread(target=outcome.attempt, args=(w,), daemon=True) for w in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        if thread.is_alive():
            outcome.blame("crashed", "a thread never came back")


def _good(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    texts = [output.token_ids for output in llm.generate(GOOD, GREEDY)]
    if texts != stand.expected[:2]:
        outcome.blame("harmed", "a good request in another thread got another text")


def _bad(llm: LLM, random: Random) -> None:
    def fails(ids: Any, scores: Any) -> Any:
        raise ValueError("no")

    kind = random.randrange(3)
    if kind == 0:
        params = SamplingParams(temperature=0, logits_processors=[fails])
        llm.generate([GOOD[0]], params)
    elif kind == 1:
        llm.generate([[10**6]], GREEDY)
    else:
        next(llm.stream(GOOD[0], LONG)).copy()


def many(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Good and bad calls from many threads."""
    good: list[Callable[[], Any]] = [partial(_good, stand, llm, outcome)] * random.randint(2, 6)
    bad = [partial(_bad, llm, random) for _ in range(random.randint(1, 6))]
    works = good + bad
    random.shuffle(works)
    _together(works, outcome)


def streams(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Streams that interleave, of which some are dropped, closed or left open."""
    open_streams = [llm.stream(BESIDE, LONG) for _ in range(6)]
    for stream in open_streams:
        for _ in range(random.randint(0, 3)):
            next(stream)
    for stream in random.sample(open_streams, 3):
        stream.close()
    kept = open_streams[0]
    del open_streams, stream
    gc.collect()
    *_, last = [None, *kept]
    if last is not None and last.token_ids != stand.expected[2]:
        outcome.blame("harmed", "a stream beside others got another text")
    _good(stand, llm, outcome)


def a_stream_elsewhere(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """A stream that is begun here, read there, and closed by a third while it is read."""
    stream = llm.stream(BESIDE, LONG)
    next(stream)

    def read() -> None:
        with contextlib.suppress(ValueError):  # Python's own: a generator runs already
            for _ in stream:
                pass

    def close() -> None:
        with contextlib.suppress(ValueError):
            stream.close()

    _together([read, read, close, partial(_good, stand, llm, outcome)], outcome)


def closing(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Closed while others wait: each gets an answer or a sentence."""

    def close() -> None:
        time.sleep(random.random() * 0.05)
        llm.close()

    calls: list[Callable[[], Any]] = [lambda: llm.generate([BESIDE] * 3, LONG)] * 3
    calls += [lambda: list(llm.stream(BESIDE, LONG)), close, close]
    _together(calls, outcome)


def closed(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Every verb after the end."""
    stream = llm.stream(BESIDE, LONG)
    next(stream)
    llm.close()
    verbs: list[Callable[[], Any]] = [
        lambda: llm.generate(GOOD, GREEDY),
        lambda: list(llm.stream(GOOD[0])),
        lambda: list(stream),
        lambda: llm.chat([{"role": "user", "content": "hi"}]),
        llm.reset_stats,
        lambda: llm.stats,
        lambda: llm.model,
        lambda: repr(llm),
        llm.close,
        lambda: llm.__enter__(),
    ]
    for verb in verbs:
        outcome.attempt(verb)
    if not outcome.errors:
        outcome.blame("wrong", "a closed LLM served")


def inside(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """A processor that closes, waits for another thread's call, or starts one."""
    waits = random.random() < 0.5

    def process(ids: Any, scores: Any) -> Any:
        if waits:
            thread = threading.Thread(target=lambda: llm.generate(GOOD, GREEDY), daemon=True)
            thread.start()
            thread.join(0.2)
        else:
            llm.close()
        return scores

    params = SamplingParams(temperature=0, max_tokens=2, logits_processors=[process])
    outputs = outcome.attempt(lambda: llm.generate([GOOD[0]], params)) or []
    stand.note(outputs, outcome)
    if waits:
        time.sleep(0.3)
        stand.serves(llm, outcome)


def interrupted(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Ctrl-C while a call waits: what runs is cancelled, and the LLM goes on serving."""
    slow = SamplingParams(
        temperature=0, max_tokens=200, ignore_eos=True, logits_processors=[_slowly]
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    interrupt = partial(os.kill, os.getpid(), signal.SIGINT)
    timer = threading.Timer(0.05 + random.random() * 0.1, interrupt)
    timer.start()
    try:
        llm.generate([BESIDE] * 2, slow)
        outcome.blame("wrong", "nobody was interrupted")
    except KeyboardInterrupt:
        pass
    timer.join()
    time.sleep(0.05)


def _slowly(ids: Any, scores: Any) -> Any:
    time.sleep(0.005)
    return scores


def forked(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """A forked process that calls gets a sentence or an answer, and the parent goes on."""
    _good(stand, llm, outcome)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            texts = [output.token_ids for output in llm.generate(GOOD, GREEDY)]
            code = 0 if texts == stand.expected[:2] else 2
        except ForetokenError:
            code = 0
        except BaseException:
            sys.stderr.write("a raw exception in the fork\n")
        finally:
            os._exit(code)
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                outcome.blame("raw", f"the forked process ended with {status}")
            return
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    outcome.blame("crashed", "the forked process never came back")


def queued(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """More than may wait: refused one by one, the others served."""
    outputs = llm.generate([GOOD[1]] * 80, GREEDY)
    stand.note(outputs, outcome)
    texts = {tuple(output.token_ids) for output in outputs if output.error is None}
    if texts != {tuple(stand.expected[1])} or not outcome.errors:
        outcome.blame("wrong", "80 requests with max_queued=50 weren't served and refused")


def timeouts(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Times that are over at once, beside requests without any."""
    late = SamplingParams(temperature=0, max_tokens=200, timeout=random.choice((1e-9, 1e-3, 0.01)))
    stand.together(llm, [BESIDE] * 3, [late] * 3, outcome)


def forgotten(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """LLMs that nobody refers to any more, in the middle of a stream."""
    for _ in range(3):
        own = stand.new("pld")
        stream = own.stream(BESIDE, LONG)
        next(stream)
        if random.random() < 0.5:
            del own
            *_, last = stream
            if last.token_ids != stand.expected[2]:
                outcome.blame("harmed", "a stream whose LLM was dropped got another text")
        else:
            del stream, own
        gc.collect()
    _good(stand, llm, outcome)


def changed_behind(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Lists of the caller's that another thread changes during the call."""
    prompts: list[Any] = [list(GOOD[1]) for _ in range(6)]
    halt = threading.Event()

    def change() -> None:
        while not halt.is_set():
            for prompt in prompts:
                prompt[:] = [random.randrange(90)]
            time.sleep(0.0005)

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        stand.together(llm, prompts, [GREEDY] * 6, outcome)
    finally:
        halt.set()
        thread.join()


def one_model_twice(stand: Stand, llm: LLM, random: Random, outcome: Outcome) -> None:
    """Two LLMs of one model, at the same time."""
    other = stand.new("suffix")
    works: list[Callable[[], Any]] = [partial(_good, stand, one, outcome) for one in (llm, other)]
    _together(works * 3, outcome)
    other.close()


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        many,
        streams,
        a_stream_elsewhere,
        closing,
        closed,
        inside,
        interrupted,
        forked,
        queued,
        timeouts,
        forgotten,
        changed_behind,
        one_model_twice,
    )
}
CLOSING = ("closing", "closed", "inside")
"""Acts after which the LLM may be closed."""
