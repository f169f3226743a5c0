"""Serving: what each method reads, what is compared, and what a failure spoils."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from benchmarked import CHATS, SUITE, Breaks, Pair, plan, unit
from foretoken import LLM, ForetokenError
from foretoken.bench.record import BASELINE, Answer
from foretoken.bench.run.runner import Runner, _context
from foretoken.bench.suites import vicuna
from foretoken.bench.suites.suite import Prompt
from foretoken.drafters.online import Online
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.engine.prompts import text_ids


def test_a_stretched_context() -> None:
    """By YaRN, where a configuration names the length that was trained."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = transformers.Qwen3Config(max_position_embeddings=64, rope_parameters=rope)
    assert _context(config) == 256
    assert _context(transformers.Qwen3Config(max_position_embeddings=64)) == 64


def test_a_context_under_another_name(checkpoints: Pair, tmp_path: Path) -> None:
    """T5's configuration names none as others do; it is measured all the same."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints[0])
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_heads=2,
        num_layers=2,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    runner = Runner(plan((tmp_path, tmp_path), methods={"pld": {"method": "pld"}}))
    assert runner.context == 512
    runner.meter().round()
    found = runner.serve(unit(SUITE.prompts[1]))
    assert [(a.method, a.error, a.sameness) for a in found] == [
        (BASELINE, None, "identical"),
        ("pld", None, "identical"),
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_group_says_what_its_members_say_alone(runner: Runner, temperature: float) -> None:
    """Served together or alone, each prompt gets the same tokens."""
    together = runner.serve(unit(*CHATS, size=2, temperature=temperature))
    alone = [a for p in CHATS for a in runner.serve(unit(p, temperature=temperature))]
    texts = {(a.method, a.id, a.turn): a.token_ids for a in alone}
    assert {(a.method, a.id, a.turn): a.token_ids for a in together} == texts
    assert len(together) == 2 * 2 * 3
    assert {a.group for a in together} == {"chat-1+1"} and {a.group for a in alone} == {
        "chat-1",
        "chat-2",
    }


def test_what_caches_hold_is_in_each_answer(runner: Runner) -> None:
    """The draft model's too."""
    held = {a.method: a.kv_cache_mib or 0.0 for a in runner.serve(unit(CHATS[0]))}
    assert held["sps"] > held[BASELINE] > 0


class Spy:
    """Stands in for a method's `generate` and writes down what it reads."""

    def __init__(self, inner: Any, read: list[tuple[int, ...]]) -> None:
        self.inner, self.read = inner, read

    def __call__(self, prompts: Any, *rest: Any) -> Any:
        self.read += map(tuple, prompts)
        return self.inner(prompts, *rest)


def test_later_turns_follow_plain_decoding(checkpoints: Pair) -> None:
    """All methods read the same second turn, unless each is to continue its own answers."""
    for own, readings in ((False, 1), (True, 2)):
        runner = Runner(plan(checkpoints, own_history=own))
        read: list[tuple[int, ...]] = []
        for llm in runner.llms.values():
            llm.generate = Spy(llm.generate, read)  # type: ignore[method-assign, assignment]
        found = runner.serve(unit(CHATS[0], temperature=1.0))
        said = {a.method: a.text for a in found if a.turn == 0}
        assert said["sps"] != said[BASELINE]  # else nothing is told apart here
        assert len(set(read[3:])) == readings
        for other in (a for a in found if a.turn == 1):
            claimed = other.method == "pld" or (other.method == BASELINE)
            assert (other.sameness is not None) == claimed


