"""Measuring and reporting: the numbers, the contract of results.json, the pages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.bench import identity, metrics, record, rows
from foretoken.bench.environment import environment
from foretoken.bench.memory import PeakMemory
from foretoken.bench.record import Answer
from foretoken.bench.report import example, read_answers, samples, write_report
from foretoken.bench.runner import Plan, Runner, run_prompts
from foretoken.bench.suite import Prompt, Suite, load_suite
from foretoken.testing import Pair


def answer(**given: Any) -> Answer:
    """Four tokens in two passes, a tenth of a second in all."""
    seconds = {
        "prefill": 0.01, "draft": 0.02, "verify": 0.07, "other": 0.01, "ttft": 0.03, "total": 0.12,
    }  # fmt: skip
    plain = Answer(
        target="t", method="pld", temperature=0.0, id="a-1", task="a", turn=0, prompt="Hi <b>",
        text="w x y z", finish_reason="length", token_ids=[5, 6, 7, 8],
        pieces=["w", " x", " y", " <z>"], accepted=[True, True, False, False], passes=2, drafted=3,
        drafted_at=[2, 1], accepted_at=[1, 1], seconds=seconds, peak_memory_mib=10.0,
        sameness="identical",
    )  # fmt: skip
    return replace(plain, **given)


def plain(**given: Any) -> Answer:
    return answer(
        method="autoregressive", passes=4, drafted=0, drafted_at=[], accepted_at=[],
        accepted=[False] * 4, **given,
    )  # fmt: skip


def taking(seconds: float) -> dict[str, float]:
    return {**answer().seconds, "draft": 0.0, "other": 0.0, "verify": seconds}


# --- numbers -------------------------------------------------------------------------------------


def test_distinct_4() -> None:
    assert metrics.distinct_4([1, 2, 3]) == 1.0
    assert metrics.distinct_4(range(20)) == 1.0
    assert metrics.distinct_4([1] * 23) == 1 / 20
    assert metrics.distinct_4([1, 2, 1, 2, 1, 2]) == 2 / 3  # 1212 and 2121, of three


def test_looping_looks_at_every_turn() -> None:
    loop = plain(id="b", turn=1, token_ids=[1] * 9)
    assert metrics.looping([plain(id="a"), plain(id="b"), loop]) == ["b"]


def test_bootstrap_of_equal_prompts_is_a_point() -> None:
    assert metrics.bootstrap([10] * 5, [1.0] * 5, [10] * 5, [2.0] * 5) == [2.0, 2.0]


def test_bootstrap_of_one_prompt_is_nothing() -> None:
    assert metrics.bootstrap([10], [1.0], [10], [2.0]) is None


def test_bootstrap_known() -> None:
    """Half of the prompts are twice as fast, half are not faster: 100 of them, binomial."""
    fast, slow = [1.0] * 50, [2.0] * 50
    found = metrics.bootstrap([1] * 100, fast + slow, [1] * 100, [2.0] * 100)
    assert found is not None
    # k of 100 fast: speedup 200 / (200 - k); k stays within 40 … 60 in 95 of 100 resamples.
    assert found[0] == pytest.approx(200 / 160, abs=0.01)
    assert found[1] == pytest.approx(200 / 140, abs=0.015)


def test_bootstrap_is_paired() -> None:
    """Prompts differ a hundredfold in cost, and every one is exactly 3 times as fast."""
    costs = [0.01 * 1.6**i for i in range(10)]
    found = metrics.bootstrap([5] * 10, costs, [5] * 10, [3 * c for c in costs])
    assert found == pytest.approx([3.0, 3.0])


def test_measure() -> None:
    """Two prompts of four tokens: 0.1 s each against 0.2 s each."""
    mine = [answer(id=i) for i in "ab"]
    theirs = [plain(id=i, seconds=taking(0.2)) for i in "ab"]
    found = metrics.measure(mine, theirs)
    assert found["tokens_per_second"] == pytest.approx(40)
    assert found["speedup"] == pytest.approx(2)
    assert found["speedup_ci95"] == pytest.approx([2, 2])
    assert found["mean_acceptance_length"] == 2
    assert found["draft_acceptance_rate"] == pytest.approx(4 / 6)
    assert found["acceptance_rate_per_position"] == [0.5, 1.0]
    assert found["ms_per_step"] == pytest.approx({"draft": 10, "verify": 35, "other": 5})
    assert found["latency_ms"]["ttft_p50"] == pytest.approx(30)
    assert found["latency_ms"]["per_token_p99"] == pytest.approx(30)
    assert (found["target_passes"], found["tokens"], found["peak_memory_mib"]) == (4, 8, 10)
    same = {"prompts": 2, "identical": 2, "near_tie": 0, "different": 0}
    assert found["identical_to_autoregressive"] == same


def test_prefill_is_timed_apart() -> None:
    slow_prompt = {**answer().seconds, "prefill": 9.0}
    assert answer(seconds=slow_prompt).decoding == answer().decoding


def test_a_prompt_is_as_same_as_its_worst_turn() -> None:
    turns = [answer(), answer(turn=1, sameness="near_tie"), answer(id="b", sameness="different")]
    found = metrics.measure(turns, [])["identical_to_autoregressive"]
    assert found == {"prompts": 2, "identical": 0, "near_tie": 1, "different": 1}
    assert metrics.measure([answer(sameness=None)], [])["identical_to_autoregressive"] is None


def test_nothing_kept_is_null_and_not_an_error() -> None:
    found = metrics.runs([answer(), plain()], ["a-1"], baseline="autoregressive", repeats=1)
    assert [run["speedup"] for run in found] == [None, None]
    json.dumps(found, allow_nan=False)
    assert all(set(rows.cells(run)[2:]) == {rows.NONE} for run in found)


# --- identity ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(pair: Pair) -> LLM:
    return LLM(pair.target, max_num_seqs=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_wrong_token_is_no_near_tie(tiny: LLM, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=12, ignore_eos=True)
    [out] = tiny.generate([[1, 2, 3]], params)
    right = out.token_ids
    assert identity.compare(tiny, [1, 2, 3], params, right, right) == ("identical", None)
    wrong = [*right[:5], (right[5] + 1) % 90, *right[6:]]
    verdict, margin = identity.compare(tiny, [1, 2, 3], params, right, wrong)
    assert verdict == "different" and margin is not None and margin > 1e-9
    assert identity.compare(tiny, [1, 2, 3], params, right, right[:4])[0] == "different"


def test_margin_is_the_gap(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, logprobs=2, max_tokens=1)
    [out] = tiny.generate([[4, 9, 2]], params)
    assert out.outputs[0].logprobs is not None
    best, second = sorted((e.logprob for e in out.outputs[0].logprobs[0].values()), reverse=True)
    assert identity.margin_at(tiny, [4, 9, 2], params) == pytest.approx(best - second)
    monkeypatch.setitem(identity.TOLERANCE, torch.float64, 1e9)
    assert identity.compare(tiny, [4, 9, 2], params, [1], [2])[0] == "near_tie"


def test_sampled_margin_is_the_distance_to_an_edge(tiny: LLM) -> None:
    """Moving the law by less than the margin changes no token; the margin is below every edge."""
    params = SamplingParams(temperature=1.0, seed=5)
    assert 0 < identity.margin_at(tiny, [4, 9, 2], params) < 0.5
    assert not tiny.engine.busy


# --- prompts and environment ---------------------------------------------------------------------


def test_tasks_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": f"{t}{i}", "task": t, "turns": ["x"]} for t in "ab" for i in range(3)]
    path.write_text("\n".join(map(json.dumps, lines[:-1])))
    suite = load_suite(path, "some")
    assert [p.id for p in suite.in_turn()] == ["a0", "b0", "a1", "b1", "a2"]
    assert [p.id for p in suite.in_turn(1)] == ["a0", "b0"]


@pytest.mark.parametrize("content", ["", "no json", '{"id": "x"}', None])
def test_bad_prompts_are_one_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ForetokenError, match=r"prompts\.jsonl"):
        load_suite(path, "some")


def test_environment_is_complete() -> None:
    wanted = (
        "cpu cores memory_gib gpu os python torch transformers foretoken git_commit threads date"
    )
    found = environment()
    assert set(found) == set(wanted.split())
    assert found["cores"] >= 1 and json.dumps(found)


def test_peak_memory_rises() -> None:
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.mib()
    held = torch.ones(16 * 2**20)  # 64 MiB
    after = memory.mib()
    assert held[0] == 1
    if before is not None and after is not None:
        assert after >= before


# --- a whole small measurement -------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results.json and samples.jsonl of two methods on three prompts, and the report."""
    folder = tmp_path_factory.mktemp("measured")
    suite = Suite("three", "0" * 64, (
        Prompt("chat-1", "chat", ("Hello there.", "And then?")),
        Prompt("qa-1", "qa", ("Who <wrote> & read it?",)),
        Prompt("qa-2", "qa", ("What is it?",)),
    ))  # fmt: skip
    target, draft = map(str, checkpoints)
    plan = Plan(
        model=target, name="tiny", max_tokens=12,
        methods={"pld": {"method": "pld"}, "sps": {"method": "sps", "model": draft}},
    )  # fmt: skip
    runner = Runner(plan)
    runner.warm_up(suite.prompts[0])
    lines: list[str] = []
    answers = run_prompts(
        runner, suite.prompts, keep=lambda a: lines.append(a.line()), advance=lambda: None
    )
    record.write_text(folder / "samples.jsonl", "\n".join(lines) + "\n")
    record.write_json(folder / "results.json", runner.results(suite, answers))
    inflated = json.loads((folder / "results.json").read_text())
    inflated["target"]["inflated"] = "135m"
    record.write_json(folder / "results-135m.json", inflated)
    write_report(folder)
    return folder


