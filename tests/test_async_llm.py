"""`AsyncLLM`: outputs as they grow, for event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from foretoken import LLM, AsyncLLM, ForetokenError, RequestOutput, SamplingParams
from foretoken.engine.engine import Engine
from foretoken.errors import Overloaded
from foretoken.testing import ByteTokenizer
from served import toy


def slow(ids: Any, scores: Any) -> Any:
    """A logits processor that makes 200 tokens take two seconds or so."""
    time.sleep(0.002)
    return scores


LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, logits_processors=[slow])
WHOLE = replace(LONG, max_tokens=50)
"""Of which a test waits for the end."""
SHORT = SamplingParams(seed=3, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with toy() as made:
        yield made


async def written(llm: AsyncLLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    output = None
    async for output in llm.generate(prompt, params):  # noqa: B007
        pass
    assert output is not None
    return output


def busy(llm: LLM) -> bool:
    """After all that was asked for before."""
    return llm.worker.call(lambda engine: engine.busy)


def test_texts_are_those_of_generate(llm: LLM) -> None:
    said = [{"role": "user", "content": "hi"}]

    async def ask() -> list[str]:
        front = AsyncLLM(llm)
        jobs: list[Any] = ["ab", [1, 2], {"prompt": "cd"}, said]
        return [o.text for o in await asyncio.gather(*(written(front, j, SHORT) for j in jobs))]

    expected = [o.text for o in llm.generate(["ab", [1, 2], {"prompt": "cd"}], SHORT)]
    assert asyncio.run(ask()) == [*expected, llm.chat(said, SHORT)[0].text]


def test_outputs_grow(llm: LLM) -> None:
    async def ask() -> list[int]:
        stream = AsyncLLM(llm).generate("ab", WHOLE)
        return [len(output.token_ids) async for output in stream]

    counts = asyncio.run(ask())
    assert counts == sorted(counts) and counts[-1] == 50 and len(counts) > 5


def test_a_slow_consumer_gets_the_newest(llm: LLM) -> None:
    async def ask() -> list[int]:
        counts = []
        async with aclosing(AsyncLLM(llm).generate("ab", WHOLE)) as stream:
            async for output in stream:
                counts.append(len(output.token_ids))
                while busy(llm):
                    await asyncio.sleep(0.01)
        return counts

    first, last = asyncio.run(ask())
    assert first < last == 50


@pytest.mark.parametrize("how", ["close", "break", "cancel"])
def test_who_goes_ends_the_request(llm: LLM, how: str) -> None:
    before = llm.stats.tokens

    async def ask() -> None:
        front = AsyncLLM(llm)
        stream = front.generate("ab", LONG)
        if how == "cancel":
            reading = asyncio.create_task(written(front, "ab", LONG))
            while not front.load.running:
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        elif how == "close":
            await anext(stream)
            await stream.aclose()
        else:
            async for _ in stream:
                break
            await stream.aclose()
        assert not busy(llm)
        assert front.load == (0, 0)

    asyncio.run(ask())
    assert llm.stats.tokens - before < 150


def test_cancelled_before_it_was_added(llm: LLM) -> None:
    async def ask() -> None:
        front = AsyncLLM(llm)
        there, go = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            there.set()
            go.wait()

        held = llm.worker.submit(hold)
        await asyncio.to_thread(there.wait)
        added = llm.stats.passes
        waiting = asyncio.create_task(written(front, [1, 2], LONG))
        while not front.load.waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        go.set()
        await asyncio.wrap_future(held)
        assert not busy(llm) and front.load == (0, 0)
        assert llm.stats.passes == added

    asyncio.run(ask())


def test_cancelled_while_it_is_added(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    there, go, add = threading.Event(), threading.Event(), Engine.add

    def slow(*args: Any, **more: Any) -> Any:
        there.set()
        go.wait()
        return add(*args, **more)

    async def ask() -> None:
        front = AsyncLLM(llm)
        waiting = asyncio.create_task(front.submit([1, 2], LONG))
        await asyncio.to_thread(there.wait)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        go.set()
        busy(llm)  # the thread itself asks to end what it has added
        assert not busy(llm) and front.load == (0, 0)

    monkeypatch.setattr(Engine, "add", slow)
    asyncio.run(ask())


def test_times_begin_when_a_request_is_asked_for(llm: LLM) -> None:
    """Not when the step that then runs has ended; or when it is said."""

    async def ask(**arrived: float) -> RequestOutput:
        there, go = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            there.set()
            go.wait()

        held = llm.worker.submit(hold)
        await asyncio.to_thread(there.wait)
        adding = asyncio.create_task(AsyncLLM(llm).submit([1, 2], SHORT, **arrived))
        await asyncio.sleep(0.3)
        go.set()
        await asyncio.wrap_future(held)
        return [output async for output in await adding][-1]

    for arrived, least in ({}, 0.2), ({"arrived": time.perf_counter() - 50}, 50):
        stats = asyncio.run(ask(**arrived)).stats
        assert stats.queue_time is not None and stats.time_to_first_token is not None
        assert least < stats.queue_time < stats.time_to_first_token < least + 40


def test_what_is_written_is_no_load(llm: LLM) -> None:
    """Though nobody has read it."""

    async def ask() -> None:
        front = AsyncLLM(llm)
        streams = [await front.submit("ab", SHORT) for _ in range(3)]
        while busy(llm):
            await asyncio.sleep(0.01)
        assert front.load == (0, 0)
        assert [len([output async for output in stream]) for stream in streams] == [1] * 3

    asyncio.run(ask())


def test_abort_by_name_and_by_number(llm: LLM) -> None:
    async def ask(by_name: bool) -> RequestOutput:
        front, newest = AsyncLLM(llm), None
        async for newest in front.generate("ab", LONG, "mine"):
            await front.abort("mine" if by_name else newest.request_id)
        assert newest is not None and front.load == (0, 0)
        return newest

    for by_name in (True, False):
        output = asyncio.run(ask(by_name))
        assert output.outputs[0].finish_reason == "cancelled"
        assert 0 < len(output.token_ids) < 200


def test_abort_while_a_prompt_is_read(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request ends as it is queued; another one, of another name or none, goes on."""
    front, begun, go_on = AsyncLLM(llm), threading.Semaphore(0), threading.Event()
    encoded = front.encoded

    def held_up(prompt: Any, params: SamplingParams) -> Any:
        begun.release()
        assert go_on.wait(20)
        return encoded(prompt, params)

    monkeypatch.setattr(front, "encoded", held_up)

    async def last(name: str | None, params: SamplingParams) -> RequestOutput:
        return [output async for output in front.generate("ab", params, name)][-1]

    async def ask() -> list[RequestOutput]:
        asked = [("mine", LONG), ("other", SHORT), (None, SHORT)]
        tasks = [asyncio.create_task(last(*each)) for each in asked]
        for _ in tasks:
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        await front.abort("mine")
        go_on.set()
        return await asyncio.gather(*tasks)

    mine, *others = asyncio.run(ask())
    assert mine.outputs[0].finish_reason == "cancelled" and len(mine.token_ids) < 200
    assert all(len(output.token_ids) == 12 for output in others)


