"""benchmarks/real.py: its prompts, what is run and left out, resuming, the numbers, the checks.

The target is the tests' tiny one and the other engine is made up.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.bench.run.runner import Runner
from foretoken.bench.suites import data
from foretoken.bench.suites.suite import Prompt, Suite
from measured_answers import answer, plain

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]

import real  # noqa: E402
from real_table import (  # noqa: E402
    cells,
    engines,
    figures,
    ideals,
    lineup,
    progress,
    prompts,
    ratios,
    record,
    serve,
)
from real_table.cells import Cell, Choice, Pace  # noqa: E402
from real_table.folder import read  # noqa: E402
from real_table.progress import Whole  # noqa: E402

ONE, TWO = ("translation", "summarization", "qa", "math_reasoning", "rag"), "mt_bench"
SUITE = Suite(
    "spec-bench",
    "0" * 64,
    (
        *(Prompt(f"{TWO}-{i}", TWO, ("Write a line.", "And one more?")) for i in range(80)),
        *(
            Prompt(f"{t}-{i}", t, (f"Question {i} of {t}, please.",))
            for t in ONE
            for i in range(80)
        ),
    ),
)
METHODS = ("autoregressive", "sps-4", "suffix", "auto")


def test_every_eighth_question_of_each_task_and_our_own() -> None:
    """80 prompts with 90 turns; 24 of them, first turns, in the screen; all 480 in `whole`."""
    grid = prompts.of_stage("grid", SUITE)
    count = Counter(prompt.task for prompt in grid)
    assert len(count) == 8 and set(count.values()) == {10}
    assert {p.id for p in grid if p.task == "qa"} == {f"qa-{i}" for i in range(0, 80, 8)}
    assert sum(len(prompt.turns) for prompt in grid) == 90
    screened = prompts.of_stage("screen", SUITE)
    assert set(Counter(p.task for p in screened).values()) == {3} and len(screened) == 24
    assert all(len(p.turns) == 1 for p in screened)
    assert {p.id for p in screened} < {p.id for p in grid}
    assert len(prompts.of_stage("whole", SUITE)) == 480
    assert len(prompts.of_stage("grid", SUITE, 5)) == 5


def test_our_own_prompts_differ() -> None:
    """Ten requests to edit code, each with code, and ten texts to correct."""
    own = prompts.own().prompts
    assert Counter(p.task for p in own) == {"code_editing": 10, "grammar": 10}
    assert len({p.turns for p in own}) == 20
    assert all("```" in p.turns[0] for p in own if p.task == "code_editing")


@pytest.mark.skipif(data.folder() is None, reason="needs the folder that FORETOKEN_DATA names")
def test_the_official_questions_are_found() -> None:
    """By the packaged suite, with the sha256 that it names."""
    whole = prompts.of_stage("whole", prompts.official())
    assert (len(whole), sum(len(prompt.turns) for prompt in whole)) == (480, 560)


def test_a_batch_mixes_tasks_and_never_turns() -> None:
    """So that sixteen are served at a time; one by one, the order is the prompts'."""
    grid = prompts.of_stage("grid", SUITE)
    cell = Cell("grid", "mini", METHODS, batch_size=16)
    sizes = [len(unit.prompts) for unit in serve.units(grid, cell)]
    assert sorted(sizes) == [6, 10, 16, 16, 16, 16]
    for unit in serve.units(grid, cell):
        assert len({len(p.turns) for p in unit.prompts}) == 1
    alone = serve.units(grid, replace(cell, batch_size=1))
    assert [unit.prompts[0].id for unit in alone] == [p.id for p in grid]


CHOICE = Choice(
    ("suffix", "sps-4", "pld|sps", "sps-2", "swift", "sps-8", "sps-6", "lookahead"),
    (("llama.cpp", "plain"), ("llama.cpp", "draft model")),
)


def test_the_screen_decides_the_rows() -> None:
    """Plain, the best, auto, the other three of the best four, and all four lengths of sps."""
    assert CHOICE.rows == (
        "autoregressive",
        "suffix",
        "auto",
        "sps-4",
        "pld|sps",
        "sps-2",
        "sps-8",
        "sps-6",
    )
    assert CHOICE.warm == ("autoregressive", "suffix", "swift", "auto")