def test_no_cell_has_a_first_method_of_its_own(
    checkpoints: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where temperatures and batch sizes take turns as two methods do."""
    runner = Runner(plan(checkpoints, methods={"pld": {"method": "pld"}}))
    asked: list[str] = []
    generate = runner._generate

    def noted(label: str, questions: Any) -> Any:
        asked.append(label)
        return generate(label, questions)

    monkeypatch.setattr(runner, "_generate", noted)
    firsts: dict[tuple[float, int], list[str]] = {}
    for _ in range(2):
        for temperature, size in itertools.product((0.0, 1.0), (1, 2)):
            asked.clear()
            runner.serve(unit(*CHATS[:size], size=size, temperature=temperature))
            firsts.setdefault((temperature, size), []).append(asked[0])
    assert all(set(found) == set(runner.labels) for found in firsts.values())


def test_every_repeat_reads_its_prompt(checkpoints: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is quicker for what an earlier one has read."""
    runner, cached = Runner(plan(checkpoints, repeats=2)), list[int]()
    for llm in runner.llms.values():

        def noted(*given: Any, generate: Any = llm.generate) -> Any:
            outputs = generate(*given)
            cached.extend(output.num_cached_tokens for output in outputs)
            return outputs

        monkeypatch.setattr(llm, "generate", noted)
    runner.serve(unit(SUITE.prompts[1]))
    assert cached == [0] * 2 * len(runner.labels)


def test_methods_come_and_go(checkpoints: Pair) -> None:
    """One more on the same weights, or a reason; those that leave are closed."""
    runner = Runner(plan(checkpoints, methods={"pld": {"method": "pld"}}, lenient=True))
    pld = runner.llms["pld"]
    runner.add("suffix", {"method": "suffix"})
    runner.add("bad", {"method": "sps", "model": "./nowhere"})
    assert runner.labels == [BASELINE, "pld", "suffix"] and "nowhere" in runner.not_run["bad"]
    runner.keep(["suffix"])
    assert {a.method for a in runner.serve(unit(SUITE.prompts[1]))} == {BASELINE, "suffix"}
    assert "closed" in repr(pld) and runner.llms["suffix"].model is runner.plain.model


def test_scores_and_likelihood(checkpoints: Pair) -> None:
    """Plain decoding is weighed too as soon as an approximate method is."""
    draft = str(checkpoints[1])
    exact = {"method": "sps", "model": draft}
    methods = {"near": {**exact, "verifier": "lenience"}, "sps": exact}
    runner = Runner(plan(checkpoints, methods=methods))
    found = {a.method: a for a in runner.serve(unit(SUITE.prompts[1], temperature=1.0))}
    assert all(a.scores == {"accuracy": 0.0, "rouge_l": 0.0} for a in found.values())
    assert found["near"].log_likelihood is not None and found["sps"].log_likelihood is None
    plain = found[BASELINE]
    assert plain.log_likelihood is not None and plain.log_likelihood < 0


def test_a_prompts_own_limits(runner: Runner) -> None:
    """The suite's limit where it is lower, its stop strings, and its system message."""
    base = Prompt("p", "qa", ("Who?",), max_tokens=99)
    [first, *_] = runner.serve(unit(base))
    assert len(first.token_ids) == 12
    short = Prompt("p", "qa", ("Who?",), max_tokens=5, system="Be brief.")
    [second, *_] = runner.serve(unit(short))
    assert len(second.token_ids) == 5 and second.prompt_tokens > first.prompt_tokens
    [third, *_] = runner.serve(unit(Prompt("p", "qa", ("Who?",), stop=(first.text[3],))))
    assert third.finish_reason == "stop" and len(third.token_ids) <= 4


def test_a_failed_answer_inherits_nothing(checkpoints: Pair) -> None:
    """The method fails the conversation and nobody else does; the next prompt is served again."""
    runner = Runner(plan(checkpoints, methods={"pld": {"method": "pld"}}))
    runner.serve(unit(SUITE.prompts[1]))  # numbers that could be inherited
    Breaks(runner, "pld")
    found = runner.serve(unit(CHATS[0]))
    assert [(a.method, a.turn, a.error is None) for a in found] == [
        (BASELINE, 0, True),
        ("pld", 0, False),
        (BASELINE, 1, True),
        ("pld", 1, False),
    ]
    for bad in (a for a in found if a.error):
        assert bad.error == "RuntimeError: no memory left" and bad.finish_reason == "error"
        assert not (bad.token_ids or bad.text or bad.passes or bad.decoding or bad.drafted)
        assert not any(bad.seconds.values()) and bad.sameness is None
    assert all(a.error is None for a in runner.serve(unit(CHATS[1])))


def test_a_drafter_object_serves_again_after_a_failure(checkpoints: Pair) -> None:
    """What failed is closed before it is loaded once more: an object drafts for one at a time."""
    runner = Runner(plan(checkpoints, methods={"own": {"method": PromptLookup()}}))
    Breaks(runner, "own")
    assert any(a.error for a in runner.serve(unit(CHATS[0])))
    assert all(a.error is None for a in runner.serve(unit(CHATS[1])))


def test_what_is_loaded_again_is_warmed_up_again(
    checkpoints: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next answer is not its first."""
    runner = Runner(plan(checkpoints, methods={"pld": {"method": "pld"}}))
    runner.warm_up(SUITE.prompts[1])
    Breaks(runner, "pld")
    warmed = list[LLM]()
    monkeypatch.setattr(runner, "_warm", warmed.append)
    assert any(a.error for a in runner.serve(unit(CHATS[0])))
    assert warmed == [runner.llms["pld"]]


def test_without_plain_decoding_all_have_failed(checkpoints: Pair) -> None:
    """There is nothing to compare the others with."""
    runner = Runner(plan(checkpoints, methods={"pld": {"method": "pld"}}))
    Breaks(runner, BASELINE)
    found = runner.serve(unit(CHATS[0]))
    assert len(found) == 4 and all(a.error and not a.token_ids for a in found)
    assert found[1].error == "plain decoding failed: RuntimeError: no memory left"


def test_one_of_a_group_fails_alone(checkpoints: Pair) -> None:
    """A request that the engine refuses leaves the others' time to the others."""
    runner = Runner(plan(checkpoints, batch_sizes=(2,), methods={"pld": {"method": "pld"}}))
    endless = Prompt("chat-3", "chat", ("x" * 5000,))
    found = runner.serve(unit(SUITE.prompts[1], endless, size=2))
    assert {(a.id, a.error is None) for a in found} == {("qa-1", True), ("chat-3", False)}
    good = next(a for a in found if a.method == BASELINE and a.error is None)
    assert good.engine_steps == good.passes


def test_methods_that_a_target_cannot_serve(checkpoints: Pair) -> None:
    """Left out with the reason where all were asked for, and else an error."""
    methods = {"sps": {"method": "sps", "model": "mini-draft"}}
    with pytest.raises(ForetokenError, match="vocabulary"):
        Runner(plan(checkpoints, methods=methods))
    runner = Runner(plan(checkpoints, methods=methods, lenient=True))
    assert runner.labels == [BASELINE] and "vocabulary" in runner.not_run["sps"]


def test_drafters_forget_between_answers(
    checkpoints: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a drafter shares between requests is reset for each answer, unless it is to stay."""
    for warm, expected in ((False, 2), (True, 0)):
        runner = Runner(
            plan(checkpoints, methods={"llma": {"method": "llma"}}, temperatures=(0.0,), warm=warm)
        )
        shared, resets = runner.llms["llma"].engine.drafter.shared, []
        assert shared is not None
        reset = shared.reset
        monkeypatch.setattr(shared, "reset", lambda reset=reset, to=resets: to.append(reset()))
        runner.warm_up(CHATS[1])
        assert len(resets) == 1, "what it was warmed up with was never asked"
        resets.clear()
        found: list[Answer] = runner.serve(unit(CHATS[0]))
        assert len(found) == 4 and len(resets) == expected


def test_nothing_learns_during_another_methods_answers(
    checkpoints: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training step that an answer began ends before the next one begins, and is the time of the
    method whose it is."""
    online = {"method": "online", "model": str(checkpoints[1]), "every": 1}
    runner = Runner(plan(checkpoints, methods={"online": online}, temperatures=(0.0,), warm=True))
    drafter = runner.llms["online"].engine.drafter
    assert isinstance(drafter, Online)
    learner, under_way = drafter.learner, []
    step = learner._step
    monkeypatch.setattr(learner, "_step", lambda examples: (time.sleep(0.15), step(examples))[1])
    generate = runner.plain.generate

    def noted(*given: Any) -> Any:
        under_way.append(learner._job)
        return generate(*given)

    monkeypatch.setattr(runner.plain, "generate", noted)
    found = [a for _ in range(4) for a in runner.serve(unit(CHATS[0]))]
    assert learner.version and under_way and not any(under_way)
    assert any(a.seconds["other"] > 0.1 for a in found if a.method == "online")


@pytest.mark.parametrize("template", [True, False])
def test_a_prompt_that_no_tokenizer_reads(runner: Runner, template: bool) -> None:
    """Is refused by its name, with a chat template and without."""
    kept = runner.plain.tokenizer.chat_template
    runner.plain.tokenizer.chat_template = kept if template else None
    try:
        with pytest.raises(ForetokenError, match=r"Prompt 'odd': .* half of a surrogate pair"):
            runner.fitting([Prompt("odd", "qa", ("a \ud83d",))])
    finally:
        runner.plain.tokenizer.chat_template = kept


@pytest.mark.parametrize("own", [False, True])
def test_vicunas_template(checkpoints: Pair, own: bool) -> None:
    """Instead of the target's own, where that is asked; an answer stands between two turns."""
    asked = Runner(plan(checkpoints, methods={}, template=None if own else "vicuna"))
    ids = asked.input_ids(CHATS[0], ["Ho."])
    text = vicuna.written(CHATS[0].turns, ["Ho."])
    assert (ids == text_ids(text, asked.plain.tokenizer)) != own


def test_a_rule_with_noise_of_its_own_claims_no_text(checkpoints: Pair) -> None:
    """At a temperature above 0: its texts are as good as plain decoding's, and others."""
    methods = {"pld": {"method": "pld"}, "coupled": {"method": "pld", "verifier": "gumbel"}}
    runner = Runner(plan(checkpoints, methods=methods))
    for temperature, claims in ((0.0, True), (1.0, False)):
        found = {a.method: a for a in runner.serve(unit(SUITE.prompts[1], temperature=temperature))}
        assert found["pld"].sameness == "identical"
        assert (found["coupled"].sameness is not None) == claims


def test_what_an_answer_takes_is_its_own(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, energy and what caches held are counted anew for each: a long one leaves nothing."""
    resets = list[str]()
    for name in ("_memory", "_energy"):
        counter = SimpleNamespace(
            reset=lambda name=name: resets.append(name), mib=lambda: 1.0, joules=lambda: None
        )
        monkeypatch.setattr(runner, name, counter)
    held = [
        {a.method: a.kv_cache_mib or 0.0 for a in runner.serve(unit(Prompt(said, "qa", (said,))))}
        for said in ("x" * 400, "x")
    ]
    assert all(held[0][method] > 2 * held[1][method] > 0 for method in runner.labels)
    assert resets == ["_memory", "_energy"] * (2 * 3 * len(runner.labels))


def test_a_conversation_without_a_chat_template(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lines of text, the system message first."""
    monkeypatch.setattr(runner.plain.tokenizer, "chat_template", None)
    prompt = Prompt("p", "qa", ("One?", "Two?"), system="Be brief.")
    said = text_ids("Be brief.\nOne?\nYes.\nTwo?", runner.plain.tokenizer)
    assert runner.input_ids(prompt, ["Yes."]) == said
