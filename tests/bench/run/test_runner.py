"""Serving: who is served with whom, what each method reads, and what a failure spoils."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretoken import METHODS, ForetokenError
from foretoken.bench.measure import costs
from foretoken.bench.plan import (
    Plan,
    Unit,
    blocks,
    every_method,
    method_config,
    relocated,
    seed_of,
    select,
    shard_of,
    units,
)
from foretoken.bench.record import BASELINE, Answer, read_results
from foretoken.bench.run.resume import Samples
from foretoken.bench.run.runner import Runner
from foretoken.bench.run.session import measure
from foretoken.bench.suites.suite import Prompt, Suite
from foretoken.files import write_json

Pair = tuple[Path, Path]

SUITE = Suite(
    "some",
    "0" * 64,
    (
        Prompt("chat-1", "chat", ("Hello there.", "And then?")),
        Prompt("qa-1", "qa", ("Who wrote it?",), reference=(("Nobody",),)),
        Prompt("qa-2", "qa", ("What is it?",)),
        Prompt("chat-2", "chat", ("Good evening, sir.", "Why?")),
        Prompt("qa-3", "qa", ("When was that? Tell me the year.",)),
    ),
)


def plan(checkpoints: Pair, **given: Any) -> Plan:
    """Prompt lookup and a small model on the tiny target."""
    target, draft = map(str, checkpoints)
    methods = {"pld": {"method": "pld"}, "sps": {"method": "sps", "model": draft}}
    settings: dict[str, Any] = {
        "model": target,
        "name": "tiny",
        "methods": methods,
        "max_tokens": 12,
        **given,
    }
    return Plan(**settings)


@pytest.fixture(autouse=True)
def quick_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of passes have tests of their own."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)
    monkeypatch.setattr(costs, "WIDTHS", (1, 2))


@pytest.fixture(scope="module")
def runner(checkpoints: Pair) -> Runner:
    return Runner(plan(checkpoints, batch_sizes=(1, 2), repeats=3))


def unit(*prompts: Prompt, size: int = 1, temperature: float = 0.0) -> Unit:
    return Unit(prompts, size, temperature)


CHATS = tuple(p for p in SUITE.prompts if p.task == "chat")


# --- what to run ---------------------------------------------------------------------------------


def many(*counts: int) -> list[Prompt]:
    """Prompts of tasks a, b …; those of b have two turns each."""
    return [
        Prompt(f"{task}{i}", task, ("x",) * (2 if task == "b" else 1))
        for task, count in zip("abc", counts, strict=False)
        for i in range(count)
    ]


def test_groups_are_of_one_task_and_nest() -> None:
    """At 1, 2 and 3 together: blocks of six, and who is served with whom is the same alone."""
    [first, *_] = found = blocks(many(7, 2), [1, 2, 3])
    assert [[p.id for p in b] for b in found] == [
        ["a0", "a1", "a2", "a3", "a4", "a5"],
        ["b0", "b1"],
        ["a6"],
    ]
    asked = Plan(model="m", name="m", methods={}, batch_sizes=(1, 2, 3), temperatures=(0.0, 1.0))
    groups = [(u.batch_size, u.temperature, u.group) for u in units(first, asked)]
    assert groups[-4:] == [(3, 0.0, "a0+2"), (3, 1.0, "a0+2"), (3, 0.0, "a3+2"), (3, 1.0, "a3+2")]
    assert groups[:2] == [(1, 0.0, "a0"), (1, 1.0, "a0")] and len(groups) == 2 * (6 + 3 + 2)


def test_no_group_shrinks_behind_its_first_turn() -> None:
    """Who has more turns is served with others that have as many."""
    turns = {"p": 1, "q": 2, "r": 1, "s": 2}
    mixed = [Prompt(name, "a", ("x",) * count) for name, count in turns.items()]
    assert [[p.id for p in b] for b in blocks(mixed, [2])] == [["p", "r"], ["q", "s"]]


def test_shards_are_disjoint_and_whole() -> None:
    found = blocks(many(9, 5, 3), [1, 2])
    shards = [found[i::3] for i in range(3)]
    assert sorted(p.id for shard in shards for b in shard for p in b) == sorted(
        p.id for p in many(9, 5, 3)
    )
    assert sum(map(len, shards)) == len(found)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/", "-1/2", ""])
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(ForetokenError, match="1/4"):
        shard_of(text)
    assert shard_of("2/3") == (2, 3)


def test_selection() -> None:
    assert [p.id for p in select(SUITE, ["qa"], 2)] == ["qa-1", "qa-2"]
    assert len(select(SUITE, None, None)) == 5
    with pytest.raises(ForetokenError, match="Did you mean 'chat'"):
        select(SUITE, ["chats"], None)


def test_every_method_that_can_be_built() -> None:
    """What lacks a draft model or a datastore is named, with what it lacks."""
    found, reasons = every_method(None, 3)
    assert "sps" not in found and "draft" in reasons["sps"]
    assert found["pld"] == {"method": "pld", "num_speculative_tokens": 3}
    found, reasons = every_method("small", None)
    assert found["sps"] == {"method": "sps", "model": "small"}
    assert {row.name for row in METHODS.values() if row.trained} == {*reasons} - {"rest"}
    assert "trained for its target" in reasons["medusa"] and "datastore" in reasons["rest"]
    assert method_config("ngram", "small", None) == {"method": "ngram"}
    with pytest.raises(ForetokenError, match="Did you mean 'pld'"):
        method_config("pldd", None, None)


def test_draft_models_move() -> None:
    configs = {"a": {"method": "sps", "draft_model": "x"}, "b": {"method": "pld"}}
    assert relocated(configs, {"x": Path("y")})["a"] == {"method": "sps", "draft_model": "y"}


@pytest.mark.parametrize("given", [{"repeats": 2}, {"batch_sizes": (1, 2)}, {}])
def test_warm_drafters_see_a_prompt_once(given: dict[str, Any]) -> None:
    with pytest.raises(ForetokenError, match="just learned"):
        Plan(model="m", name="m", methods={}, warm=True, **given)
    Plan(model="m", name="m", methods={}, warm=True, temperatures=(1.0,))


# --- serving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_group_says_what_its_members_say_alone(runner: Runner, temperature: float) -> None:
    together = runner.serve(unit(*CHATS, size=2, temperature=temperature))
    alone = [a for p in CHATS for a in runner.serve(unit(p, temperature=temperature))]
    texts = {(a.method, a.id, a.turn): a.token_ids for a in alone}
    assert {(a.method, a.id, a.turn): a.token_ids for a in together} == texts
    assert len(together) == 2 * 2 * 3
    assert {a.group for a in together} == {"chat-1+1"} and {a.group for a in alone} == {
        "chat-1",
        "chat-2",
    }


def test_a_group_shares_its_time_equally(runner: Runner) -> None:
    """Only what each waited for is its own; a batch's passes are counted once."""
    for method in runner.labels:
        found = runner.serve(unit(*CHATS, size=2))
        first, second = (a for a in found if a.method == method and a.turn == 0)
        for part in ("prefill", "draft", "verify", "other"):
            assert first.seconds[part] == second.seconds[part]
        assert 2 * first.engine_steps == max(first.passes, second.passes)
        assert first.decodings == second.decodings and len(first.decodings) == 3
        assert first.decoding == pytest.approx(sorted(first.decodings)[1])