CHOICES = {lineup.PAIR: CHOICE, lineup.SMALL: replace(CHOICE, best=("suffix", "pld"))}
WORKS = {name: dict.fromkeys(progress.STAGES, (1000, 90)) for name in cells.GUESS}


def cost(one: Cell) -> float:
    """Seconds of all rounds."""
    return sum(cells.seconds(c, cells.GUESS[c.target], WORKS[c.target]) for c in cells.rounds(one))


def settled(choices: dict[str, Choice], seconds: float) -> dict[str, Cell]:
    """The cells by kind; what is true of them whatever fits is checked."""
    found, left_out = cells.settle(choices, {}, WORKS, seconds)
    order = [c.round for c in found]
    assert order == sorted(order)  # all first rounds before any second one
    rounds = Counter(c.kind for c in found)
    assert all(rounds[c.kind] == (3 if c.stage == "grid" else 1) for c in found)
    kept = {c.kind: c for c in found if c.round == 1}
    assert sum(map(cost, kept.values())) <= seconds
    lacking = {one.cell: one.rows for one in left_out}
    for later in (c for c in found if c.round > 1):  # without the other engines
        first = kept[later.kind]
        assert later == replace(first, round=later.round, peers=(), beside=())
        beside = cells.named(first)[len(first.rows) :]
        assert lacking.get(later.name, ()) == beside
    for cell in cells.grid(choices):
        rows = cells.named(kept[cell.kind]) if cell.kind in kept else ()
        assert lacking.get(cell.kind, ()) == tuple(r for r in cells.named(cell) if r not in rows)
    return kept


def test_what_does_not_fit_is_left_out_by_the_rule() -> None:
    """Five rows of the first cell, three of others; what is left over widens them in order."""
    choices = {lineup.PAIR: CHOICE}
    wanted = list(cells.grid(choices))
    first, second = wanted[:2]
    assert {k: c.rows for k, c in settled(choices, 1e9).items()} == {c.kind: c.rows for c in wanted}
    assert settled(choices, 1.0) == {}
    five, three = (cells.narrowed(first, n, True) for n in (5, 3))
    assert [c.rows for c in settled(choices, cost(five) + 1).values()] == [CHOICE.rows[:5]]
    assert settled(choices, cost(three) + 1)[first.kind].beside == CHOICE.beside
    alone = cells.narrowed(first, 3, False)
    assert settled(choices, cost(alone) + 1)[first.kind].beside == ()
    narrow = [cells.narrowed(c, 3, False) for c in wanted[1:]]
    every = cost(five) + sum(map(cost, narrow))
    kept = settled(choices, every + 1)
    assert {k: len(c.rows) for k, c in kept.items()} == {
        c.kind: len(c.rows) for c in [five, *narrow]
    }
    kept = settled(choices, every + cost(first) - cost(five) + 1)
    assert kept[first.kind].rows == CHOICE.rows and len(kept[second.kind].rows) == 3


def test_a_faster_target_comes_first() -> None:
    """Its cells are run before the slower one's, but for the first of these."""
    wanted = list(cells.grid(CHOICES))
    firsts = [cells.narrowed(c, 5, True) for c in wanted[:2]]
    small = [cells.narrowed(c, 3, False) for c in wanted[2:] if c.target == lineup.SMALL]
    kept = settled(CHOICES, sum(map(cost, [*firsts, *small])) + 1)
    assert kept.keys() == {c.kind for c in [*firsts, *small]}


def test_the_faster_targets_grid_is_run_first() -> None:
    """In each round; what follows keeps the order of the stages."""
    found = cells.settle(CHOICES, {}, WORKS, 1e9)[0]
    for number in range(1, cells.ROUNDS + 1):
        grids = [(c.stage, c.target) == ("grid", lineup.SMALL) for c in found if c.round == number]
        assert any(grids) and grids == sorted(grids, reverse=True)
    kinds = list(dict.fromkeys(c.kind for c in found))
    wanted = [cell.kind for cell in cells.grid(CHOICES)]
    small = [k for k in wanted if k.startswith(f"grid_{lineup.SMALL}")]
    assert kinds == small + [kind for kind in wanted if kind not in small]


