"""Shards of a run come to the whole run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import synthetic
from foretoken import ForetokenError
from foretoken.bench.record import read_results
from foretoken.bench.run import merge as merging
from foretoken.bench.run.merge import merge
from foretoken.bench.run.resume import read_plan
from foretoken.files import write_json
from whole_run import RUN_SUITE, Pair, lines, run


@pytest.fixture(scope="module")
def shards(checkpoints: Pair, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    for i in (1, 2):
        run(str(checkpoints[0]), str(checkpoints[1]), folder / str(i), (i, 2))
    return [folder / "1", folder / "2"]


def test_shards_come_to_the_whole(shards: list[Path], whole: Path, tmp_path: Path) -> None:
    """The same answers, and the same numbers but for the times and the order of resampling."""
    [found] = merge(shards, tmp_path, RUN_SUITE)
    assert read_results(tmp_path / "results.json") == found

    def key(line: dict[str, Any]) -> str:
        return json.dumps(line, sort_keys=True)

    assert sorted(lines(tmp_path), key=key) == sorted(lines(whole), key=key)
    one = read_results(whole / "results.json")
    same = ("prompts", "tokens", "mean_acceptance_length", "acceptance_rate_per_position")
    for mine, theirs in zip(found["runs"], one["runs"], strict=True):
        assert {k: mine[k] for k in same} == {k: theirs[k] for k in same}  # type: ignore[literal-required]
    assert found["suite"] == one["suite"]
    assert read_plan(tmp_path)["shard"] is None


def test_results_come_last(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that is killed on the way leaves nothing that looks whole."""

    def full(*_: object) -> None:
        raise ForetokenError("The disk is full.")

    monkeypatch.setattr(merging, "write_file", full)
    with pytest.raises(ForetokenError, match="full"):
        merge(shards, tmp_path, RUN_SUITE)
    assert not [*tmp_path.glob("results*.json")]


def test_what_is_not_a_whole_run_is_not_merged(shards: list[Path], tmp_path: Path) -> None:
    """A missing, doubled, foreign or unfinished shard is named."""
    first, second = shards
    with pytest.raises(ForetokenError, match="1/2 are not the whole"):
        merge([first], tmp_path, RUN_SUITE)
    with pytest.raises(ForetokenError, match="1/2, 1/2 are not the whole"):
        merge([first, first], tmp_path, RUN_SUITE)
    other = shutil.copytree(second, tmp_path / "other")
    write_json(other / "plan.json", {**read_plan(second), "repeats": 5})
    with pytest.raises(ForetokenError, match="their repeats differs"):
        merge([first, other], tmp_path, RUN_SUITE)
    write_json(other / "plan.json", read_plan(second))
    (other / "results.json").unlink()
    with pytest.raises(ForetokenError, match=r"results\.json"):
        merge([first, other], tmp_path, RUN_SUITE)


def test_machines_of_shards_are_named(shards: list[Path], tmp_path: Path) -> None:
    """Where they differ, next to each other."""
    other = shutil.copytree(shards[1], tmp_path / "other")
    results = read_results(other / "results.json")
    results["environment"]["cpu"] = "another one"
    write_json(other / "results.json", results)
    [found] = merge([shards[0], other], tmp_path / "out", RUN_SUITE)
    assert found["environment"]["cpu"].endswith(" | another one")
    assert found["environment"]["python"] == results["environment"]["python"]


def test_what_any_shard_left_out_is_told(shards: list[Path], tmp_path: Path) -> None:
    """Another machine may have lacked the memory for a method."""
    other = shutil.copytree(shards[1], tmp_path / "other")
    results = read_results(other / "results.json")
    write_json(other / "results.json", {**results, "not_run": {"medusa": "No room."}})
    [found] = merge([shards[0], other], tmp_path / "out", RUN_SUITE)
    assert found["not_run"] == {"medusa": "No room."}


def test_shards_of_two_versions_are_merged(shards: list[Path], tmp_path: Path) -> None:
    """Earlier ones didn't write how many prompts are planned."""
    other = shutil.copytree(shards[1], tmp_path / "other")
    write_json(other / "plan.json", {**read_plan(other), "prompts": 6})
    merge([shards[0], other], tmp_path / "out", RUN_SUITE)
    assert (tmp_path / "out" / "results.json").is_file()


def test_targets_keep_their_order(tmp_path: Path) -> None:
    """The first one's file is called otherwise than the others', and would come last by name."""
    kinds = ("float32", "bfloat16")
    for i in (1, 2):
        folder = tmp_path / str(i)
        parts = [synthetic.results(kind, temperatures=(0.0,), sizes=(1,)) for kind in kinds]
        answers = [
            synthetic.answer(method, "qa", id=f"qa-{i}", dtype=kind)
            for kind in kinds
            for method in ("autoregressive", "pld")
        ]
        for name, part in zip(("results.json", "results-b.json"), parts, strict=True):
            write_json(folder / name, part)
        write_json(folder / "plan.json", {"repeats": 1, "shard": f"{i}/2"})
        (folder / "samples.jsonl").write_text("".join(a.line() + "\n" for a in answers))
    found = merge([tmp_path / "1", tmp_path / "2"], tmp_path / "out", RUN_SUITE)
    assert [part["target"]["dtype"] for part in found] == [*kinds]
    assert [line["dtype"] for line in lines(tmp_path / "out")] == ["float32"] * 4 + ["bfloat16"] * 4
