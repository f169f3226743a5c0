"""Structured output when it is served: the same tokens as plain constrained decoding, whatever is
drafted; and what goes wrong with a grammar is its own request's."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest

from engines import BYTES
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import Engine
from foretoken.engine.grammars import Spelt, _has_reasoned
from foretoken.engine.request import Request
from foretoken.errors import Overloaded
from foretoken.grammar import compiling
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Oracle, Scripted, tiny_pair
from foretoken.verify.target_only import TargetOnly
from json_tokenizer import ids, pair, tokenizer

EOS = tokenizer().eos_token_id
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "regex": {"regex": "(ab|12){2,6}(red|green)+"},
    "choice": {"choice": ["red", "green tea", "blue"]},
    "lark": {"grammar": 'start: item ("," item)*\nitem: "ab" | "[" start "]" | /[0-9]{1,3}/\n'},
    "gbnf": {"grammar": 'root ::= ("ab" | "12" root | "[" root "]")'},
}
PROMPTS = ["hello ab", '{"name":', "[ab,12", "the"]


def engine_of(
    drafter: Drafter | None = None, rule: Any = None, slots: int = 4, **more: Any
) -> Engine:
    target = ModelTarget(pair().target, slots, 256, tokenizer=tokenizer())
    ends = frozenset({EOS})
    return Engine(target, drafter or Nothing(), rule or TargetOnly(), eos_ids=ends, **more)


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def served(
    params: SamplingParams | Seq[SamplingParams],
    drafter: Drafter | None = None,
    prompts: Seq[str] = PROMPTS,
    **options: Any,
) -> list[Request]:
    """Requests to the end."""
    engine = engine_of(drafter, **options)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    requests = [engine.add(ids(p), own) for p, own in zip(prompts, each, strict=True)]
    finish(engine)
    return requests


def tokens(requests: Seq[Request]) -> list[list[int]]:
    assert [r.error for r in requests] == [None] * len(requests)
    return [sample.output.token_ids for r in requests for sample in r.samples]


def texts(requests: Seq[Request]) -> list[str]:
    return [tokenizer().decode(t, skip_special_tokens=True) for t in tokens(requests)]


def params_of(form: str, **more: Any) -> SamplingParams:
    options = {"temperature": 0, "max_tokens": 40, "seed": 5} | more
    return SamplingParams(structured_outputs=FORMS[form], **options)


def tree_of_guesses() -> Drafter:
    """Trees that are mostly forbidden."""

    def paths(sequence: Sequence, budget: int) -> list[list[int]]:
        last = sequence.tokens[-1]
        forced = sequence.constraint.forced(sequence.output) if sequence.constraint else []
        return [[last], [*forced, last, 3], [*forced[:1], EOS, 7], [last + 1, last]]

    return Scripted(paths)


CHOSEN = [
    "grammar",
    "pld",
    "suffix",
    "token_recycling",
    "lookahead",
    "grammar+suffix",
    "grammar|pld",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0, 1.2])
def test_chosen_drafts_write_what_plain_constrained_decoding_writes(
    form: str, temperature: float
) -> None:
    """Token for token, on chains and trees, greedy and with a seed; alone and in a batch, by turns
    from form to form."""
    params = params_of(form, temperature=temperature)
    slots = 1 if (list(FORMS).index(form) + (temperature > 0)) % 2 else 4
    expected = tokens(served(params))
    for method in CHOSEN:
        drafter = build({"method": method}).drafter
        assert tokens(served(params, drafter, slots=slots)) == expected, method
    assert tokens(served(params, tree_of_guesses(), slots=slots)) == expected


MODELS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("sps", "specinfer", "mcsd", "staged", "grammar|sps", "grammar+sps")},
    "tli": {"tokenizer": BYTES},
    "slem": {"tokenizer": BYTES},
}


@pytest.mark.parametrize("method", MODELS)
def test_draft_models_write_the_same_at_temperature_0(method: str) -> None:
    """They propose under the mask too, with another tokenizer as well, beside what is forced."""
    for form in ("json", "regex"):
        model = tiny_pair(257).target if MODELS[method] else pair().draft
        built = build({"method": method, "model": model, **MODELS[method]})
        params = params_of(form)
        assert tokens(served(params, built.drafter, rule=built.verifier)) == tokens(served(params))


def test_drawn_drafts_write_whole_texts() -> None:
    """Above temperature 0, each text is one of the grammar's, under the rules for drawn nodes."""
    for method in ("sps", "mcsd"):
        built = build({"method": method, "model": pair().draft})
        params = params_of("json", temperature=1.0, max_tokens=120)
        for text in texts(served(params, built.drafter, rule=built.verifier)):
            assert set(json.loads(text)) == {"name", "age", "tags"}


