"""Which prompts go on from what the caches still have, and what nobody may notice of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import PROMPTS, engine_of, finish, served, written
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.models.seq2seq.target import target_for
from foretoken.protocols import Drafter
from foretoken.testing import Pair, TableModel, tiny_transformers
from foretoken.testing.checks import SAMPLED, greedy_reference
from foretoken.verify.speculative import Speculative
from seq2seq_models import SOURCES, native_of, tiny

GREEDY = SamplingParams(temperature=0, max_tokens=6)
SEEDED = replace(SAMPLED, max_tokens=6)
MODEL = TableModel.random(7, seed=3)


def table_engine(
    model: TableModel = MODEL,
    drafter: Drafter | None = None,
    slots: int = 3,
    length: int = 450,
    **options: Any,
) -> Engine:
    pair = Pair(model, model)
    given = {"slots": slots, "length": length, "chunk": 8, "prefix_caching": True}
    return engine_of(pair, drafter, **given, **options)


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("memory", [None, 3])
def test_any_history(
    window: int | None, memory: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Random prompts that begin alike, cancellations, several samples, few slots, little memory and
    layers that forget what is behind their window: each request writes what it writes alone; none
    waits because of what is kept; what is filled stays within the budget."""
    model = TableModel.random(7, seed=3, window=window)
    hits = 0
    for seed in range(6):
        rng = random.Random(seed)
        slots = rng.choice([1, 2, 5])
        engine = table_engine(model, SmallLM(model.noisy(0.3), 3), slots, rule=Speculative())
        budget = engine.target.budget
        budget.limit = memory and memory * budget.needs(420)
        long = [rng.randrange(7) for _ in range(330)]
        history: list[list[int]] = [long[:20]]
        requests: list[Request] = []
        for _ in range(25):
            old = rng.choice(history)
            cut = rng.randrange(len(old) + 1) if rng.random() < 0.4 else len(old)
            more = [rng.randrange(7) for _ in range(rng.randrange(1, 9))]
            prompt = [*(long if rng.random() < 0.1 else old[:cut]), *more][:400]
            params = SamplingParams(
                temperature=0, n=1, max_tokens=rng.randrange(1, 12), cache_salt=rng.choice("ab")
            )
            requests.append(engine.add(prompt, params))
            for _ in range(rng.randrange(8)):
                engine.step()
                holds(engine)
            if rng.random() < 0.1:
                engine.cancel(rng.choice(requests).id)
            if rng.random() < 0.05:
                engine.prefixes.reset()
            history += [[*r.prompt, *written(r)[0]] for r in requests if r.finished]
        while engine.busy:
            engine.step()
            holds(engine)
        assert budget.reserved == 0 and budget.written == budget.warm
        engine.prefixes.reset()
        assert budget.written == 0
        hits += engine.stats.prefix_cache_hits
        for request in requests:
            [tokens] = written(request)
            assert tokens == greedy_reference(model, request.prompt, len(tokens))
            full = request.samples[0].output.finish_reason == "length"
            assert not full or len(tokens) == request.params.max_tokens
    assert hits > 700 and not caplog.records


def holds(engine: Engine) -> None:
    """Memory is within its bounds, and whoever is next in turn waits for others alone."""
    budget = engine.target.budget
    if budget.limit is not None:
        assert budget.written <= budget.reserved + budget.warm <= budget.limit
        if engine._waiting and engine.target.free and not engine._running:
            assert budget.holds(engine._waiting[0].longest)


def test_two_conversations_by_turns() -> None:
    """Each turn reads what is new alone: the other conversation takes another slot, and a turn goes
    on in the slot of the one before it."""
    engine = table_engine(slots=2)
    texts, cached = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 6, 5, 4]], []
    for _ in range(4):
        for text in texts:
            request = served(engine, text, GREEDY)
            cached.append(request.snapshot().num_cached_tokens)
            text += written(request)[0]
            assert cached[-1] in (0, 3, len(text) - 6 - 3), (cached, len(text))
            text += [0, 1]
    assert cached == [0, 3, 11, 11, 19, 19, 27, 27]
    assert engine.target.cache.warm <= engine.target.cache.written
    assert engine.stats.prefix_cache_hits == sum(cached)
    assert engine.stats.prefix_cache_queries == 2 * (6 + 14 + 22 + 30)


