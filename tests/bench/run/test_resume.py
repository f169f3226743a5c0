"""A run that is killed, continued, cut into shards: what is in its folder at the end."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.bench.measure import costs
from foretoken.bench.plan import Plan, blocks, units
from foretoken.bench.record import Answer, read_results
from foretoken.bench.run.merge import merge
from foretoken.bench.run.resume import Samples, answer_keys, read_plan, write_plan
from foretoken.bench.run.runner import Runner
from foretoken.bench.run.session import measure
from foretoken.bench.suites.suite import Prompt, Suite
from foretoken.files import write_json

Pair = tuple[Path, Path]

TURNS = {"chat": ("Hello there.", "And then?"), "qa": ("Who wrote it, and when?",)}
PROMPTS = [
    Prompt(f"{task}-{i}", task, tuple(f"{text} {i}" for text in TURNS[task]))
    for i in range(3)
    for task in TURNS
]
SUITE = Suite("some", "0" * 64, tuple(PROMPTS))
TIMES = ("seconds", "decodings", "peak_memory_mib", "energy_j")


def run(target: str, draft: str, out: Path, shard: tuple[int, int] = (1, 1)) -> None:
    """A whole run, as the command does it; also in processes that are going to be killed."""
    import torch

    torch.set_num_threads(1)
    write_plan(out, asked(shard))
    plan = Plan(
        model=target,
        name="tiny",
        max_tokens=16,
        batch_sizes=(1, 2),
        repeats=2,
        methods={"pld": {"method": "pld"}, "sps": {"method": "sps", "model": draft}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "_ARRAY_BYTES", 2**16)
        patch.setattr(costs, "WIDTHS", (1, 2))
        results = measure(Runner(plan), SUITE, SUITE.prompts, Samples(out), shard=shard)
    write_json(out / "results.json", results)


def asked(shard: tuple[int, int]) -> dict[str, Any]:
    text = None if shard == (1, 1) else f"{shard[0]}/{shard[1]}"
    return {"suite": SUITE.name, "repeats": 2, "shard": text}


def lines(folder: Path) -> list[dict[str, Any]]:
    """samples.jsonl without what the clock says."""
    found = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]


@pytest.fixture(scope="module")
def whole(checkpoints: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run(str(checkpoints[0]), str(checkpoints[1]), folder)
    return folder


def test_three_kills_change_nothing(checkpoints: Pair, whole: Path, tmp_path: Path) -> None:
    """kill -9 at three moments, at both temperatures, and no answer is there twice."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["foretoken.bench.run.session", "foretoken.bench.run.merge"])
    dice, size = random.Random(4), 0
    full = (whole / "samples.jsonl").stat().st_size
    for kill in range(3):
        child = context.Process(target=run, args=(*map(str, checkpoints), tmp_path))
        child.start()
        grown = full * (kill + dice.random()) / 4
        while size <= grown and child.is_alive():
            time.sleep(0.002)
            size = samples.stat().st_size if (samples := tmp_path / "samples.jsonl").exists() else 0
        time.sleep(dice.random() / 50)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL and not (tmp_path / "results.json").exists()
        with (tmp_path / "samples.jsonl").open("ab") as file:
            file.write([b"", b'{"target": "ti', b"\0\0\0"][kill])  # what a torn write may leave
    run(str(checkpoints[0]), str(checkpoints[1]), tmp_path)
    assert lines(tmp_path) == lines(whole)
    mine, theirs = read_results(tmp_path / "results.json"), read_results(whole / "results.json")
    assert [r["tokens"] for r in mine["runs"]] == [r["tokens"] for r in theirs["runs"]]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.77, 0.999, 1.0])
def test_a_cut_anywhere(checkpoints: Pair, whole: Path, tmp_path: Path, share: float) -> None:
    """Whole units are kept, byte for byte, and whatever stands after them is served again."""
    shutil.copytree(whole, tmp_path / "cut")
    path = tmp_path / "cut" / "samples.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: round(share * len(data))])
    samples = Samples(tmp_path / "cut")
    served = [u for block in blocks(SUITE.prompts, [1, 2]) for u in units(block, PLAN)]
    keys = [answer_keys(u, ["autoregressive", "pld", "sps"], "tiny", "float32") for u in served]
    done = samples.resume(0, keys)
    kept = path.read_bytes()
    assert data.startswith(kept) and len(samples.answers) == sum(map(len, keys[:done]))
    assert (done == len(keys)) == (share == 1.0)
    again = [Answer.parse(line.decode()) for line in data.splitlines()]
    samples.add(again[len(samples.answers) :])
    assert path.read_bytes() == data


