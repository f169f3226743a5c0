"""The measurements of a folder: finished ones, and what a run that was killed has so far."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import synthetic
from foretoken import ForetokenError
from foretoken.bench.measure import metrics
from foretoken.bench.record import Answer, Results
from foretoken.bench.report.compare import compare
from foretoken.bench.report.folder import read_finished, read_folder
from foretoken.bench.report.page import write_report
from foretoken.cli.bench_options import BenchOptions
from foretoken.cli.job import make_job
from foretoken.cli.options import ModelOptions
from foretoken.files import write_json
from report_pages import page, printed

METHODS = ("autoregressive", "pld")


def answers(dtype: str = "float32", prompts: int = 3, **given: Any) -> list[Answer]:
    """Units of one prompt, as a run writes them."""
    return [
        synthetic.answer(method, "qa", id=f"qa-{i}", dtype=dtype, sameness="identical", **given)
        for i in range(prompts)
        for method in METHODS
    ]


def plan(model: Path, **changes: Any) -> dict[str, Any]:
    """What `foretoken bench` writes before it measures two targets."""
    options = BenchOptions(
        suite="bundled", model=str(model), methods="pld", dtypes="float32,bfloat16", limit=2
    )
    return {**make_job(options, ModelOptions(device="cpu")).record(None), **changes}


def killed(
    folder: Path, asked: dict[str, Any], written: Iterable[Answer], *finished: Results
) -> Path:
    """A folder as a killed run leaves it."""
    for i, part in enumerate(finished):
        write_json(folder / (f"results-{i}.json" if i else "results.json"), part)
    write_json(folder / "plan.json", asked)
    (folder / "samples.jsonl").write_text("".join(a.line() + "\n" for a in written))
    return folder


def test_a_killed_run_is_reported_as_it_stands(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """With the numbers of its answers, how many prompts were planned, and nothing made up."""
    asked, written = plan(checkpoints[0]), answers()
    killed(tmp_path, asked, written)
    first, second = read_folder(tmp_path)
    [_, pld] = metrics.runs(written, first["suite"]["left_out"], repeats=1)
    assert first["runs"][1]["tokens"] == pld["tokens"] and pld["tokens"] > 0
    assert [run["method"] for run in first["runs"]] == list(METHODS)
    assert first["suite"]["prompts"] == 3 and first["suite"]["planned"] == asked["prompts"] > 3
    assert first["environment"] == {} and first["costs"] is None
    assert (second["target"]["dtype"], second["runs"]) == ("bfloat16", [])
    write_report(tmp_path)
    said = f"Unfinished: 3 of {asked['prompts']} prompts."
    for text in (page(tmp_path), (tmp_path / "report.md").read_text(), printed([first, second])):
        assert said in text and f"Unfinished: 0 of {asked['prompts']} prompts." in text
    assert "0.0 M parameters" not in page(tmp_path) and "None" not in page(tmp_path)
    assert "skipped: fewer than" not in page(tmp_path)


def test_half_a_unit_counts_for_nobody(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A prompt that not all methods have answered, and a line that was torn."""
    whole = killed(tmp_path, plan(checkpoints[0]), answers(prompts=3))
    before = read_folder(whole)
    with (whole / "samples.jsonl").open("a") as file:
        file.write(synthetic.answer("autoregressive", "qa", id="qa-3").line() + '\n{"target": "t')
    assert read_folder(whole) == before