def test_at_most_the_token_before_the_root() -> None:
    """The whole prompt again: its last token is the root, which no cache holds."""
    engine = table_engine()
    prompt = [1, 2, 3, 4, 5]
    first, again = served(engine, prompt, GREEDY), served(engine, prompt, GREEDY)
    assert again.snapshot().num_cached_tokens == 4 and written(again) == written(first)
    one = served(engine, [1], GREEDY)
    assert one.snapshot().num_cached_tokens == 0


def test_salts_keep_users_apart() -> None:
    """What one user sent tells another nothing, not even by the time that an answer takes."""
    engine, prompt = table_engine(slots=5), [1, 2, 3, 4, 5]
    cached = [
        served(engine, prompt, replace(GREEDY, cache_salt=salt)).snapshot().num_cached_tokens
        for salt in ("a", "b", None, "a", "b", None)
    ]
    assert cached == [0, 0, 0, 4, 4, 4]


def test_a_running_text_is_copied() -> None:
    """One that is still being written serves others that begin alike; their own ends differ."""
    engine = table_engine()
    first = engine.add([1, 2, 3, 4, 5, 6], replace(GREEDY, max_tokens=30))
    engine.step()
    engine.step()
    second = engine.add([1, 2, 3, 4, 0, 0], GREEDY)
    finish(engine)
    assert second.snapshot().num_cached_tokens == 4
    alone = table_engine()
    for request in (first, second):
        assert written(request) == written(served(alone, request.prompt, request.params))


def test_samples_look_up_once() -> None:
    """The second sample waits for the first and copies its prompt; each has its own text."""
    engine, anew = table_engine(), table_engine()
    prompt, params = [1, 2, 3, 4, 5], replace(SEEDED, n=3)
    served(engine, prompt[:4], GREEDY)
    request = served(engine, prompt, params)
    assert request.snapshot().num_cached_tokens == 4
    assert written(request) == written(served(anew, prompt, params))


def test_samples_by_turns_look_up_once() -> None:
    """In one slot the second sample begins when the first has ended: it goes on from its prompt,
    and what was looked up counts once a request."""
    engine, read = table_engine(slots=1), list[int]()
    prefill = engine.target.prefill

    def counted(sequences: Any, chunk: int) -> Any:
        read.extend(min(chunk, engine.target.pending(s)) for s in sequences)
        return prefill(sequences, chunk)

    engine.target.prefill = counted  # type: ignore[method-assign]
    prompt, params = [1, 2, 3, 4, 5], replace(SEEDED, n=2)
    request = served(engine, prompt, params)
    assert written(request) == written(served(table_engine(), prompt, params))
    assert sum(read) == 4
    assert (request.stats.prefix_cache_queries, request.stats.prefix_cache_hits) == (5, 0)


def test_what_is_forgotten() -> None:
    """`reset` forgets ended texts, and running ones as they end."""
    engine, prompt = table_engine(), [1, 2, 3, 4, 5]
    served(engine, prompt, GREEDY)
    running = engine.add([6, 5, 4, 3], GREEDY)
    engine.step()
    engine.prefixes.reset()
    finish(engine)
    assert running.finished and engine.target.budget.written == 0
    assert served(engine, prompt, GREEDY).snapshot().num_cached_tokens == 0
    assert served(engine, prompt, GREEDY).snapshot().num_cached_tokens == 4


def test_a_failure_leaves_nothing() -> None:
    """Of a request that failed nothing is kept, nor of those that start again after a pass."""

    class Failing(Nothing):
        calls = 0

        def observe(self, sequences: Any, steps: Any) -> None:
            self.calls += 1
            if self.calls in (3, 4):
                raise RuntimeError("once")

    engine = table_engine(MODEL, Failing())
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 6]]
    requests = [engine.add(prompt, GREEDY) for prompt in prompts]
    finish(engine)
    assert [request.error is None for request in requests] == [False, True]
    assert written(requests[1])[0] == greedy_reference(MODEL, prompts[1], 6)
    assert engine.target.budget.warm == 0  # it started again, and shares nothing
    assert engine.stats.prefix_cache_queries == len(prompts[1])


def test_prompts_whose_probabilities_are_wanted_are_read() -> None:
    engine, prompt = table_engine(), [1, 2, 3, 4, 5]
    params = replace(GREEDY, prompt_logprobs=1)
    first, again = served(engine, prompt, params), served(engine, prompt, params)
    assert first.prompt_logprobs == again.prompt_logprobs
    assert again.snapshot().num_cached_tokens == 0
    assert served(engine, prompt, GREEDY).snapshot().num_cached_tokens == 4


