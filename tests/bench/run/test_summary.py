"""The numbers of results.json, computed once more from samples.jsonl in plain Python.

Nothing of foretoken's arithmetic is imported. As a script it checks any folder that
`foretoken bench` wrote: python tests/bench/run/test_summary.py FOLDER
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

Lines = list[dict[str, Any]]


def loops(line: dict[str, Any], threshold: float) -> bool:
    tokens, seen = line["token_ids"], []
    for i in range(len(tokens) - 3):
        seen.append((tokens[i], tokens[i + 1], tokens[i + 2], tokens[i + 3]))
    return bool(seen) and len(set(seen)) / len(seen) < threshold


def decoding(line: dict[str, Any]) -> float:
    seconds: dict[str, float] = line["seconds"]
    return seconds["draft"] + seconds["verify"] + seconds["other"]


def tokens(lines: Lines) -> int:
    return sum(len(line["token_ids"]) for line in lines)


def rate(lines: Lines) -> float | None:
    spent = sum(decoding(line) for line in lines)
    return tokens(lines) / spent if spent else None


def over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def percentile(values: list[float], share: float) -> float | None:
    """Linear between the two nearest."""
    if not values:
        return None
    values = sorted(values)
    place = share / 100 * (len(values) - 1)
    low, part = int(place), place - int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + part * (values[high] - values[low])


def per_question(lines: Lines) -> float | None:
    """Spec-Bench's: the mean over questions of tokens ÷ wall time, prefill and all."""
    rates = []
    for name in {line["id"] for line in lines}:
        own = [line for line in lines if line["id"] == name]
        rates.append(tokens(own) / sum(line["seconds"]["total"] for line in own))
    return sum(rates) / len(rates) if rates else None


def per_position(lines: Lines) -> list[float]:
    found = []
    for i in range(max((len(line["drafted_at"]) for line in lines), default=0)):
        reached = [line for line in lines if i < len(line["drafted_at"])]
        kept = sum(line["accepted_at"][i] for line in reached)
        found.append(kept / sum(line["drafted_at"][i] for line in reached))
    return found


def part(mine: Lines, plain: Lines, left_out: set[str]) -> dict[str, Any]:
    """What `Measured` holds and an honest reader can check."""
    broken = {line["id"] for line in [*mine, *plain] if line["error"] is not None}
    mine, plain = ([x for x in own if x["id"] not in broken] for own in (mine, plain))
    kept, base = ([x for x in own if x["id"] not in left_out] for own in (mine, plain))
    first = [1000 * x["seconds"]["ttft"] for x in kept if x["token_ids"]]
    rest = [
        1000 * (x["seconds"]["total"] - x["seconds"]["ttft"]) / (len(x["token_ids"]) - 1)
        for x in kept
        if len(x["token_ids"]) > 1
    ]
    passes = sum(x["passes"] for x in kept)
    steps = sum(x["engine_steps"] for x in kept)
    return {
        "tokens": tokens(kept),
        "target_passes": passes,
        "tokens_per_second": rate(kept),
        "speedup": over(rate(kept), rate(base)),
        "mean_acceptance_length": over(tokens(kept), passes),
        "draft_acceptance_rate": over(
            sum(sum(x["accepted"]) for x in kept), sum(x["drafted"] for x in kept)
        ),
        "acceptance_rate_per_position": per_position(kept),
        "ms_per_step": {
            name: 1000 * sum(x["seconds"][name] for x in kept) / steps if steps else 0.0
            for name in ("draft", "verify", "other")
        },
        "latency_ms": {
            "ttft_p50": percentile(first, 50),
            "ttft_p99": percentile(first, 99),
            "per_token_p50": percentile(rest, 50),
            "per_token_p99": percentile(rest, 99),
        },
        "spec_bench": {
            "mean_accepted_tokens": over(tokens(mine), sum(x["passes"] for x in mine)),
            "tokens_per_second": per_question(mine),
            "speedup": over(per_question(mine), per_question(plain)),
        },
    }