def test_a_stream_that_nobody_reads(llm: LLM) -> None:
    """It is written to its end, and then forgotten, with its name."""
    front = AsyncLLM(llm)

    async def ask() -> None:
        for _ in range(2):
            await front.submit("ab", SHORT, "mine")
            await front.submit("ab", SHORT)
            while busy(llm):
                await asyncio.sleep(0.001)
            gc.collect()
            assert not front._streams and front.load == (0, 0)

    asyncio.run(ask())


def test_aborting_nothing(llm: LLM) -> None:
    asyncio.run(AsyncLLM(llm).abort("nobody"))


def test_refusals(llm: LLM) -> None:
    async def ask() -> None:
        front = AsyncLLM(llm)
        for prompt, params in (([999], SHORT), ("", SHORT), (["a", "b"], SHORT), ("a", {"n": 1})):
            with pytest.raises(ForetokenError):
                await front.submit(prompt, params)  # type: ignore[arg-type]
        async with await front.submit("ab", LONG, "mine"):
            with pytest.raises(ForetokenError, match="id of its own"):
                await front.submit("ab", LONG, "mine")
        assert front.load == (0, 0)

    asyncio.run(ask())


def test_loops_of_several_threads(llm: LLM) -> None:
    front, texts = AsyncLLM(llm), dict[int, str]()

    def run(place: int) -> None:
        params = SamplingParams(seed=place, max_tokens=12)
        texts[place] = asyncio.run(written(front, "ab", params)).text

    threads = [threading.Thread(target=run, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, text in texts.items():
        assert text == llm.generate("ab", SamplingParams(seed=place, max_tokens=12))[0].text


def test_a_loop_that_ended_ends_its_requests(llm: LLM) -> None:
    before = llm.stats.tokens
    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(AsyncLLM(llm).submit("ab", LONG))
    loop.run_until_complete(anext(stream))
    loop.close()
    while busy(llm):
        pass
    assert llm.stats.tokens - before < 150
    assert llm.generate("ab", SHORT)[0].text  # the thread lives


def test_a_loop_that_ended_before_an_output_was_read(llm: LLM) -> None:
    """Its requests end too, and are no load."""
    before, front = llm.stats.tokens, AsyncLLM(llm)
    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(front.submit("ab", LONG))
    loop.run_until_complete(anext(stream))
    while stream._newest._output is None:
        pass
    loop.close()
    while busy(llm):
        pass
    assert llm.stats.tokens - before < 150 and front.load == (0, 0)


def test_a_stream_that_the_tokenizer_ends_ends_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads on, so nothing is written on."""
    tokenizer = ByteTokenizer(257)

    def fails(*_: Any, **__: Any) -> str:
        raise KeyError("x")

    monkeypatch.setattr(tokenizer, "decode", fails)
    with toy(tokenizer=tokenizer) as own:
        last = asyncio.run(written(AsyncLLM(own), [5, 9, 2], LONG))
        assert last.error is not None and not busy(own)


def test_what_each_step_wrote_is_observed(llm: LLM) -> None:
    seen: list[int] = []

    async def ask() -> None:
        def observe(output: RequestOutput) -> None:
            seen.append(len(output.token_ids))

        async with await AsyncLLM(llm).submit("ab", WHOLE, observer=observe) as stream:
            async for _ in stream:
                pass

    asyncio.run(ask())
    assert seen == sorted(set(seen)) and seen[-1] == 50


def test_a_full_queue() -> None:
    async def ask() -> None:
        async with AsyncLLM(toy(max_num_seqs=1, max_queued=0)) as front:
            async with await front.submit("ab", LONG) as stream:
                await anext(stream)
                with pytest.raises(Overloaded):
                    await front.submit("ab", LONG)
            assert (await written(front, "ab", SHORT)).text

    asyncio.run(ask())


def test_what_waits_is_told_apart() -> None:
    async def ask() -> None:
        async with (
            AsyncLLM(toy(max_num_seqs=1)) as front,
            await front.submit("ab", LONG) as first,
            await front.submit("cd", LONG),
        ):
            await anext(first)
            assert front.load == (1, 1)

    asyncio.run(ask())


def test_shutdown_ends_what_runs() -> None:
    async def ask() -> None:
        front = AsyncLLM(toy())
        await front.check_health()
        stream = front.generate("ab", LONG, "mine")
        await anext(stream)
        await front.shutdown()
        await front.abort("mine")
        last = [output async for output in stream][-1]
        assert last.outputs[0].finish_reason == "cancelled"
        with pytest.raises(ForetokenError, match="closed"):
            await front.check_health()
        with pytest.raises(ForetokenError, match="closed"):
            await front.submit("ab", SHORT)

    asyncio.run(ask())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_without_its_thread_is_told() -> None:
    async def ask() -> None:
        front = AsyncLLM(toy())
        assert (await written(front, "ab", SHORT)).text

        def ends(_: RequestOutput) -> None:
            raise SystemExit

        # an observer that raises, against its contract, ends the thread
        await front.submit("ab", SHORT, observer=ends)
        thread = front.llm.worker._thread
        assert thread is not None
        await asyncio.to_thread(thread.join)
        with pytest.raises(ForetokenError, match="has stopped"):
            await front.check_health()
        with pytest.raises(ForetokenError, match="has stopped"):
            await front.submit("ab", SHORT)

    asyncio.run(ask())


def test_options_of_a_loaded_llm(llm: LLM) -> None:
    with pytest.raises(ForetokenError, match="max_num_seqs"):
        AsyncLLM(llm, max_num_seqs=2)
    assert repr(AsyncLLM(llm)).startswith("AsyncLLM(")


def test_aborted_before_it_was_added(llm: LLM) -> None:
    """Its request is ended as soon as it is there."""

    async def ask() -> RequestOutput:
        front = AsyncLLM(llm)
        there, go = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            there.set()
            go.wait()

        llm.worker.submit(hold)
        await asyncio.to_thread(there.wait)
        stream = asyncio.create_task(front.submit("ab", LONG, "b"))
        while not front.load.waiting:
            await asyncio.sleep(0)
        ending = asyncio.create_task(front.abort("b"))
        await asyncio.sleep(0.01)
        go.set()
        time.sleep(0.2)
        output = None
        async for output in await stream:  # noqa: B007
            pass
        await ending
        assert output is not None
        return output

    output = asyncio.run(ask())
    assert output.outputs[0].finish_reason == "cancelled" and len(output.token_ids) < 20


def test_a_name_that_is_used_again(llm: LLM) -> None:
    """Closing what had it before leaves the new request known."""

    async def ask() -> None:
        front = AsyncLLM(llm)
        first = await front.submit("ab", SHORT, "x")
        async for _ in first:
            pass
        async with await front.submit("ab", LONG, "x") as second:
            first.close()
            assert sum(front.load) == 1
            await front.abort("x")
            output = [output async for output in second][-1]
            assert output.outputs[0].finish_reason == "cancelled"

    asyncio.run(ask())
