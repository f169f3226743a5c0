"""The caches' memory: what is asked for, what requests reserve, who waits and who is refused."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import GREEDY, PROMPTS, engine_of, finish, known
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine import cache_memory
from foretoken.engine.cache_memory import Bound, Open, Sizes, bound_of, fitting, set_limit
from foretoken.engine.engine import Engine
from foretoken.models.budget import CacheBudget
from foretoken.models.native.backends.cuda_graphs import Graphs
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.testing import Pair, TableModel, logits_after, tiny_pair
from foretoken.verify.speculative import Speculative

CPU = torch.device("cpu")
GIB = 2**30


def bounded(pair: Pair, texts: int, drafter: Drafter | None = None, slots: int = 64) -> Engine:
    """An engine whose caches hold this many texts of 27 tokens, the longest here."""
    engine = engine_of(pair, drafter, slots=slots, length=64, rule=Speculative())
    budget = engine.target.budget
    budget.limit = texts * budget.needs(27)
    return engine


@pytest.mark.parametrize("drafting", [False, True])
def test_more_requests_than_the_budget_holds(pair: Pair, drafting: bool) -> None:
    """64 requests, and memory for 5: at most these run at a time, in the order of arrival, and all
    get their texts. A draft model's cache counts too."""
    drafter = SmallLM(pair.draft, 3) if drafting else None
    engine, texts = bounded(pair, 5, drafter), known(pair)
    requests = [engine.add(PROMPTS[i % 5], GREEDY) for i in range(64)]
    most, seen = 0, []
    while engine.busy:
        engine.step()
        budget = engine.target.budget
        assert budget.written <= budget.reserved <= budget.limit
        running = {sample.request.id for sample in engine._running}
        most = max(most, len(running))
        seen += sorted(running - set(seen))
    assert most >= 5 and seen == [request.id for request in requests]
    assert most < 12  # shorter ones need fewer pages
    for request in requests:
        assert request.samples[0].output.token_ids == texts[tuple(request.prompt)]
    assert (engine.target.budget.reserved, engine.target.budget.written) == (0, 0)


def test_a_request_that_never_fits(pair: Pair) -> None:
    """It is refused with both numbers; without max_tokens its text ends where the memory does."""
    engine = engine_of(pair, length=2048)
    budget = engine.target.budget
    budget.limit = budget.needs(700)
    most = budget.longest(2048)
    assert 700 <= most < 1200
    with pytest.raises(ForetokenError) as refused:
        engine.add([1] * 10, SamplingParams(temperature=0, max_tokens=2000))
    needed, given = (f"{size / 2**20:.3g} MiB" for size in (budget.needs(2010), budget.limit))
    assert str(refused.value) == (
        f"The request needs {needed} of cache for a prompt of 10 tokens and 2000 new ones, and the "
        f"caches may fill {given}; shorten the prompt, lower max_tokens or raise kv_cache_memory."
    )
    with pytest.raises(ForetokenError, match="shorten the prompt"):
        engine.add([1] * (most + 1), SamplingParams(temperature=0, max_tokens=None))
    request = engine.add([1] * (most - 3), SamplingParams(temperature=0, max_tokens=None))
    finish(engine)
    [sample] = request.samples
    assert len(sample.output.token_ids) == 3 and sample.output.finish_reason == "length"