@pytest.mark.parametrize("wrong_at", [0, 1, 2, 3])
def test_the_bonus_token_obeys_the_grammar_after_a_forbidden_draft(wrong_at: int) -> None:
    """A forbidden token at each place of a draft: what replaces it is plain decoding's."""
    params = params_of("json", temperature=0.9)
    expected = tokens(served(params))
    known = {tuple(ids(p)): text for p, text in zip(PROMPTS, expected, strict=True)}
    for cycle in (False, True):
        assert tokens(served(params, Oracle(known, 4, wrong_at, cycle=cycle))) == expected


def test_nothing_is_kept_after_the_end_of_the_grammar() -> None:
    """A draft that goes on after the text is whole, by the end of text or by anything."""
    params = params_of("choice")
    expected = tokens(served(params))
    for after in ([EOS, 3, 4], [3, EOS, 4], [EOS, EOS]):
        known = {tuple(ids(p)): [*t, *after] for p, t in zip(PROMPTS, expected, strict=True)}
        requests = served(params, Oracle(known, 8))
        assert tokens(requests) == expected
        assert {r.samples[0].output.finish_reason for r in requests} == {"stop"}


def test_a_drafter_that_always_proposes_what_is_forbidden(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is accepted, nothing is logged, the text is valid."""
    caplog.set_level(logging.WARNING)
    params = params_of("json")
    requests = served(params, Scripted(lambda s, n: [ids("\n\n\n")[:n]]))
    assert tokens(requests) == tokens(served(params))
    assert {r.stats.draft_acceptance_rate for r in requests} == {0} and not caplog.records


def test_constrained_and_free_requests_share_a_batch() -> None:
    """Drafts of different lengths; each request writes what it writes alone."""
    free = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
    each = [params_of("json"), free, params_of("regex", temperature=1.0), replace(free, seed=9)]
    alone = [tokens(served([own], prompts=[p]))[0] for own, p in zip(each, PROMPTS, strict=True)]
    for method in ("suffix", "grammar+suffix", "token_recycling"):
        assert tokens(served(each, build({"method": method}).drafter)) == alone


def test_samples_of_one_request_follow_their_own_texts() -> None:
    """n = 3 with different texts, each valid and that of its own draws."""
    params = params_of("json", temperature=1.0, n=3, max_tokens=120)
    [plain] = served(params, prompts=PROMPTS[:1])
    [drafted] = served(params, build({"method": "grammar+suffix"}).drafter, prompts=PROMPTS[:1])
    assert tokens([plain]) == tokens([drafted]) and len(set(texts([plain]))) == 3
    assert all(json.loads(text) for text in texts([plain]))


def test_a_request_starts_again_with_its_grammar() -> None:
    """A pass fails: what is written afterwards is what would have been written."""

    class Failing(Scripted):
        calls = 0

        def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
            Failing.calls += 1
            if Failing.calls == 6:
                raise RuntimeError("once")
            return super().draft(sequences, budgets, draws)

    params = params_of("json", temperature=0.9)
    drafter = Failing(lambda s, n: [s.constraint.forced(s.output)[:n]] if s.constraint else [])
    assert tokens(served(params, drafter)) == tokens(served(params)) and Failing.calls > 6


@pytest.mark.parametrize("place", range(5))
def test_reasoning_may_end_anywhere_in_an_accepted_block(place: int) -> None:
    """What follows the marker is constrained, wherever in a draft the marker is."""
    [end] = ids("</think>")
    form = FORMS["regex"] | {"reasoning_end": "</think>"}

    def think(scores: Any, at: int) -> Any:
        """The marker after `place` tokens."""
        scores[:, end] = 50.0 if at == place else -50.0
        return scores

    start = len(ids(PROMPTS[0]))
    params = SamplingParams(
        temperature=0,
        max_tokens=30,
        structured_outputs=form,
        logits_processors=[lambda given, scores: think(scores, given.shape[1] - start)],
    )
    [plain] = served(params, prompts=PROMPTS[:1])
    [written] = tokens([plain])
    assert written[place] == end
    answer = tokenizer().decode(written[place + 1 :], skip_special_tokens=True)
    assert answer.startswith(("ab", "12"))
    for size in (2, 6):
        oracle = Oracle({tuple(ids(PROMPTS[0])): written}, size)
        assert tokens(served(params, oracle, prompts=PROMPTS[:1])) == [written]


def test_a_prompt_that_ends_with_the_marker_has_reasoned() -> None:
    """As chat templates write it for an answer without reasoning."""
    form = FORMS["choice"] | {"reasoning_end": "</think>"}
    params = SamplingParams(temperature=0, max_tokens=12, structured_outputs=form)
    [over, still] = texts(served(params, prompts=["the</think>\n\n", "the</think> ab"]))
    assert over in FORMS["choice"]["choice"] and still not in FORMS["choice"]["choice"]


def test_unbounded_whitespace_ends_by_length() -> None:
    """Where white space is allowed and the model writes nothing else: no error, "length"."""
    form = {"json": SCHEMA, "disable_any_whitespace": False}
    params = SamplingParams(
        temperature=0, max_tokens=15, structured_outputs=form, logit_bias={ids("\n")[0]: 60.0}
    )
    [request] = served(params, prompts=PROMPTS[:1])
    assert request.error is None and request.samples[0].output.finish_reason == "length"
    assert tokenizer().decode(tokens([request])[0]).count("\n") > 10
    [compact] = served(replace(params, structured_outputs={"json": SCHEMA}), prompts=PROMPTS[:1])
    assert "\n" not in tokenizer().decode(tokens([compact])[0])


def test_the_end_of_the_grammar_ends_the_request() -> None:
    """Whatever min_tokens and ignore_eos ask for; a stop string ends it earlier."""
    for more in ({"min_tokens": 20}, {"ignore_eos": True}, {"stop_token_ids": [3]}):
        requests = served(params_of("choice", **more))
        assert set(texts(requests)) <= {*FORMS["choice"]["choice"]}
        assert {r.samples[0].output.finish_reason for r in requests} == {"stop"}
    free, held = (
        [len([*filter(EOS.__ne__, text)]) for text in tokens(served(params_of("regex", **more)))]
        for more in ({"temperature": 1.0}, {"temperature": 1.0, "min_tokens": 17})
    )
    assert min(free) < 17 <= min(held)
    [request] = served(params_of("json", stop='"age"'), prompts=PROMPTS[:1])
    assert request.samples[0].output.text.startswith('{"name":"')
    assert '"age"' not in request.samples[0].output.text


def test_the_end_of_text_comes_where_the_text_is_whole_only() -> None:
    """However much the model wants it."""
    params = params_of("json", logit_bias={EOS: 80.0}, max_tokens=100)
    for text in texts(served(params, build({"method": "suffix"}).drafter)):
        assert text.endswith("}")
        assert set(json.loads(text)) == {"name", "age", "tags"}


def test_nothing_allowed_is_an_error_of_the_one_request() -> None:
    """A grammar that other parameters leave no token names itself; the neighbour goes on."""
    banned = params_of("choice", bad_token_ids=sorted(set(range(40, 120))))
    [wrong, right] = served([banned, params_of("choice")], prompts=PROMPTS[:2])
    assert right.error is None and wrong.error is not None
    assert "structured_outputs" in wrong.error


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"regex": "("}, "regex of structured_outputs can't be used"),
        ({"grammar": "start: nothing"}, "grammar of structured_outputs can't be used"),
        ({"json": {"type": "colour"}}, "json of structured_outputs can't be used"),
    ],
)
def test_a_grammar_that_is_none_fails_before_anything_is_decoded(
    form: dict[str, Any], said: str
) -> None:
    """In one sentence, and for its own request only."""
    wrong = SamplingParams(temperature=0, structured_outputs=form)
    [refused, other] = served([wrong, params_of("choice")], prompts=PROMPTS[:2])
    assert refused.error is not None and refused.error.startswith(said), refused.error
    assert refused.samples[0].output.token_ids == [] and other.error is None
    assert refused.snapshot().wrong_grammar and not other.snapshot().wrong_grammar


def test_an_engine_that_fails_is_no_wrong_grammar() -> None:
    """Of a request that still waited for it."""
    engine = engine_of()
    request = engine.add(ids("ab"), params_of("regex"))
    [failed] = engine.fail_all(LookupError("inside"))
    assert failed.error is not None and failed.stats.queue_time is None
    assert not failed.wrong_grammar and not request.wrong_grammar


def test_compiling_holds_up_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are admitted and finish; cancelling while it compiles harms nobody; a time limit ends
    the wait."""
    real, go = compiling.Guidance.compile, threading.Event()

    def slow(self: Any, form: Any) -> Any:
        if form.regex is not None:
            go.wait(60)
        return real(self, form)

    monkeypatch.setattr(compiling.Guidance, "compile", slow)
    engine = engine_of()
    waits = engine.add(ids("ab"), params_of("regex"))
    dropped = engine.add(ids("ab"), params_of("regex"))
    free = engine.add(ids("ab"), SamplingParams(temperature=0, max_tokens=5))
    while not free.finished:
        engine.step()
    assert not waits.finished and waits.samples[0].output.token_ids == []
    engine.cancel(dropped.id)
    go.set()
    finish(engine)
    assert waits.error is None and waits.samples[0].output.token_ids
    go.clear()
    hurried = engine_of()
    hurried.add(ids("ab"), params_of("choice"))
    assert hurried._grammars._compiler is not None
    hurried._grammars._compiler._staff.seconds = 0.1
    late = hurried.add(ids("ab"), params_of("regex"))
    finish(hurried)
    go.set()
    assert late.error is not None and "within 0.1 s" in late.error


def test_a_grammar_that_others_keep_from_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no mistake of the request that waits for it, nor of one that asks for it later."""
    real, go = compiling.Guidance.compile, threading.Event()

    def endless(self: Any, form: Any) -> Any:
        if form.regex is not None:
            go.wait(60)
        return real(self, form)

    monkeypatch.setattr(compiling.Guidance, "compile", endless)
    for name in ("THREADS", "MOST_THREADS"):
        monkeypatch.setattr(compiling, name, 1)
    engine = engine_of()
    engine.add(ids("ab"), params_of("choice"))
    assert engine._grammars._compiler is not None
    engine._grammars._compiler._staff.seconds = 0.5
    forms = [replace(params_of("regex"), structured_outputs={"regex": x}) for x in "abc"]
    late, waits = [engine.add(ids("ab"), form) for form in forms[:2]]
    finish(engine)
    with pytest.raises(Overloaded, match="don't come to an end"):
        engine.add(ids("ab"), forms[2])
    go.set()
    assert late.error is not None and "within 0.5 s" in late.error
    assert waits.error is not None and "don't come to an end" in waits.error
    told = [(out.wrong_grammar, out.overloaded) for out in (late.snapshot(), waits.snapshot())]
    assert told == [(True, False), (False, True)]


@pytest.mark.parametrize("way", ["closed", "forgotten"])
def test_the_threads_that_compile_end_with_the_llm(way: str) -> None:
    before = set(threading.enumerate())
    llm = LLM(pair().target, tokenizer=tokenizer())
    assert llm.generate("ab", params_of("choice"))[0].error is None
    threads = set(threading.enumerate()) - before
    assert len(threads) == 1 + compiling.THREADS  # the engine's, too
    if way == "closed":
        llm.close()
    else:
        del llm
        gc.collect()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_grammars_of_requests_that_have_ended_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were cancelled, or their time was over, before its turn came."""
    real, go, begun = compiling.Guidance.compile, threading.Event(), list[str]()

    def slow(self: Any, form: Any) -> Any:
        begun.append(form.text)
        go.wait(60)
        return real(self, form)

    monkeypatch.setattr(compiling.Guidance, "compile", slow)
    engine = engine_of()

    def add(text: str, **more: Any) -> Request:
        form = {"regex": text}
        options = {"temperature": 0, "max_tokens": 9, "structured_outputs": form} | more
        return engine.add(ids("ab"), SamplingParams(**options))

    add("a"), add("b")
    while len(begun) < 2:
        time.sleep(0.01)
    cancelled, late, stays = add("green"), add("red", timeout=0.01), add("ab", n=2)
    engine.cancel(cancelled.id)
    while not late.finished:
        engine.step()
    go.set()
    finish(engine)
    assert sorted(begun) == ["a", "ab", "b"]
    assert stays.error is None and stays.samples[1].output.token_ids


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ForetokenError) as refused:
        call()
    return str(refused.value)