def test_results_keep_the_contract(measured: Path) -> None:
    found = record.read_results(measured / "results.json")
    assert set(found) == {"schema", "environment", "target", "suite", "runs"}
    assert set(found["target"]) == {"name", "parameters", "dtype", "backend"}
    keys = [(run["method"], run["temperature"]) for run in found["runs"]]
    names = ["autoregressive", "pld", "sps"]
    assert sorted(keys) == sorted((n, t) for n in names for t in (0.0, 1.0))
    assert [k[1] for k in keys] == [0.0] * 3 + [1.0] * 3
    for run in found["runs"]:
        assert set(run["ms_per_step"]) == {"draft", "verify", "other"}
        assert set(run["latency_ms"]) == set(record.LATENCIES)
        if run["method"] == "autoregressive" and run["tokens"]:
            assert run["speedup"] == 1 and run["mean_acceptance_length"] == 1
            assert run["draft_acceptance_rate"] is None


def test_greedy_text_is_the_same_and_sampled_sps_claims_none(measured: Path) -> None:
    found = read_answers(measured / "samples.jsonl")
    assert len(found) == 4 * 3 * 2  # turns, methods, temperatures
    for one in found:
        claimed = one.method != "sps" or one.temperature == 0
        assert (one.sameness in {"identical", "near_tie"}) if claimed else one.sameness is None
        assert len(one.token_ids) == len(one.accepted) == len(one.pieces)
        assert "".join(one.pieces) == one.text
        assert sum(one.accepted) == len(one.token_ids) - one.passes or one.finish_reason == "length"