def test_any_history_with_a_budget(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """Random arrivals, lengths and cancellations: the texts are those with a fixed cache, all of
    which is there from the beginning, and in the end nothing is filled or reserved."""
    for seed in range(4):
        with monkeypatch.context() as patched:
            patched.setattr("sys.platform", "other")
            fixed = engine_of(
                pair, SmallLM(pair.draft, 3), slots=40, length=128, rule=Speculative()
            )
        assert not fixed.target.cache.lazy
        free = bounded(pair, 3, SmallLM(pair.draft, 3))
        assert drive(fixed, seed) == drive(free, seed)
        assert (free.target.budget.reserved, free.target.budget.written) == (0, 0)


def drive(engine: Engine, seed: int) -> list[tuple[list[int], ...]]:
    """The texts of random requests, some of which are cancelled after random steps of their own."""
    rng, requests = random.Random(seed), []
    for _ in range(24):
        prompt = [rng.randrange(90) for _ in range(rng.randrange(1, 20))]
        params = SamplingParams(
            temperature=rng.choice([0, 1]), seed=rng.randrange(99), max_tokens=rng.randrange(1, 44)
        )
        requests.append(engine.add(prompt, replace(params, n=rng.choice([1, 1, 2]))))
    cancelled = rng.sample(requests, 4)
    waiting = list(cancelled)
    while engine.busy:
        engine.step()
        if waiting and rng.random() < 0.2:
            engine.cancel(waiting.pop().id)
    return [
        tuple(sample.output.token_ids for sample in request.samples)
        for request in requests
        if request not in cancelled
    ]


def test_what_a_cache_takes_is_seen_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph is captured for it, as over each cache that serves, and no memory is taken."""
    model, budget, captured = tiny_pair().target, CacheBudget(), []
    monkeypatch.setattr("sys.platform", "other")

    def capture(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        captured.append(budget.written)
        return lambda: None, run()

    model.run_by(partial(Graphs, capture=capture), "cuda_graphs")
    wanted, free = Sizes(8, 64), Open(True, True)
    assert fitting(model, wanted, free, bound_of("1GiB", None), budget) == wanted
    assert not captured
    cache = model.new_cache(2, 64, budget=budget)
    assert budget.written == 2 * budget.needs(64) > 0 and captured
    one = bound_of(budget.needs(64), None)
    assert fitting(model, wanted, free, one, CacheBudget()).sequences == 1
    del cache


@pytest.mark.parametrize(
    ("given", "free", "sizes"),
    [
        ({}, 10_000_000, (8, 256)),
        ({}, 1_400_000, (3, 256)),
        ({}, 200_000, (1, 117)),
        ({"max_num_seqs": 4}, 1_000_000, (4, 146)),
        ({"max_model_len": 100}, 500_000, (2, 100)),
        ({"max_num_seqs": 2, "kv_cache_memory": 400_000}, 10**9, (2, 234)),
    ],
)
def test_sizes_that_nobody_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pair: Pair,
    given: dict[str, Any],
    free: int,
    sizes: tuple[int, int],
) -> None:
    """Where all of a cache is there at once: fewer sequences first, then shorter ones, down to what
    fits, and one line that says so. It serves."""
    monkeypatch.setattr("sys.platform", "other")
    monkeypatch.setattr("foretoken.engine.cache_memory.free_memory", lambda: free)
    with LLM(pair.target, eos_ids=(), **given) as llm:
        target = llm.engine.target
        assert (target.slots, target.max_length) == sizes
        [output] = llm.generate([PROMPTS[1]], GREEDY)
        assert output.token_ids == known(pair)[tuple(PROMPTS[1])]
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    told = f"max_num_seqs is {sizes[0]}, and max_model_len {sizes[1]}."
    assert len(warned) == (sizes != (8, 256)) and all(each.endswith(told) for each in warned)


def test_sizes_that_were_asked_for(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """They are what was asked for, or refused; where memory is taken as it is written all are."""
    monkeypatch.setattr("foretoken.engine.cache_memory.free_memory", lambda: 200_000)
    with LLM(pair.target, eos_ids=()) as llm:
        assert (llm.engine.target.slots, llm.engine.target.max_length) == (8, 256)
    monkeypatch.setattr("sys.platform", "other")
    with pytest.raises(ForetokenError, match="lower max_model_len or max_num_seqs"):
        LLM(pair.target, eos_ids=(), max_num_seqs=8, max_model_len=256)


def test_windows_keep_what_they_see() -> None:
    """A model that looks back 40 tokens fills a bounded part of a long text's cache, and writes
    what it writes with all of it; a second sample whose prompt is gone reads it again."""
    model = TableModel.random(7, seed=8, window=40)
    target = ModelTarget(model, 2, 4000, 8)
    engine = Engine(target, SmallLM(model.noisy(0.3), 4), Speculative())
    target.budget.limit = target.budget.needs(4000)
    assert target.budget.needs(4000) == target.budget.needs(3000)
    prompt = [1, 2, 3] * 500
    request = engine.add(prompt, SamplingParams(temperature=0, max_tokens=1000))
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, target.cache.written)
    text = list(prompt)
    while len(text) < 2500:  # by what it sees; its entries repeat after 5 positions
        seen = text[(len(text) - 40) // 5 * 5 :]
        text.append(int(logits_after(model, seen).argmax()))
    assert request.samples[0].output.token_ids == text[len(prompt) :]
    assert most <= target.cache.needs(4000) < 2500 * target.cache.token_bytes


@pytest.mark.parametrize(
    ("memory", "found"),
    [
        (None, None),
        (4096, 4096),
        (0.25, 0.25),
        ("0.25", 0.25),
        ("4096", 4096),
        ("2GiB", 2 * GIB),
        ("1.5 gib", 3 * GIB // 2),
        ("3M", 3_000_000),
        ("1.5GB", 1_500_000_000),
    ],
)
def test_what_is_asked_for(memory: Any, found: float | None) -> None:
    assert bound_of(memory, None) == Bound(found, None)


@pytest.mark.parametrize("memory", [0, -1, 0.0, 1.5, "much", "", "-3", "4XB", "0", "1.5", "50%"])
def test_what_is_no_memory(memory: Any) -> None:
    with pytest.raises(ForetokenError, match="give bytes"):
        bound_of(memory, None)


def test_a_share_of_the_gpu() -> None:
    for given, why in (((4, 0.5), "give one"), ((None, 1.2), "at most 1"), ((None, 0.0), "above")):
        with pytest.raises(ForetokenError, match=why):
            bound_of(*given)
    with pytest.raises(ForetokenError, match="kv_cache_memory"):
        set_limit(CacheBudget(), bound_of(None, 0.9), CPU, 10)


def test_what_is_free(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By default all that is free but 1 GiB; a warning where one text of the context needs more."""
    monkeypatch.setattr("foretoken.engine.cache_memory.free_memory", lambda: 10 * GIB)
    cache: Any = SimpleCache(GIB)
    limits = []
    for memory in (None, 0.5, 3 * GIB):
        budget = CacheBudget()
        budget.join(cache)
        with caplog.at_level(logging.INFO, "foretoken"):
            set_limit(budget, bound_of(memory, None), CPU, 5)
        limits.append(budget.limit)
    assert limits == [9 * GIB, 5 * GIB, 3 * GIB]
    [warned] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "may fill 3 GiB" in warned and "5 tokens, needs 5 GiB: texts end after 3;" in warned
    assert "The caches may fill 9 GiB; a text of 5 tokens needs 5 GiB." in caplog.text
    cache.lazy, cache.written = False, 4 * GIB
    with pytest.raises(ForetokenError, match="take 4 GiB on cpu and may fill 3 GiB"):
        set_limit(budget, bound_of(3 * GIB, None), CPU, 5)


class SimpleCache:
    """`each` bytes a token."""

    lazy, written = True, 0

    def __init__(self, each: int) -> None:
        self.each = each

    def needs(self, tokens: int) -> int:
        return self.each * tokens


def test_an_llm_says_its_bytes(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """In its repr and in the log; the option bounds them, and a request that needs more is
    refused."""
    caplog.set_level(logging.INFO, "foretoken")
    with LLM(pair.target, eos_ids=(), kv_cache_memory="1MiB", max_num_seqs=256) as llm:
        assert "kv_cache='0 MiB of 1 MiB'" in repr(llm)
        assert "The caches may fill 1 MiB;" in caplog.text and repr(llm) in caplog.text
        [output] = llm.generate([PROMPTS[0]], GREEDY)
        assert output.token_ids == known(pair)[tuple(PROMPTS[0])]
    with (
        LLM(pair.target, eos_ids=(), kv_cache_memory=5) as llm,
        pytest.raises(ForetokenError, match=r"may fill 4.77e-06 MiB"),
    ):
        llm.generate(PROMPTS[0], GREEDY)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("impl", "backend"),
    [("native", "auto"), ("native", "plain"), ("transformers", "auto")],
)
def test_caches_of_16_bits(
    kind: str, impl: str, backend: str, checkpoints: tuple[Path, Path]
) -> None:
    """Half the bytes; speculation writes what plain decoding writes with the same cache, and the
    text of full precision differs in a late token at most."""
    target, draft = checkpoints
    given: dict[str, Any] = {"model_impl": impl, "backend": backend}
    given |= {"eos_ids": (), "kv_cache_memory": "64MiB"}
    params = SamplingParams(temperature=0, max_tokens=24)
    texts, needs = [], []
    for dtype, method in ((kind, None), (kind, {"method": "sps", "model": draft}), ("auto", None)):
        with LLM(target, kv_cache_dtype=dtype, speculative_config=method, **given) as llm:
            texts.append([output.token_ids for output in llm.generate(PROMPTS, params)])
            needs.append(llm.engine.target.cache.token_bytes)
    assert texts[0] == texts[1] and 2 * needs[0] == 2 * needs[1] == needs[2]
    assert [text[:2] for text in texts[0]] == [text[:2] for text in texts[2]]


def test_an_unknown_dtype() -> None:
    with pytest.raises(ForetokenError, match="kv_cache_dtype 'fp8'"):
        LLM("mini", kv_cache_dtype="fp8")


@pytest.mark.parametrize(
    ("bound", "limit"),
    [
        (Bound(None, None), 63 * GIB),
        (Bound(0.5, None), 32 * GIB),
        (Bound(None, 0.9), 56 * GIB),
        (Bound(40 * GIB, None), 40 * GIB),
    ],
)
def test_caches_that_are_there_already(
    bound: Bound, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they take their memory when they are made, and it was free before: 16 GiB of weights
    and 34 GiB of caches on 80 GiB."""

    class Cache:
        lazy, warm = False, 0
        written = 34 * GIB

        def needs(self, tokens: int) -> int:
            return GIB

    monkeypatch.setattr(cache_memory, "_memory", lambda device: (30 * GIB, 80 * GIB))
    budget, cache = CacheBudget(), Cache()
    budget.join(cache)  # type: ignore[arg-type]
    if limit < cache.written:
        with pytest.raises(ForetokenError, match=r"take 34 GiB .* may fill 32 GiB"):
            set_limit(budget, bound, torch.device("cuda"), 100)
        return
    set_limit(budget, bound, torch.device("cuda"), 100)
    assert budget.limit == limit


def test_a_gpu_that_is_taken_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the share that was asked for."""
    monkeypatch.setattr(cache_memory, "_memory", lambda device: (8 * GIB, 80 * GIB))
    with pytest.raises(ForetokenError) as told:
        set_limit(CacheBudget(), Bound(None, 0.9), torch.device("cuda"), 100)
    assert str(told.value) == (
        "gpu_memory_utilization is 0.9 and 90% of the GPU's memory is taken before any cache is; "
        "raise it."
    )


def test_a_short_text_does_not_overtake(pair: Pair) -> None:
    """It would fit beside the one that runs, and waits for the long one before it all the same."""
    engine = engine_of(pair, slots=4)
    budget = engine.target.budget
    params = [SamplingParams(temperature=0, max_tokens=most) for most in (100, 100, 2)]
    long, few = budget.needs(107), budget.needs(3)
    budget.limit = long + few
    assert 2 * long > budget.limit
    first, second, short = map(engine.add, (PROMPTS[0], PROMPTS[0], [1]), params)
    while not first.finished:
        engine.step()
        assert second.stats.queue_time is None and short.stats.queue_time is None
    finish(engine)
    assert [len(r.samples[0].output.token_ids) for r in (first, second, short)] == [100, 100, 2]