def test_shares_add_up_to_the_engines_own_clock(checkpoints: Pair) -> None:
    runner = Runner(plan(checkpoints, batch_sizes=(2,)))
    found = runner.serve(unit(SUITE.prompts[1], SUITE.prompts[2], size=2))
    for method, llm in runner.llms.items():
        own = [a.seconds for a in found if a.method == method]
        times = {part: sum(seconds[part] for seconds in own) for part in own[0]}
        assert times["prefill"] == pytest.approx(llm.stats.prefill_time)
        assert times["draft"] == pytest.approx(llm.stats.draft_time)
        assert times["verify"] == pytest.approx(llm.stats.verify_time)
        assert times["other"] == pytest.approx(llm.stats.other_time)


def test_what_an_answer_says(runner: Runner) -> None:
    for one in runner.serve(unit(CHATS[0], temperature=1.0)):
        claimed = one.method != "sps"
        assert (one.sameness in {"identical", "near_tie"}) if claimed else one.sameness is None
        assert len(one.token_ids) == len(one.accepted) == len(one.pieces)
        assert "".join(one.pieces) == one.text
        assert one.seed == seed_of(0, "chat-1", one.turn) and one.dtype == "float32"
        assert one.prompt_tokens > len(one.prompt) and one.error is None
        assert one.log_likelihood is None and one.strayed == 0
    assert seed_of(0, "chat-1", 0) != seed_of(0, "chat-2", 0) != seed_of(1, "chat-2", 0)


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


def test_methods_take_turns(runner: Runner) -> None:
    """No method is always first: three repeats begin with three methods."""
    assert {runner._order()[0] for _ in runner.labels} == set(runner.labels)


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
    base = Prompt("p", "qa", ("Who?",))
    [first, *_] = runner.serve(unit(base))
    assert len(first.token_ids) == 12
    short = Prompt("p", "qa", ("Who?",), max_tokens=5, system="Be brief.")
    [second, *_] = runner.serve(unit(short))
    assert len(second.token_ids) == 5 and second.prompt_tokens > first.prompt_tokens
    [third, *_] = runner.serve(unit(Prompt("p", "qa", ("Who?",), stop=(first.text[3],))))
    assert third.finish_reason == "stop" and len(third.token_ids) <= 4