def test_windows_that_have_passed_a_beginning() -> None:
    """A layer that looks back 40 tokens has given back what is behind them: the next turn goes on
    from the text, and a prompt that leaves it early is read whole."""
    model, texts = TableModel.random(7, seed=3, window=40), [1, 2, 3, 4, 5] * 400
    engine = table_engine(model, length=4000, slots=3)
    answer = written(served(engine, texts, GREEDY))[0]
    assert engine.target.cache.warm < 1500 * 8  # bytes: a part is gone
    turn = [*texts, *answer, 3]
    for prompt, cached in (([*texts[:900], 6, 6], 0), (turn, len(turn) - 2), (texts[:300], 0)):
        request = served(engine, prompt, GREEDY)
        assert request.snapshot().num_cached_tokens == cached
        assert written(request)[0] == greedy_reference(model, prompt, 6)


def test_an_llm_does_it_unless_told_not_to(pair: Pair) -> None:
    """By vLLM's names: the option, the salt of a prompt, the counts, the reset."""
    prompt = {"prompt_token_ids": [5, 9, 2, 5, 9, 2, 5], "cache_salt": "mine"}
    theirs = {**prompt, "cache_salt": "theirs"}
    with LLM(pair.target, eos_ids=(), enable_prefix_caching=True) as llm:
        cached = [llm.generate(p, GREEDY)[0].num_cached_tokens for p in (prompt, prompt, theirs)]
        assert cached == [0, 6, 0]
        assert (llm.stats.prefix_cache_queries, llm.stats.prefix_cache_hits) == (21, 6)
        assert llm.reset_prefix_cache()
        assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
        with pytest.raises(ForetokenError, match="cache_salt is 3"):
            llm.generate({**prompt, "cache_salt": 3}, GREEDY)
        with pytest.raises(ForetokenError, match="cache_salt is ''"):
            SamplingParams(cache_salt="")
    with LLM(pair.target, eos_ids=(), enable_prefix_caching=False) as llm:
        assert [llm.generate(prompt, GREEDY)[0].num_cached_tokens for _ in "ab"] == [0, 0]
        assert llm.stats.prefix_cache_queries == 0


def test_a_loaded_model_may_change() -> None:
    """Its owner trains it between two calls: the text is that of the new weights, as the caches
    don't go on from the old ones' unless that was asked for; then they are told to forget."""
    model = tiny_transformers(97)
    prompt = [5, 9, 2, 5, 9, 2, 5, 40, 3, 3, 17]
    ids = torch.tensor([prompt])

    def trained() -> list[int]:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(-1.1)
        found = model.generate(ids, max_new_tokens=6, do_sample=False)
        return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    with LLM(model, eos_ids=()) as llm:
        llm.generate([prompt], GREEDY)
        expected = trained()
        [output] = llm.generate([prompt], GREEDY)
        assert (output.token_ids, output.num_cached_tokens) == (expected, 0)
    with LLM(model, eos_ids=(), enable_prefix_caching=True) as llm:
        assert [llm.generate([prompt], GREEDY)[0].num_cached_tokens for _ in "ab"] == [0, 10]
        expected = trained()
        llm.reset_prefix_cache()
        assert llm.generate([prompt], GREEDY)[0].token_ids == expected


def test_files_do_not_change(tmp_path: Path) -> None:
    """Caches go on from earlier texts, unless they are told not to."""
    tiny_transformers(97).save_pretrained(tmp_path)
    for given, cached in ((None, 6), (True, 6), (False, 0)):
        with LLM(tmp_path, eos_ids=(), enable_prefix_caching=given) as llm:
            llm.generate([PROMPTS[0]], GREEDY)
            assert llm.generate([PROMPTS[0]], GREEDY)[0].num_cached_tokens == cached


def test_a_source_is_read_anew() -> None:
    """An encoder–decoder's text begins alike for any source, and means something else: nothing is
    looked up, and nothing kept."""
    pair = Pair(native_of(tiny("t5")), native_of(tiny("t5")))
    engines = [sourced(pair, caching) for caching in (True, False)]
    for source in (SOURCES[0], SOURCES[0], SOURCES[1]):
        found, anew = (written(served(engine, source, GREEDY)) for engine in engines)
        assert found == anew
    budget = engines[0].target.budget
    assert (engines[0].stats.prefix_cache_queries, budget.written, budget.warm) == (0, 0, 0)