def recomputed(lines: Lines, run: dict[str, Any], left_out: set[str]) -> dict[str, Any]:
    """A run of results.json and its tasks."""
    here = [
        x
        for x in lines
        if (x["temperature"], x["batch_size"]) == (run["temperature"], run["batch_size"])
    ]
    mine = [x for x in here if x["method"] == run["method"]]
    plain = [x for x in here if x["method"] == "autoregressive"]
    by_task = {
        task: part(
            [x for x in mine if x["task"] == task],
            [x for x in plain if x["task"] == task],
            left_out,
        )
        for task in {x["task"] for x in mine}
    }
    return {**part(mine, plain, left_out), "by_task": by_task}


def differences(said: Any, found: Any, where: str) -> list[str]:
    """Where `found` is not what was said; numbers may differ in the last digits."""
    if isinstance(found, dict):
        return [x for k in found for x in differences(said[k], found[k], f"{where}.{k}")]
    if isinstance(found, list) and len(said) == len(found):
        pairs = enumerate(zip(said, found, strict=True))
        return [x for i, (a, b) in pairs for x in differences(a, b, f"{where}[{i}]")]
    if isinstance(found, float) and isinstance(said, float):
        return [] if math.isclose(said, found, rel_tol=1e-9) else [f"{where}: {said} is {found}"]
    return [] if said == found else [f"{where}: {said} is {found}"]


def check(folder: Path) -> list[str]:
    """All differences between results*.json and samples.jsonl in a folder."""
    samples = [json.loads(x) for x in (folder / "samples.jsonl").read_text().splitlines()]
    wrong = []
    for path in sorted(folder.glob("results*.json")):
        results = json.loads(path.read_text())
        target = results["target"]
        lines = [
            x for x in samples if (x["target"], x["dtype"]) == (target["name"], target["dtype"])
        ]
        first = results["runs"][0]
        setting = first["temperature"], first["batch_size"]
        left_out = {
            x["id"]
            for x in lines
            if x["method"] == "autoregressive"
            and (x["temperature"], x["batch_size"]) == setting
            and loops(x, results["suite"]["distinct_4_threshold"])
        }
        wrong += differences(
            results["suite"]["left_out"], sorted(left_out), f"{path.name} left out"
        )
        for run in results["runs"]:
            where = f"{path.name} {run['method']} {run['temperature']} {run['batch_size']}"
            wrong += differences(run, recomputed(lines, run, left_out), where)
    return wrong


@pytest.fixture(scope="module")
def folder(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two precisions, temperatures and batch sizes, two turns, one prompt that can't be served."""
    from typer.testing import CliRunner

    from foretoken.bench.measure import costs
    from foretoken.cli.commands import app

    out = tmp_path_factory.mktemp("recompute")
    words = ["Hello there.", "Who wrote it?", "Why is the sky blue?", "3 + 4 = ?", "Say: yes!"]
    rows = [{"id": f"a{i}", "task": "ab"[i % 2], "turns": [w]} for i, w in enumerate(words)]
    rows += [{"id": "c", "task": "c", "turns": ["Good evening.", "And then?"]}]
    suite = out / "suite.jsonl"
    suite.write_text("\n".join(map(json.dumps, rows)))
    target, draft = map(str, checkpoints)
    with pytest.MonkeyPatch.context() as patch:  # costs of passes have tests of their own
        patch.setattr(costs, "_ARRAY_BYTES", 2**16)
        patch.setattr(costs, "WIDTHS", (1, 2))
        done = CliRunner().invoke(
            app,
            [
                "bench",
                "--methods",
                "pld,sps",
                "--suite",
                str(suite),
                "--model",
                target,
                "--draft-model",
                draft,
                "--max-tokens",
                "10",
                "--repeats",
                "3",
                "--batch-sizes",
                "1,2",
                "--dtypes",
                "float32,float64",
                "--out",
                str(out / "run"),
            ],
        )
    assert done.exit_code == 0, done.output
    (out / "shown.txt").write_text(done.stdout)
    return out / "run"


def test_the_table_is_what_the_samples_say(folder: Path) -> None:
    """No number of either precision differs from the one computed here."""
    assert check(folder) == []
    results = [json.loads(p.read_text()) for p in sorted(folder.glob("results*.json"))]
    assert len(results) == 2
    for one in results:
        assert len(one["runs"]) == 3 * 2 * 2
        assert all(run["tokens"] and run["speedup"] for run in one["runs"])  # not all left out


def test_the_terminal_and_the_page_show_these_numbers(folder: Path) -> None:
    """Every speedup stands in the table that is printed and in report.md."""
    shown = (folder.parent / "shown.txt").read_text()
    page = (folder / "report.md").read_text()
    for path in folder.glob("results*.json"):
        for run in json.loads(path.read_text())["runs"]:
            if run["method"] != "autoregressive":
                assert f"{run['speedup']:.2f}" in shown and f"{run['speedup']:.2f}" in page


def test_this_check_has_teeth(folder: Path, tmp_path: Path) -> None:
    """One token more, one slower answer or one failure in the samples is noticed."""
    lines = [json.loads(x) for x in (folder / "samples.jsonl").read_text().splitlines()]
    left_out = set(json.loads((folder / "results.json").read_text())["suite"]["left_out"])
    at = next(i for i, x in enumerate(lines) if x["method"] == "pld" and x["id"] not in left_out)
    (tmp_path / "results.json").write_bytes((folder / "results.json").read_bytes())
    slower = {**lines[at]["seconds"], "verify": lines[at]["seconds"]["verify"] * 2}
    for change in (
        {"token_ids": [*lines[at]["token_ids"], 7]},
        {"seconds": slower},
        {"error": "NaN"},
    ):
        changed = [{**x, **change} if i == at else x for i, x in enumerate(lines)]
        (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, changed)))
        assert any("pld" in one for one in check(tmp_path))