# --- failures ------------------------------------------------------------------------------------


class Breaks:
    """Stands in for a method's `generate` and fails for one prompt."""

    def __init__(self, runner: Runner, label: str, times: int = 1) -> None:
        self.inner, self.left = runner.llms[label].generate, times
        runner.llms[label].generate = self  # type: ignore[method-assign, assignment]

    def __call__(self, prompts: Any, *rest: Any) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("no memory left")
        return self.inner(prompts, *rest)


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


def test_without_plain_decoding_all_have_failed(checkpoints: Pair) -> None:
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


def test_a_failed_repeat_is_a_failed_answer(checkpoints: Pair) -> None:
    runner = Runner(plan(checkpoints, repeats=3, methods={"pld": {"method": "pld"}}))
    Breaks(runner, "pld")
    [_, pld] = runner.serve(unit(SUITE.prompts[1]))
    assert pld.error is not None and not pld.token_ids


def test_methods_that_a_target_cannot_serve(checkpoints: Pair) -> None:
    """Left out with the reason where all were asked for, and else an error."""
    methods = {"sps": {"method": "sps", "model": "mini-draft"}}
    with pytest.raises(ForetokenError, match="vocabulary"):
        Runner(plan(checkpoints, methods=methods))
    runner = Runner(plan(checkpoints, methods=methods, lenient=True))
    assert runner.labels == [BASELINE] and "vocabulary" in runner.not_run["sps"]


# --- a whole measurement -------------------------------------------------------------------------


def test_prompts_without_room_are_skipped_and_counted(checkpoints: Pair, tmp_path: Path) -> None:
    """Never cut: 4096 tokens of context, of which 256 must be left after the last turn; the first
    turn's answer counts with all that it may have."""
    runner = Runner(plan(checkpoints, methods={}, temperatures=(0.0,), max_tokens=8))
    empty = len(runner._input_ids(Prompt("e", "qa", ("",)), []))
    fits = Prompt("fits", "qa", ("x" * (4096 - 256 - empty),))
    long = Prompt("long", "qa", ("x" * (4096 - 256 - empty + 1),))
    turns = len(runner._input_ids(Prompt("t", "qa", ("", "")), [""]))
    edge = Prompt("edge", "qa", ("x" * (4096 - 256 - turns - 8), ""))
    over = Prompt("over", "qa", ("x" * (4096 - 256 - turns - 7), ""))
    kept, skipped = runner.fitting([fits, long, edge, over])
    assert [p.id for p in kept] == ["fits", "edge"] and skipped == ["long", "over"]
    suite = Suite("s", "0" * 64, (long, SUITE.prompts[1]))
    results = measure(runner, suite, suite.prompts, Samples(tmp_path))
    assert results["suite"]["skipped"] == ["long"] and results["suite"]["prompts"] == 1
    with pytest.raises(ForetokenError, match="256 tokens"):
        measure(runner, suite, [long], Samples(tmp_path))


def test_a_small_measurement(checkpoints: Pair, tmp_path: Path) -> None:
    """Every run is there, the file keeps the contract, and the order is that of the plan."""
    runner = Runner(plan(checkpoints, batch_sizes=(1, 2)))
    found = measure(runner, SUITE, SUITE.prompts, Samples(tmp_path))
    write_json(tmp_path / "results.json", found)
    assert read_results(tmp_path / "results.json") == found
    keys = [(run["batch_size"], run["temperature"], run["method"]) for run in found["runs"]]
    names = [BASELINE, "pld", "sps"]
    assert keys == [(b, t, n) for b in (1, 2) for t in (0.0, 1.0) for n in names]
    assert found["suite"]["prompts"] == 5 and found["suite"]["turns"] == 7
    assert found["suite"]["history"] == "autoregressive" and not found["suite"]["warm"]
    assert found["costs"] is not None and set(found["costs"]["drafts"]) == {"pld", "sps"}
    for run in found["runs"]:
        assert run["failed"] == 0
        if run["method"] == BASELINE and run["tokens"]:
            assert run["speedup"] == 1 and run["mean_acceptance_length"] == 1
            assert run["draft_acceptance_rate"] is None


def test_a_budget_stops_behind_a_block(checkpoints: Pair, tmp_path: Path) -> None:
    """The first is always served, and whole: at both temperatures."""
    runner = Runner(plan(checkpoints, methods={}))
    samples = Samples(tmp_path)
    found = measure(runner, SUITE, SUITE.prompts, samples, until=0.0)
    assert {a.id for a in samples.answers} == {"chat-1"} and found["suite"]["prompts"] == 1
    assert {a.temperature for a in samples.answers} == {0.0, 1.0}


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
        found: list[Answer] = runner.serve(unit(CHATS[0]))
        assert len(found) == 4 and len(resets) == expected