def sourced(pair: Pair, caching: bool) -> Engine:
    target = target_for(pair.target, 2, 40)
    drafter = SmallLM(pair.draft, 3)
    return Engine(target, drafter, Speculative(), prefix_caching=caching)


def test_a_draft_model_goes_on_too(pair: Pair) -> None:
    """It reads no more of a second turn than the target does, and drafts as if it had read all."""
    read: dict[int, list[int]] = {}

    class Counting(SmallLM):
        def observe(self, sequences: Any, steps: Any) -> None:
            if not steps[0].tokens:
                read.setdefault(id(self), []).append(self._lm.pending(sequences[0]))
            super().observe(sequences, steps)

    engines = [
        engine_of(pair, Counting(pair.draft, 3), rule=Speculative(), prefix_caching=caching)
        for caching in (True, False)
    ]
    text = list(range(5, 45))
    for turn in range(4):
        found, anew = (served(engine, text, SEEDED) for engine in engines)
        assert written(found) == written(anew)
        assert found.stats.drafted_at == anew.stats.drafted_at
        assert found.stats.accepted_at == anew.stats.accepted_at
        text += [*written(found)[0], 50 + turn, 60]
    once, anew_each_time = (read[id(engine.drafter)] for engine in engines)
    assert len(once) == len(anew_each_time) == 4
    assert max(once[1:]) < 12 and min(anew_each_time[1:]) > 40


def test_states_of_the_whole_prompt(pair: Pair) -> None:
    """A drafter that attends to the target's states of all tokens has the prompt read whole."""
    cached = [with_states(pair, Wants("c", (-1,)), whole) for whole in (True, False)]
    assert cached == [0, 0]


def test_states_of_the_last_token(pair: Pair) -> None:
    """A drafter that needs the state before the root has one token read."""
    wants = Wants("c", (-1,), last=1)
    assert [with_states(pair, wants, whole) for whole in (True, False)] == [5, 5]


def with_states(pair: Pair, wants: Wants, again: bool) -> int:
    """How much of a second prompt is cached for a drafter that wants this; it must see the rest."""
    seen: list[int] = []

    class Reading(Nothing):
        def observe(self, sequences: Any, steps: Any) -> None:
            seen.extend(step.read for step in steps)

    drafter = Reading()
    drafter.wants = wants
    engine = engine_of(pair, drafter, prefix_caching=True)
    prompt = [5, 9, 2, 5, 9, 2, 5]
    served(engine, prompt, GREEDY)
    seen.clear()
    request = served(engine, prompt if again else [*prompt[:6], 8], GREEDY)
    assert sum(seen) == 6 - request.snapshot().num_cached_tokens
    return request.snapshot().num_cached_tokens


def test_one_slot() -> None:
    """A text that leaves another early takes its place, and nothing of it is left."""
    engine = table_engine(slots=1)
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    served(engine, text, GREEDY)
    request = engine.add([*text[:4], 0], GREEDY)
    engine.step()
    assert request.snapshot().num_cached_tokens == 4
    length = engine.target.cache.lengths[0]
    assert not engine.target.cache.layer[0].keys[0, :, length + 2 :].any()
    finish(engine)
    assert written(request)[0] == greedy_reference(MODEL, request.prompt, 6)


def test_the_oldest_is_forgotten() -> None:
    """Three texts in two slots: the one that was used last stays."""
    engine = table_engine(slots=2)
    texts = [[1, 2, 3, 4], [2, 2, 3, 4], [3, 2, 3, 4]]
    cached = [
        served(engine, texts[number], GREEDY).snapshot().num_cached_tokens
        for number in (0, 1, 2, 1, 0, 1)
    ]
    assert cached == [0, 0, 0, 3, 0, 3]


def test_little_memory() -> None:
    """What is kept stands in nobody's way: four texts of two pages, and memory for two."""
    engine = table_engine(slots=8, length=1000)
    budget = engine.target.budget
    budget.limit = 2 * budget.needs(700)
    rng = random.Random(0)
    for _ in range(4):
        request = engine.add([rng.randrange(7) for _ in range(600)], GREEDY)
        engine.step()
        assert len(engine._running) == 1
        while engine.busy:
            engine.step()
            assert budget.written <= budget.limit
        assert len(written(request)[0]) == 6
    assert 0 < budget.warm <= budget.limit
