"""`foretoken bench`: from a command line to a folder, and back to the folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from foretoken.bench.measure import costs
from foretoken.bench.record import Answer, read_results
from foretoken.bench.run import cluster
from foretoken.bench.run.runner import Runner
from foretoken.cli import measuring
from foretoken.cli.bench import _arguments
from foretoken.cli.commands import app
from foretoken.files import held
from foretoken.zoo.shape import SHAPES

Pair = tuple[Path, Path]


@pytest.fixture(autouse=True)
def quick_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of passes have tests of their own."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)
    monkeypatch.setattr(costs, "WIDTHS", (1, 2))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "some.jsonl"
    turns = ["Hello there.", "Who wrote it?", "Why is the sky blue?", "3 + 4 = ?"]
    rows = [{"id": f"{i}", "task": "ab"[i % 2], "turns": [t]} for i, t in enumerate(turns)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def small(pair: Pair, suite: Path) -> tuple[object, ...]:
    return "--suite", suite, "--model", pair[0], "--max-tokens", 8


def test_help_has_an_example() -> None:
    found = run("--help")
    assert found.exit_code == 0 and "Example" in found.output and "Usage" in found.output


def test_two_at_once(checkpoints: Pair, suite: Path, tmp_path: Path) -> None:
    """The second one is refused, and writes nothing."""
    with held(tmp_path / "out"):
        found = run(*small(checkpoints, suite), "--out", tmp_path / "out")
        assert found.exit_code == 1 and f"in use by process {os.getpid()}" in found.stderr
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def test_a_run_and_the_same_again(checkpoints: Pair, suite: Path, tmp_path: Path) -> None:
    """All files are there; what can't be run is named; the second time nothing is served."""
    out = tmp_path / "out"
    first = run(*small(checkpoints, suite), "--out", out)
    assert first.exit_code == 0, first.output
    names = "plan.json results.json samples.jsonl report.md report.html"
    assert {p.name for p in out.iterdir()} == set(names.split())
    [without] = [line for line in first.stdout.splitlines() if line.startswith("Without ")]
    assert " methods: sps, " in without and without.endswith("; the report says why.")
    assert "small model; name it" in (out / "report.md").read_text("utf-8")
    assert "Report: " in first.stdout and "pld" in first.stdout
    results = read_results(out / "results.json")
    assert {r["temperature"] for r in results["runs"]} == {0.0, 1.0}
    assert "sps" in results["not_run"] and "pld" not in results["not_run"]
    assert results["suite"]["name"] == "some"
    before = (out / "samples.jsonl").stat().st_mtime_ns
    again = run(*small(checkpoints, suite), "--out", out, "--json")
    assert json.loads(again.stdout) == [results]
    assert (out / "samples.jsonl").stat().st_mtime_ns == before
    other = run(*small(checkpoints, suite), "--out", out, "--temperatures", "0")
    assert other.exit_code == 1 and "temperatures [0.0, 1.0]" in other.stderr


def test_what_is_chosen(checkpoints: Pair, suite: Path, tmp_path: Path) -> None:
    """Tasks, limit, batch sizes, precisions, own labels from a file, and the draft length."""
    own = tmp_path / "own.yaml"
    own.write_text(f"near:\n  method: sps\n  model: {checkpoints[1]}\n  verifier: lenience\n")
    out = tmp_path / "out"
    found = run(
        *small(checkpoints, suite),
        "--out",
        out,
        "--tasks",
        "b",
        "--limit",
        1,
        "--methods",
        "pld",
        "--method-config",
        own,
        "--temperatures",
        "1",
        "--batch-sizes",
        "2",
        "--json",
        "--dtypes",
        "float32,float64",
        "--num-speculative-tokens",
        2,
        "--repeats",
        2,
        "--seed",
        3,
    )
    parts = json.loads(found.stdout)
    assert [part["target"]["dtype"] for part in parts] == ["float32", "float64"]
    assert {p.name for p in out.glob("results*")} == {"results.json", "results-target-float64.json"}
    for part in parts:
        assert [run["method"] for run in part["runs"]] == ["autoregressive", "pld", "near"]
        assert all((run["batch_size"], run["repeats"]) == (2, 2) for run in part["runs"])
        assert part["runs"][2]["stray_rate"] is not None or not part["runs"][2]["tokens"]
        assert part["suite"]["prompts"] == 1
    answers = [Answer.parse(x) for x in (out / "samples.jsonl").read_text().splitlines()]
    assert {a.id for a in answers} == {"1"} and max(len(a.drafted_at) for a in answers) <= 4
    assert all(len(a.drafted_at) <= 2 for a in answers if a.method == "pld")