def test_what_cannot_be_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tokenizer, no library, a rule that reads raw logits, another backend."""
    bare = Engine(ModelTarget(pair().target, 1, 64), Nothing(), TargetOnly())
    assert "need a tokenizer" in refusal(lambda: bare.add([1], params_of("regex")))
    assert "'guidance'" in refusal(lambda: engine_of(structured_outputs_backend="guidence"))
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    said = refusal(lambda: engine_of().add([1], params_of("regex")))
    assert "pip install 'foretoken[grammar]'" in said
    wrong = params_of("regex", max_tokens=3)
    wrong = replace(wrong, structured_outputs={"regex": "a", "reasoning_end": [9999]})
    assert "reasoning_end" in refusal(lambda: engine_of().add([1], wrong))


def test_log_probabilities_and_learning_drafters_see_the_models_own_logits() -> None:
    """Masks are the request's: what `token_recycling` learns and logprobs stay raw."""
    params = params_of("choice", logprobs=3)
    [request] = served(params, prompts=PROMPTS[:1])
    [first, *_] = request.samples[0].output.logprobs or []
    assert len(first) >= 3 and all(entry.logprob > -60 for entry in first.values())


def test_what_is_learned_of_a_constrained_request_is_the_models_own() -> None:
    """The next tokens that `token_recycling` stores are those of a request without a grammar."""

    def learned(params: SamplingParams) -> list[int]:
        drafter = build({"method": "token_recycling"}).drafter
        served(params, drafter, prompts=PROMPTS[:1])
        rows = drafter._matrix.rows  # type: ignore[attr-defined]
        return sorted(rows[ids(PROMPTS[0])[-1]].tolist())

    constrained = params_of("choice", max_tokens=1)
    free = learned(replace(constrained, structured_outputs=None))
    assert learned(constrained) == free and min(free) >= 0