def test_methods_read_the_same_prompt(measured: Path) -> None:
    """A second turn follows plain decoding's answer for all, so greedy texts agree there too."""
    second = [a for a in read_answers(measured / "samples.jsonl") if a.turn == 1]
    assert len({tuple(a.token_ids) for a in second if a.temperature == 0}) == 1


@pytest.mark.parametrize("missing", ["runs", "suite", "schema"])
def test_a_broken_record_is_one_sentence(measured: Path, tmp_path: Path, missing: str) -> None:
    found = json.loads((measured / "results.json").read_text())
    del found[missing]
    (tmp_path / "results.json").write_text(json.dumps(found))
    with pytest.raises(ForetokenError, match=missing):
        write_report(tmp_path)
    found[missing] = 99
    with pytest.raises(ForetokenError):
        write_report(tmp_path / "nowhere")


def test_budget_stops_after_a_prompt() -> None:
    class Slow:
        def prompt(self, prompt: Prompt) -> list[Answer]:
            return [answer(id=prompt.id)]

    prompts = [Prompt(str(i), "a", ("x",)) for i in range(5)]
    seen: list[Answer] = []
    runner: Any = Slow()
    found = run_prompts(runner, prompts, keep=seen.append, advance=lambda: None, budget=0.0)
    assert [a.id for a in found] == ["0"] and seen == found


class Page(HTMLParser):
    """Everything that could make a browser ask for something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [f"{tag} {k}={v}" for k, v in attributes if k in {"src", "href", "srcset"}]
        if tag not in {"meta", "br", "link", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_is_self_contained(measured: Path) -> None:
    text = (measured / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.open and not page.loads
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"url\(|@import|https?://", text)
    assert len(text) < 500_000


def test_report_says_what_it_must(measured: Path) -> None:
    page = (measured / "report.html").read_text(encoding="utf-8")
    assert "Who &lt;wrote&gt; &amp; read it?" in page
    assert "<mark>" in page and 'class="badge">inflated' in page
    assert "same law" in page and "left out" in page
    text = (measured / "report.md").read_text(encoding="utf-8")
    assert "inflated to the 135m shape" in text and "| sps | 1 |" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in table)


def test_samples_prefer_prompts_that_do_not_loop(measured: Path) -> None:
    results = record.read_results(measured / "results.json")
    answers = read_answers(measured / "samples.jsonl")
    results["suite"]["left_out"] = ["qa-1"]
    chosen = {s.first.task: s.first.id for s in samples(results, answers)}
    assert chosen == {"chat": "chat-1", "qa": "qa-2"}
    shown = example(results, answers, "sps")
    assert shown is not None and shown.temperature == 0 and shown.method == "sps"


def test_words() -> None:
    base = {"prompts": 4, "identical": 4, "near_tie": 0, "different": 0}
    tie = {**base, "identical": 3, "near_tie": 1}
    wrong = {**base, "identical": 3, "different": 1}
    assert rows.sameness("pld", base) == "yes"  # type: ignore[arg-type]
    assert rows.sameness("pld", tie) == "yes, but 1 near tie"  # type: ignore[arg-type]
    assert rows.sameness("pld", wrong) == "1 of 4 differ"  # type: ignore[arg-type]
    assert rows.sameness("sps", None) == "same law"
    assert rows.sameness("outsider", None) == "not claimed"
    assert rows.sameness("autoregressive", base) == rows.NONE  # type: ignore[arg-type]