def test_joined_methods(checkpoints: Pair, suite: Path, tmp_path: Path) -> None:
    """The forms that a config takes, through the same parser; commas stand between methods only.

    The draft model and length go to the parts that have them.
    """
    out, methods = tmp_path / "out", ["pld+sps", "pld|sps", "auto:pld+sps", "online:sps"]
    command = (*small(checkpoints, suite), "--out", out, "--temperatures", "0", "--limit", 1)
    found = run(
        *command,
        "--methods",
        ", ".join(methods),
        "--draft-model",
        checkpoints[1],
        "--num-speculative-tokens",
        2,
        "--json",
    )
    assert found.exit_code == 0, found.output
    [results] = json.loads(found.stdout)
    assert [run["method"] for run in results["runs"]] == ["autoregressive", *methods]
    [target] = json.loads((out / "plan.json").read_text())["targets"]
    given = {"model": str(checkpoints[1]), "num_speculative_tokens": 2}
    assert target["methods"] == {name: {"method": name, **given} for name in methods}


def test_one_method_as_json(checkpoints: Pair, suite: Path, tmp_path: Path) -> None:
    """-sc adds a method to those that are named, and replaces one of its name."""
    out = tmp_path / "out"
    command = (*small(checkpoints, suite), "--out", out, "--temperatures", "0", "--limit", 1)
    config = {"method": "pld", "num_speculative_tokens": 3}
    found = run(*command, "--methods", "pld,suffix", "-sc", json.dumps(config), "--json")
    assert found.exit_code == 0, found.output
    [target] = json.loads((out / "plan.json").read_text())["targets"]
    assert target["methods"] == {"pld": config, "suffix": {"method": "suffix"}}