def test_cells_are_read_back() -> None:
    """As they were written."""
    for cell in cells.grid({lineup.PAIR: CHOICE, lineup.SMALL: CHOICE}):
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


def spent(speeds: dict[int, list[float]]) -> ratios.Spent:
    return {(r, f"p{i}"): (s, 1.0) for r, own in speeds.items() for i, s in enumerate(own)}


def test_intervals_are_over_prompts_and_rounds() -> None:
    """Rounds that disagree widen the interval, however many prompts agree within each."""
    plain = spent({1: [1.0] * 20, 2: [1.0] * 20})
    found = ratios.ratio(spent({1: [1.0] * 20, 2: [3.0] * 20}), plain)
    assert found == {"ratio": 2.0, "ci95": [1.0, 3.0]}
    found = ratios.ratio(spent({1: [2.0] * 20, 2: [2.0] * 20}), plain)
    assert found == {"ratio": 2.0, "ci95": [2.0, 2.0]}
    found = ratios.ratio(spent({1: [1.0, 3.0] * 10, 2: [1.0, 3.0] * 10}), plain)
    assert found is not None and 1.4 < found["ci95"][0] < 1.8 < 2.2 < found["ci95"][1] < 2.6


def test_a_ratio_is_of_prompts_that_both_have() -> None:
    """In every round; one prompt has no interval, and nothing shared no ratio."""
    plain = spent({1: [1.0, 1.0], 2: [1.0]})
    assert ratios.ratio(spent({1: [2.0, 9.0], 2: [2.0, 9.0]}), plain) == {
        "ratio": 2.0,
        "ci95": None,
    }
    assert ratios.ratio({(1, "x"): (1.0, 1.0)}, plain) is None
    assert ratios.ratio({}, plain) is None


def test_costs_of_pieces_are_their_medians() -> None:
    """Number by number, of those that were timed after as many tokens as the last; what isn't a
    number is the first's."""
    lines = [
        {
            "piece": str(ms),
            "context": context,
            "target": {"passes": [{"ms": {"1": ms}}]},
            "drafts": None,
        }
        for ms, context in ((99.0, 4), (1.0, 8), (5.0, 8), (2.0, 8))
    ]
    assert ideals.typical(lines) == {
        "context": 8,
        "target": {"passes": [{"ms": {"1": 2.0}}]},
        "drafts": None,
    }
    assert ideals.typical([]) is None


def test_the_ideal_over_machines_that_differ() -> None:
    """Each round counts with what its own passes cost; in the second, plain decoding takes three
    times as long, and so weighs three times as much."""
    slow = {"draft": 0.0, "verify": 0.3, "other": 0.0}

    def one(pass_of_four: float, **seconds: Any) -> Any:
        passes = [{"batch_size": 1, "ms": {"1": 1.0, "4": pass_of_four}}]
        model = {"weight_bytes": 1, "kv_bytes": 0, "passes": passes}
        base = plain(**seconds)
        return [answer()], [base], {"target": model, "drafts": {"pld": None}}, base.decoding

    *flat, first = one(1.0)
    *steep, second = one(3.0, seconds=plain().seconds | slow)
    few, many = (ideals.ideal_of_rounds("pld", [x], 1) for x in (flat, steep))
    assert few and many and few > 1.5 * many and second != first
    both = ideals.ideal_of_rounds("pld", [flat, steep], 1)
    assert both == pytest.approx((first + second) / (first / few + second / many))
    assert ideals.ideal_of_rounds("pld", [flat, ([], [], None)], 1) == few
    assert ideals.ideal_of_rounds("pld", [flat, (*flat[:2], None)], 1) is None


class Stub:
    """An engine that reads a prompt in a second and writes a token in a tenth."""

    def __init__(self) -> None:
        self.versions = {"stub": "1"}
        self.asked: list[tuple[str, tuple[int, ...], int, dict[str, float]]] = []

    def ask(
        self, method: str, prompt: list[int], max_tokens: int, **drawn: float
    ) -> tuple[list[int], float]:
        self.asked.append((method, tuple(prompt), max_tokens, drawn))
        each = 0.1 if method == "plain" else 0.05
        return [7] * max_tokens, 1.0 + (max_tokens - 1) * each