def test_finished_targets_come_first(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """As their files have them; only the rest is made of answers."""
    done = synthetic.results(temperatures=(0.0,), sizes=(1,))
    written = [*answers(), *answers("bfloat16", prompts=2)]
    killed(tmp_path, plan(checkpoints[0]), written, done)
    first, second = read_folder(tmp_path)
    assert first == read_finished(tmp_path)[0] and "planned" not in first["suite"]
    assert (second["target"]["dtype"], second["suite"]["prompts"]) == ("bfloat16", 2)
    killed(tmp_path, plan(checkpoints[0]), written, done, synthetic.results("bfloat16"))
    assert all("planned" not in part["suite"] for part in read_folder(tmp_path))


def test_a_finished_run_needs_nothing_of_its_plan(tmp_path: Path) -> None:
    """A demo's says nothing, and its results are whole."""
    killed(tmp_path, {"command": "demo"}, answers(), synthetic.results())
    assert read_folder(tmp_path) == read_finished(tmp_path)


def test_an_inflated_target_is_called_so(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """By the plan, as answers don't tell."""
    asked = plan(checkpoints[0])
    asked["targets"] = [{**asked["targets"][0], "shape": "135m"}]
    killed(tmp_path, asked, answers())
    [part] = read_folder(tmp_path)
    assert part["target"]["inflated"] == "135m"


@pytest.mark.parametrize("change", [{"prompts": None}, {"shard": "1/2"}])
def test_where_the_plan_does_not_tell_how_many(
    checkpoints: tuple[Path, Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    """A shard's own part, and plans of earlier versions."""
    killed(tmp_path, plan(checkpoints[0], **change), answers())
    assert read_folder(tmp_path)[0]["suite"]["planned"] is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"command": "demo"}, "lacks suite"), ([], "no JSON object"), ({"targets": 5}, "a list")],
)
def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, asked: Any, words: str) -> None:
    """A demo's has no settings, and others may be damaged."""
    killed(tmp_path, asked, answers())
    with pytest.raises(ForetokenError, match=rf"plan\.json.*{words}"):
        read_folder(tmp_path)


def test_answers_of_no_planned_target_are_refused(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """They are of another run."""
    written = [*answers("a"), *answers("b"), *answers("c")]
    killed(tmp_path, plan(checkpoints[0]), written)
    with pytest.raises(ForetokenError, match="answers of 3 targets without results"):
        read_folder(tmp_path)


def test_comparing_takes_finished_runs_only(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Two unfinished ones would differ in prompts, and in machines that nobody knows."""
    killed(tmp_path, plan(checkpoints[0]), answers())
    with pytest.raises(ForetokenError, match="its run is unfinished"):
        compare(tmp_path, tmp_path)


def test_a_unit_of_which_a_turn_is_missing(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """It is left out of that setting alone."""
    hot = [
        synthetic.answer(method, "qa", 1.0, id="qa-2", turn=turn)
        for method, turn in (("autoregressive", 0), ("pld", 0), ("autoregressive", 1))
    ]
    killed(tmp_path, plan(checkpoints[0]), [*answers(), *hot])
    [run, *_] = runs = read_folder(tmp_path)[0]["runs"]
    assert {run["temperature"] for run in runs} == {0.0} and run["prompts"] == 3


def test_what_the_plan_says_of_an_unfinished_run(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """Where it is asked, whose answers it goes on from, what counts, and what was tuned."""
    asked, server = (
        plan(checkpoints[0]),
        {"base_url": "http://127.0.0.1", "baseline_url": "http://127.0.0.1:9"},
    )
    tuned = {"tuned:fast": {"method": "pld", "prompt_lookup_max": 2}}
    asked["targets"] = [{**asked["targets"][0], "methods": tuned}]
    for given, history, threshold in (
        ({}, "autoregressive", 0.8),
        ({"keep_loops": True}, "autoregressive", 0.0),
        ({**server, "baseline_url": None}, "own", 0.8),
        (server, "autoregressive", 0.8),
    ):
        killed(tmp_path, {**asked, **given}, answers())
        [part] = read_folder(tmp_path)
        suite = part["suite"]
        assert (suite["history"], suite["distinct_4_threshold"]) == (history, threshold)
        assert part["target"].get("server") == given.get("base_url")
        assert part["tuned"] == tuned


def test_bleu_waits_for_the_end(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """It is of all translations together, and no mean of their own."""
    killed(tmp_path, plan(checkpoints[0]), answers(scores={"bleu": 50.0, "accuracy": 1.0}))
    for run in read_folder(tmp_path)[0]["runs"]:
        assert run["scores"] == run["by_task"]["qa"]["scores"] == {"accuracy": 1.0}