PLAN = Plan(model="", name="tiny", methods={}, batch_sizes=(1, 2))


def test_nothing_is_run_twice(checkpoints: Pair, whole: Path, tmp_path: Path) -> None:
    """A finished file is left as it is."""
    shutil.copytree(whole, tmp_path / "again")
    before = (whole / "samples.jsonl").read_bytes()
    run(str(checkpoints[0]), str(checkpoints[1]), tmp_path / "again")
    assert (tmp_path / "again" / "samples.jsonl").read_bytes() == before


def test_damage_in_the_middle_is_named(whole: Path, tmp_path: Path) -> None:
    data = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_bytes(b"".join([*data[:2], b"{}\n", *data[3:]]))
    with pytest.raises(ForetokenError, match="line 3 is damaged"):
        Samples(tmp_path)


def test_another_answer_in_a_units_place_is_named(whole: Path, tmp_path: Path) -> None:
    data = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_bytes(b"".join([data[0], data[2], data[1], *data[3:]]))
    keys = [Answer.parse(line.decode()).key for line in data]
    with pytest.raises(ForetokenError, match="line 2 has"):
        Samples(tmp_path).resume(0, [keys])


def test_another_plan_is_refused(tmp_path: Path) -> None:
    """Naming the difference; the same plan goes on, and one without answers binds to nothing."""
    folder = tmp_path / "new"
    write_plan(folder, {"seed": 7})
    write_plan(folder, {"seed": 0, "repeats": 3})
    (folder / "samples.jsonl").write_text("{}\n")
    write_plan(folder, {"seed": 0, "repeats": 3})
    for other in ({"seed": 1, "repeats": 3}, {"repeats": 3}, {"seed": 0, "repeats": 3, "x": 1}):
        with pytest.raises(ForetokenError, match=r"seed|x"):
            write_plan(folder, other)
    assert read_plan(folder) == {"seed": 0, "repeats": 3}


def test_a_strangers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("{}\n")
    with pytest.raises(ForetokenError, match=r"no plan\.json"):
        write_plan(tmp_path, {})


def test_a_warm_run_is_not_resumed(checkpoints: Pair, tmp_path: Path) -> None:
    plan = Plan(
        model=checkpoints[0], name="tiny", methods={}, max_tokens=4, temperatures=(0.0,), warm=True
    )
    runner = Runner(plan)
    runner.meter = lambda: None  # type: ignore[method-assign, assignment, return-value]
    measure(runner, SUITE, SUITE.prompts[:2], Samples(tmp_path))
    with pytest.raises(ForetokenError, match="can't be resumed"):
        measure(runner, SUITE, SUITE.prompts[:3], Samples(tmp_path))


# --- shards --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(checkpoints: Pair, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    for i in (1, 2):
        run(str(checkpoints[0]), str(checkpoints[1]), folder / str(i), (i, 2))
    return [folder / "1", folder / "2"]


def test_shards_come_to_the_whole(shards: list[Path], whole: Path, tmp_path: Path) -> None:
    """The same answers, and the same numbers but for the times and the order of resampling."""
    [found] = merge(shards, tmp_path, SUITE)
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


def test_what_is_not_a_whole_run_is_not_merged(shards: list[Path], tmp_path: Path) -> None:
    first, second = shards
    with pytest.raises(ForetokenError, match="1/2 are not the whole"):
        merge([first], tmp_path, SUITE)
    with pytest.raises(ForetokenError, match="1/2, 1/2 are not the whole"):
        merge([first, first], tmp_path, SUITE)
    other = shutil.copytree(second, tmp_path / "other")
    write_json(other / "plan.json", {**read_plan(second), "repeats": 5})
    with pytest.raises(ForetokenError, match="their repeats differs"):
        merge([first, other], tmp_path, SUITE)
    write_json(other / "plan.json", read_plan(second))
    (other / "results.json").unlink()
    with pytest.raises(ForetokenError, match=r"results\.json"):
        merge([first, other], tmp_path, SUITE)


def test_machines_of_shards_are_named(shards: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(shards[1], tmp_path / "other")
    results = read_results(other / "results.json")
    results["environment"]["cpu"] = "another one"
    write_json(other / "results.json", results)
    [found] = merge([shards[0], other], tmp_path / "out", SUITE)
    assert found["environment"]["cpu"].endswith(" | another one")
    assert found["environment"]["python"] == results["environment"]["python"]