def test_how_the_target_runs(
    checkpoints: Pair, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--dtype stands for a list of one; backend, context and threads reach the target."""
    loaded: list[Runner] = []
    start = Runner.__init__

    def noted(self: Runner, plan: Any) -> None:
        start(self, plan)
        loaded.append(self)

    monkeypatch.setattr(Runner, "__init__", noted)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    out = tmp_path / "out"
    found = run(
        *small(checkpoints, suite),
        "--out",
        out,
        "--methods",
        "pld",
        "--limit",
        1,
        "--temperatures",
        0,
        "--dtype",
        "float64",
        "--device",
        "cpu",
        "--backend",
        "plain",
        "--max-model-len",
        400,
        "--threads",
        1,
        "--json",
    )
    assert found.exit_code == 0, found.output
    [results] = json.loads(found.stdout)
    target = results["target"]
    assert (target["dtype"], target["backend"], target["device"]) == ("float64", "plain", "cpu")
    [runner] = loaded
    assert (runner.context, threads) == (400, [1])
    plan = json.loads((out / "plan.json").read_text())
    assert (plan["device"], plan["backend"], plan["max_model_len"]) == ("cpu", "plain", 400)


def test_interrupted(
    checkpoints: Pair, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves a folder that the same command resumes, and a note of that."""
    serve, calls = Runner.serve, []

    def stopped(self: Runner, unit: Any) -> list[Answer]:
        calls.append(unit.group)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return serve(self, unit)

    monkeypatch.setattr(Runner, "serve", stopped)
    command = (*small(checkpoints, suite), "--out", tmp_path / "out", "--methods", "pld")
    found = run(*command)
    assert found.exit_code == 130 and "the same command resumes in" in found.stderr
    assert not (tmp_path / "out" / "results.json").exists()
    again = run(*command)
    assert again.exit_code == 0
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert len(calls) == 3 + 1 + 5 and len(lines) == 8 * 2


def test_inflated_targets(
    checkpoints: Pair, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target and its draft model are inflated together, and the results say so."""
    written = []

    def write(source: Path, out: Path, shape: str, target: Path | None) -> Path:
        written.append((source, shape, target))
        return Path(shutil.copytree(source, out))

    monkeypatch.setattr("foretoken.cli.zoo.write", write)
    found = run(
        *small(checkpoints, suite),
        "--out",
        tmp_path / "out",
        "--draft-model",
        checkpoints[1],
        "--inflate",
        "none,135m",
        "--limit",
        1,
        "--temperatures",
        0,
        "--json",
    )
    plain, large = json.loads(found.stdout)
    assert written == [(checkpoints[0], "135m", None), (checkpoints[1], "135m", checkpoints[0])]
    assert plain["target"].get("inflated") is None and large["target"]["inflated"] == "135m"
    assert large["target"]["name"] == "target-135m"
    assert "135m" in SHAPES and {r["method"] for r in large["runs"]} >= {"sps", "pld"}


def test_shards_on_a_cluster(
    checkpoints: Pair, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker gets the command with its shard; a failed shard stops nothing but the merge."""
    fails = {2}

    def run_shards(commands: Any, out: Path, *, workers: int, advance: Any) -> list[Any]:
        done = []
        for i, command in enumerate(commands, 1):
            folder = out / f"shard-{i}"
            assert (folder / "plan.json").is_file() and workers == 2
            words = [str(folder) if w == cluster.FOLDER else w for w in command]
            error = None
            if i in fails:
                fails.remove(i)
                error = f"Shard {i}/2 failed: its worker is lost."
            else:
                result = CliRunner().invoke(app, words[words.index("bench") :])
                assert result.exit_code == 0, result.output
            done.append(cluster.Shard(i, folder, error))
        return done

    monkeypatch.setattr(cluster, "run_shards", run_shards)
    here = lambda address: measuring.placed("x", {}, "none")  # noqa: E731
    monkeypatch.setattr("foretoken.ray_cluster.cluster", here)
    command = (
        *small(checkpoints, suite),
        "--out",
        tmp_path / "out",
        "--ray",
        2,
        "--methods",
        "pld",
        "--temperatures",
        "0",
    )
    lost = run(*command)
    assert lost.exit_code == 1 and "Shard 2/2 failed" in lost.stderr and "resumes in" in lost.stderr
    found = run(*command, "--json")
    [results] = json.loads(found.stdout)
    assert results["suite"]["prompts"] == 4 and len(results["runs"]) == 2
    assert (tmp_path / "out" / "report.html").is_file()
    assert json.loads(run(*command, "--json").stdout) == [results]  # and now nothing is left to do


def test_what_a_worker_is_told() -> None:
    """The options that were given, but for those that only the command itself reads."""
    command: Any = get_command(app)
    given = ["--limit", "3", "--warm", "--methods", "pld", "--dtype", "auto"]
    own = ["--ray", "2", "--ray-address", "x:1", "--json", "--out", "y"]
    with command.commands["bench"].make_context("bench", [*given, *own]) as context:
        words = _arguments(context)
    assert words[0] == "bench"
    assert sorted(words[1:]) == ["--limit", "--methods", "--warm", "3", "pld"]


BAD = {
    "no such suite": ("--suite", "spec-bnch"),
    "no such task": ("--tasks", "chat"),
    "no such method": ("--methods", "pld,spss"),
    "no such shape": ("--inflate", "9b"),
    "no such template": ("--template", "vicunia"),
    "no such engine": ("--engine", "vllm"),
    "no numbers": ("--temperatures", "hot"),
    "no batch": ("--batch-sizes", "0"),
    "no batch sizes": ("--batch-sizes", ","),
    "no shard": ("--shard", "5/4"),
    "shards of shards": ("--ray", "2", "--shard", "1/2"),
    "no address": ("--engine", "openai"),
    "draft models": ("--draft-model", "a,b"),
    "no such model": ("--model", "./nowhere"),
    "no config": ("--method-config", "nowhere.yaml"),
    "no mapping": ("--method-config", "{mine: pld}"),
    "no such option": ("--method-config", "{mine: {method: pld, prompt_lookup_mx: 3}}"),
    "warm twice": ("--warm",),
    "a target twice": ("--dtypes", "auto,float32"),
    "the baseline's label": ("--method-config", "{autoregressive: {method: pld}}"),
    "no such dtype": ("--dtypes", "float31"),
    "two sorts of dtypes": ("--dtypes", "float32", "--dtype", "float64"),
    "no such device": ("--device", "abacus"),
    "joins that mix": ("--methods", "pld+sps|sam"),
    "a comma in auto": ("--methods", "auto:pld,spss"),
    "no JSON": ("-sc", "{method: pld}"),
    "no such option in JSON": ("-sc", '{"method": "pld", "prompt_lookup_mx": 3}'),
    "a server's threads": (
        "--engine",
        "openai",
        "--base-url",
        "http://localhost/v1",
        "--threads",
        "1",
    ),
    "a server's draft model": (
        "--engine",
        "openai",
        "--base-url",
        "http://localhost/v1",
        "--draft-model",
        "a",
    ),
    "a server's template": (
        "--engine",
        "openai",
        "--base-url",
        "http://localhost/v1",
        "--template",
        "vicuna",
    ),
    "a server's shards": (
        "--engine",
        "openai",
        "--base-url",
        "http://localhost/v1",
        "--ray",
        "2",
    ),
    "an address without a server": ("--base-url", "http://localhost/v1"),
    "a cluster without shards": ("--ray-address", "localhost:1"),
    "a server's method": ("--engine", "openai", "--base-url", "http://localhost/v1", "-sc", "{}"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, checkpoints: Pair, suite: Path, tmp_path: Path) -> None:
    """One sentence; and nothing is left behind that a corrected command would trip over."""
    out = tmp_path / "out"
    found = run(*small(checkpoints, suite), *BAD[case], "--out", out)
    assert found.exit_code in (1, 2), found.output
    lines = found.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("foretoken: "), found.stderr
    assert not found.stdout and not out.exists()