class Pieces:
    """A tokenizer of these texts."""

    TEXTS = ("a", "</", "think", ">", ">\n", "</think>\n", "1")

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(self.TEXTS[token] for token in ids)


@pytest.mark.parametrize(
    ("text", "begins", "over"),
    [
        ([0, 1, 2, 3, 6], 4, False),
        ([0, 1, 2, 4, 6], 4, False),
        ([5, 6], 1, False),
        ([0, 5], 2, True),
        ([0, 3, 1, 2, 4, 1, 2, 3], 5, True),
        ([0, 1, 2, 0, 3], None, False),
    ],
)
def test_a_marker_in_whatever_tokens(text: list[int], begins: int | None, over: bool) -> None:
    """One may have what follows the marker in it too; what was seen is not looked at again."""
    marker = Spelt("</think>", Pieces())
    assert marker.after(text, 0) == begins
    for seen in range(begins or 0):
        assert marker.after(text, seen) == begins
    assert _has_reasoned(text, "</think>", Pieces()) is over


@pytest.mark.parametrize(
    ("prompt", "marker", "over"),
    [
        ([0, 3], 3, True),
        ([0, 3, 6], 3, False),
        ([3, 0, 3], 3, True),
        ([0, 1, 2], [1, 2], True),
        ([0, 1, 2, 0], [1, 2], False),
        ([0], 3, False),
    ],
)
def test_a_marker_of_ids(prompt: list[int], marker: int | list[int], over: bool) -> None:
    """What follows it where it stands last."""
    assert _has_reasoned(prompt, marker, Pieces()) is over


def test_an_answer_after_a_marker_of_several_tokens() -> None:
    """That the model writes together with a line's end."""
    form = FORMS["choice"] | {"reasoning_end": "<answer>"}
    params = SamplingParams(temperature=0, max_tokens=12, structured_outputs=form)
    [over, still] = texts(served(params, prompts=["the<answer>\n", "the<answer> ab"]))
    assert over in FORMS["choice"]["choice"] and still not in FORMS["choice"]["choice"]