def test_answers_that_loop_count_where_that_is_asked() -> None:
    """By default they are in no average but Spec-Bench's; at a threshold of 0 in all."""
    from foretoken.bench.plan import Plan
    from foretoken.bench.run.summary import summarize
    from foretoken.bench.suites.suite import Suite
    from measured_answers import answer, plain

    texts = {"x": [1] * 12, "y": list(range(12))}
    slow = {**answer().seconds, "total": 0.3}
    answers = [
        make(id=name, token_ids=ids, seconds=slow if name == "x" else answer().seconds)
        for name, ids in texts.items()
        for make in (plain, answer)
    ]
    said = {}
    default = Plan(model="t", name="t", methods={})
    for plan in (default, Plan(model="t", name="t", methods={}, distinct_4=0.0)):
        found = summarize(
            answers,
            plan=plan,
            suite=Suite("s", "0", ()),
            target={"name": "t", "parameters": 1, "dtype": "float32", "backend": "plain"},
        )
        left_out = set(found["suite"]["left_out"])
        lines = [json.loads(each.line()) for each in answers]
        for run in found["runs"]:
            assert differences(run, recomputed(lines, dict(run), left_out), "") == []
        said[plan.distinct_4] = left_out, found["runs"][1]
    (left, filtered), (none, whole) = said[0.8], said[0.0]
    assert (left, none) == ({"x"}, set())
    assert (filtered["prompts"], whole["prompts"]) == (1, 2)
    assert (filtered["tokens"], whole["tokens"]) == (12, 24)
    assert filtered["spec_bench"] == whole["spec_bench"]
    assert filtered["by_task"]["a"]["tokens"] == 12


def test_only_plain_decodings_loops_are_left_out() -> None:
    """A method that loops where plain decoding doesn't is measured on that prompt too."""
    from foretoken.bench.plan import Plan
    from foretoken.bench.run.summary import summarize
    from foretoken.bench.suites.suite import Suite
    from measured_answers import answer, plain

    found = summarize(
        [plain(token_ids=[*range(12)]), answer(token_ids=[1] * 12)],
        plan=Plan(model="t", name="t", methods={}),
        suite=Suite("s", "0", ()),
        target={"name": "t", "parameters": 1, "dtype": "float32", "backend": "plain"},
    )
    assert found["suite"]["left_out"] == [] and found["runs"][1]["prompts"] == 1


if __name__ == "__main__":
    problems = check(Path(sys.argv[1]))
    print("\n".join(problems) or "All numbers are those of the samples.")
    sys.exit(bool(problems))