@pytest.fixture
def bench(
    tmp_path: Path, checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """A benchmark of the tiny pair with four methods and the stub; `whole` and `run`."""
    target = lineup.Target(str(checkpoints[0]), str(checkpoints[1]))
    monkeypatch.setitem(lineup.TARGETS, "tiny", target)
    monkeypatch.setitem(cells.GUESS, "tiny", Pace({"autoregressive": 0.01}, 0.001))
    monkeypatch.setitem(lineup.PEERS, "stub", lineup.Peer("stub", "folder"))
    monkeypatch.setattr(ideals, "OFF", float("inf"))  # as passes of so small a model vary
    made = [lineup.Row("stub", "plain"), lineup.Row("stub", "prompt lookup")]
    monkeypatch.setitem(lineup._OTHERS, "stub", lambda peer: made[1:])
    every = {name: config for name, config in lineup.methods(target).items() if name in METHODS}
    for module in (cells, serve):
        monkeypatch.setattr(module, "methods", lambda target: every)
    monkeypatch.setattr(cells, "TOKENS", {"screen": 6})
    monkeypatch.setattr(cells, "ANSWER", 8)
    stub = Stub()

    @contextmanager
    def started(cell: Cell, *_: Any) -> Iterator[dict[str, Stub]]:
        yield dict.fromkeys(cell.peers, stub)

    monkeypatch.setattr(serve, "started", started)
    work = tmp_path / "work"
    work.mkdir()
    whole = Whole(work, ("tiny",), ("stub",), SUITE, 20.0, limit=3)
    place = serve.Bench(tmp_path, work, 1)
    return SimpleNamespace(whole=whole, bench=place, stub=stub)


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> Callable[[], None]:
    """Serving stops with Control-C after so many units; returns what undoes it."""
    inner, count = Runner.serve, 0

    def broken(self: Runner, unit: Any) -> Any:
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return inner(self, unit)

    monkeypatch.setattr(Runner, "serve", broken)
    return lambda: monkeypatch.setattr(Runner, "serve", inner)


def tokens(folder: Path) -> list[Any]:
    return [
        (line["method"], line["id"], line["turn"], line["token_ids"], line["passes"])
        for line in serve.read_lines(folder / "samples.jsonl")
    ]


def test_an_interrupted_screen_goes_on_and_becomes_a_record(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is served twice, the same tokens are written, and the rows are whole."""
    [ours, _] = bench.whole.screened()
    repair = interrupt(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        real.run(bench.whole, bench.bench, ["screen"])
    before = tokens(bench.bench.folder(ours))
    assert len(before) == 2 * len(METHODS) and not bench.whole.done(ours)
    assert bench.whole.expected(ours) > 0
    repair()
    later = {**serve.environment(), "git_commit": "later", "cpu": "another"}
    monkeypatch.setattr(serve, "environment", lambda: later)
    real.run(bench.whole, bench.bench, ["screen"])
    after = tokens(bench.bench.folder(ours))
    assert after[: len(before)] == before and len(after) == 3 * len(METHODS)
    assert real.following(bench.whole, ["screen"]) is None
    made = record.made(bench.whole, Path(), {}, 0.0)
    first, second = made["cells"]
    assert len(first["commits"]) == len(first["machines"]) == len(first["dates"]) == 2
    assert second["commits"] == ["later"]
    assert [row["method"] for row in first["rows"]] == [*METHODS]
    assert all(row["identity"]["different"] == 0 for row in first["rows"])
    assert all(row["over_plain"]["ratio"] > 0 for row in first["rows"])
    plain, *drafting = first["rows"]
    assert plain["ideal"] is None and all(row["ideal"] > 0 for row in drafting)
    sps = first["rows"][1]
    assert sps["config"]["model"] == lineup.TARGETS["tiny"].draft
    assert sps["config"]["draft_backend"] == "q4"
    assert sps["tokens"] == 18 and len(sps["by_task"]) == 3
    assert first["costs"]["bandwidth_gb_s"] > 0 and made["bandwidth_gb_s"]
    assert first["costs"]["context"] == first["prompt_tokens"] // first["turns"] + 6 // 2
    theirs, lookup = (row for row in second["peers"] if row["engine"] == "stub")
    # 5 tokens in 0.5 s and in 1.25 - 1 s, after the first, which plain decoding writes in 1 s
    assert theirs["decoding"]["tokens_per_second"] == pytest.approx(10)
    assert lookup["decoding"]["tokens_per_second"] == pytest.approx(20)
    assert lookup["decoding"]["over_own_plain"]["ratio"] == pytest.approx(2)
    assert lookup["whole"]["tokens_per_second"] == pytest.approx(6 / 1.25)
    assert (theirs["same_as_own_plain"], theirs["answers"]) == (3, 3)
    assert json.loads(json.dumps(made)) == made
    names = set(re.findall(r"\w+", record.__doc__ or ""))
    assert {*made, *first, *first["rows"][0], *theirs, *theirs["decoding"]} <= names
    real.show(made)


def test_the_other_engine_reads_the_same_tokens(bench: SimpleNamespace) -> None:
    """Of both turns, where the second follows our plain answer; only plain is asked for one."""
    cell = Cell("grid", "tiny", METHODS[:1], peers=("stub",), temperature=1.0, round=2)
    assert serve.serve(cell, [SUITE.prompts[0]], bench.bench)
    asked = [one for one in bench.stub.asked if one[3]]  # without the warm-up
    assert Counter((method, most) for method, _, most, _ in asked) == {
        ("plain", 1): 2,
        ("plain", 8): 2,
        ("prompt lookup", 8): 2,
    }
    one, two = sorted({prompt for _, prompt, _, _ in asked}, key=len)
    lines = serve.read_lines(bench.bench.folder(cell) / "samples.jsonl")
    assert [line["prompt_tokens"] for line in lines] == [len(one), len(two)]
    assert {drawn["temperature"] for *_, drawn in asked} == {1.0}
    assert len({drawn["seed"] for *_, drawn in asked}) == 2


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    """As a kill may leave it; the whole lines before it stay."""
    path = tmp_path / "lines"
    assert serve.read_lines(path) == []
    serve.append(path, [{"a": 1}, {"a": 2}])
    path.write_text(path.read_text() + '{"a": ')
    assert serve.read_lines(path) == [{"a": 1}, {"a": 2}]
    serve.append(path, [{"a": 3}])
    assert serve.read_lines(path) == [{"a": 1}, {"a": 2}, {"a": 3}]
    path.write_text('{"a"')
    serve.append(path, [{"a": 4}])
    assert serve.read_lines(path) == [{"a": 4}]


def test_of_an_engine_beside_only_the_named_row_is_measured(bench: SimpleNamespace) -> None:
    """Its plain decoding writes one token of each prompt, which the speed of decoding needs."""
    named = (("stub", "prompt lookup"),)
    cell = Cell("grid", "tiny", METHODS[:1], peers=("stub",), beside=named)
    asked = [p for p in SUITE.prompts if p.task == "qa"][:2]
    assert serve.serve(cell, asked, bench.bench)
    warming, answers = bench.stub.asked[:2], bench.stub.asked[2:]
    assert {method for method, *_ in warming} == {"plain", "prompt lookup"}
    assert Counter((method, most) for method, _, most, _ in answers) == {
        ("plain", 1): 2,
        ("prompt lookup", 8): 2,
    }
    made = figures.cell([read(bench.bench.folder(cell))])
    ours, theirs = made["peers"]
    assert (ours["engine"], theirs["method"]) == ("foretoken", "prompt lookup")
    # 7 tokens in 1.35 - 1 s
    assert theirs["decoding"]["tokens_per_second"] == pytest.approx(20)
    assert theirs["decoding"]["over_own_plain"] is None and theirs["same_as_own_plain"] is None
    assert theirs["decoding"]["over_foretoken_plain"]["ratio"] > 0


def test_scales_of_four_bits_fit_the_rows(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """128 weights a scale, or as many as divide every row."""
    config = json.loads((checkpoints[0] / "config.json").read_text())
    for widths, size in (((1536, 8960), 128), ((576, 1536), 64), ((288, 768), 32)):
        config |= dict(zip(("hidden_size", "intermediate_size"), widths, strict=True))
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert engines.group_size(tmp_path) == size


def test_what_is_learned_survives_an_interruption(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A warm cell writes as many tokens a pass as one that was never interrupted, and a cold one
    doesn't."""
    asked = [Prompt(f"p{i}", "qa", ("Tell me the same thing.",)) for i in range(4)]
    cell = Cell("grid", "tiny", ("autoregressive", "suffix"), memory=cells.WARM)
    for work in ("straight", "broken", "cold"):
        (tmp_path / work).mkdir()
    straight, broken, cold = (
        serve.Bench(tmp_path, tmp_path / work, 1) for work in ("straight", "broken", "cold")
    )
    assert serve.serve(cell, asked, straight)
    assert serve.serve(replace(cell, memory=cells.COLD), asked, cold)
    repair = interrupt(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        serve.serve(cell, asked, broken)
    repair()
    assert serve.serve(cell, asked, broken)
    assert tokens(broken.folder(cell)) == tokens(straight.folder(cell))
    passes = [
        sum(t[4] for t in tokens(b.folder(c)) if t[0] == "suffix")
        for b, c in (
            (straight, cell),
            (cold, replace(cell, memory=cells.COLD)),
        )
    ]
    assert passes[0] < passes[1]


def test_it_stops_when_the_time_is_over(bench: SimpleNamespace) -> None:
    """Between two prompts, when one as long as the longest would not end in time."""
    bench.bench.until = 0.0
    cell = bench.whole.screened()[0]
    assert not serve.serve(cell, bench.whole.prompts("screen"), bench.bench)
    real.run(bench.whole, bench.bench, ["screen"])
    assert not bench.whole.done(cell) and real.ahead(bench.whole)


def test_what_a_later_round_takes(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the first, less what rows take that it hasn't."""
    monkeypatch.setattr(cells, "_LOAD", 0.0)
    whole = bench.whole
    first = Cell("grid", "tiny", ("autoregressive", "sps-4"), peers=("stub",))
    first = replace(first, beside=(("stub", "plain"),))
    folder = whole.work / first.name
    folder.mkdir()
    (folder / "cell.json").write_text(json.dumps({"cell": first.to_json(), "units": 3}))
    (folder / "clock.jsonl").write_text('{"unit": "a", "seconds": 1000}\n')
    (folder / "done").touch()
    assert whole.expected(replace(first, round=2)) == pytest.approx(1000)
    alone = replace(first, round=2, peers=(), beside=())
    assert 500 < whole.expected(alone) < 700  # two rows of three, with less to read


def test_a_folder_is_for_one_plan(bench: SimpleNamespace) -> None:
    """Other weights, prompts or hours are refused, and the difference named; but hours may be more
    once it is settled what they suffice for."""
    bench.whole.keep({"a.gguf": "1"})
    bench.whole.keep({"a.gguf": "1"})
    with pytest.raises(ForetokenError, match="models"):
        bench.whole.keep({"a.gguf": "2"})
    more = replace(bench.whole, hours=bench.whole.hours + 1)
    with pytest.raises(ForetokenError, match="hours"):
        more.keep({"a.gguf": "1"})
    (bench.whole.work / "settled.json").write_text("{}")
    more.keep({"a.gguf": "1"})
    with pytest.raises(ForetokenError, match="models"):
        more.keep({"a.gguf": "2"})


def row(method: str, ratio: float, **more: Any) -> dict[str, Any]:
    same = {"prompts": 3, "identical": 3, "near_tie": 0, "different": 0}
    return {
        "method": method,
        "over_plain": {"ratio": ratio, "ci95": None},
        "identity": same,
        "failed": 0,
        "errors": [],
        "of_ideal": None,
        "mean_acceptance_length": 1.0,
        **more,
    }


def missed(rows: list[dict[str, Any]], about: dict[str, Any] | None = None, **more: Any) -> str:
    cell = {
        "stage": "precision",
        "target": lineup.PAIR,
        "precision": "float16",
        "batch_size": 1,
        "temperature": 0.0,
        "memory": "cold",
        "not_run": {},
        "not_judged": [],
        "rows": rows,
        "peers": [],
        **(about or {}),
    }
    made = {
        "cells": [cell],
        "peers_left_out": {},
        "left_out": [],
        "memory": [{"target": lineup.SMALL, "method": "autoregressive", "peak_mib": 700.0}],
        "hours": {"left": 0.0},
        **more,
    }
    return "; ".join(record.missed(made))


def test_the_precisions() -> None:
    """As stored everywhere; the bar in float16 has the rows that it needs, whatever the screen
    found, and the narrow drafters only there."""
    pair = Choice(best=("pld", "suffix", "sam", "llma", "sps-2"))
    made = [c for c in cells.grid({lineup.PAIR: pair}) if c.target == lineup.PAIR]
    assert {c.precision for c in made if c.stage == "grid"} == {cells.STORED}
    float16, float32 = (c for c in made if c.stage == "precision")
    drafting = ("sps-4", "sps-4-int8", "substitute")
    assert float16.rows == ("autoregressive", *drafting, "pld", "auto")
    assert float32.rows == pair.few and (float16.precision, float32.precision) == (
        "float16",
        "float32",
    )
    for row in (lineup.NARROW, lineup.COPY):
        assert all(row not in c.rows for c in cells.screen([lineup.PAIR], []))


def test_what_is_asked_of_the_record() -> None:
    """Plain decoding's tokens, the share of the ideal, the best method's speed, memory, all run."""
    good = [row("autoregressive", 1.0), row("sps-4", 1.9, of_ideal=0.96, mean_acceptance_length=4)]
    assert missed(good) == ""
    different = {"prompts": 3, "identical": 2, "near_tie": 0, "different": 1}
    assert "writes other tokens" in missed([*good, row("pld", 1.0, identity=different)])
    tie = {"prompts": 3, "identical": 2, "near_tie": 1, "different": 0}
    assert missed([*good, row("pld", 1.0, identity=tie)]) == ""
    assert "0.94 of its ideal" in missed(
        [*good, row("pld", 1.0, of_ideal=0.94, mean_acceptance_length=1.6)]
    )
    assert missed([*good, row("pld", 1.0, of_ideal=0.9, mean_acceptance_length=1.4)]) == ""
    off = {"rows": ["pld", "sps-4"], "round": 2, "timed_ms": 5.0, "plain_ms": 4.0}
    unknown = [*good[:1], {**good[1], "of_ideal": None}, row("pld", 1.0)]
    said = missed(unknown, {"not_judged": [off]})
    assert "cold: sps-4: not judged by the ideal, as a pass was timed at 5.00 ms in round 2" in said
    assert "1.70 times plain" in missed([*good[:1], row("sps-4", 1.7), row("pld|sps", 1.9)])
    peak = {"target": lineup.SMALL, "method": "autoregressive", "peak_mib": 720.0}
    assert "0.75 GB" in missed(good, memory=[peak]).replace("0.75 are", "0.75 GB are")
    assert "not measured" in missed(good, memory=[])
    assert "failed 2" in missed([*good, row("pld", 1.0, failed=2, errors=["no memory"])])
    assert "hours of measuring are left" in missed(good, hours={"left": 3.0})
    assert "llama.cpp is left out" in missed(good, peers_left_out={"llama.cpp": "no compiler"})
    cut = {"cell": "grid_x", "rows": ["pld", "llama.cpp: plain"], "hours": 2.0}
    assert "grid_x is left out: pld, llama.cpp: plain" in missed(good, left_out=[cut])
    assert "float16 was not measured" in missed(good, cells=[])


def test_it_waits_while_there_is_a_pause(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on where the file is gone; another one says that the machine is free."""
    mark = bench.bench.work / serve.HOLD
    mark.touch()
    asked: list[float] = []

    def gone(seconds: float) -> None:
        asked.append(seconds)
        assert (bench.bench.work / serve.RESTING).exists()
        if len(asked) == 2:
            mark.unlink()

    monkeypatch.setattr(serve, "sleep", gone)
    bench.bench.rest()
    assert len(asked) == 2 and not (bench.bench.work / serve.RESTING).exists()
