"""Shards over a local Ray cluster of two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.run import cluster
from foretoken.ray_cluster import cluster as started

WRITES = """
import os, pathlib, sys
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with (folder / "samples.jsonl").open("a") as samples:
    for i in range(3):
        print(name, i, file=samples)
(folder / "results.json").write_text(f"{os.getpid()} {folder} {os.nice(0)}")
if name == "bad":
    print("noise", file=sys.stderr)
    sys.exit("foretoken: the model is missing.")
"""


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    pytest.importorskip("ray")
    with started():
        yield


def trivial(*names: str) -> list[list[str]]:
    return [["-c", WRITES, cluster.FOLDER, name] for name in names]


def test_shards_run_apart_and_a_failed_one_spoils_no_other(
    two_workers: None, tmp_path: Path
) -> None:
    """Each has its own process and folder; the failed one is named, with what it said last."""
    seen: list[int] = []
    shards = cluster.run_shards(
        trivial("a", "bad", "c"), tmp_path, workers=2, advance=lambda: seen.append(1)
    )
    assert [s.number for s in shards] == [1, 2, 3]
    assert [s.error for s in shards] == [
        None,
        "Shard 2/3 failed: foretoken: the model is missing.",
        None,
    ]
    texts = [(s.folder / "samples.jsonl").read_text() for s in shards]
    assert texts == [f"{name} 0\n{name} 1\n{name} 2\n" for name in ("a", "bad", "c")]
    where = [(s.folder / "results.json").read_text() for s in shards]
    processes, folders, niceness = zip(*(text.split() for text in where), strict=True)
    assert set(niceness) == {str(os.nice(0))}, "measured after everything else on the machine"
    assert len(set(processes)) == len(set(folders)) == 3
    assert not any(Path(folder).exists() for folder in folders)
    assert len(seen) == 9
    assert (shards[1].folder / "stderr.txt").read_text().startswith("noise\n")


def test_a_shard_goes_on_with_its_folder(two_workers: None, tmp_path: Path) -> None:
    """What an earlier run left is there when the shard runs again."""
    cluster.run_shards(trivial("a"), tmp_path, workers=2)
    seen: list[int] = []
    [shard] = cluster.run_shards(trivial("a"), tmp_path, workers=2, advance=lambda: seen.append(1))
    assert (shard.folder / "samples.jsonl").read_text().count("a 2\n") == 2
    assert len(seen) == 3


class Child:
    """A process that does one thing to its samples between two looks at them, and ends."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = iter(steps)

    def poll(self) -> int | None:
        step = next(self._steps, None)
        if step is None:
            return 0
        step()
        return None


@pytest.mark.parametrize("more", [b"", b"c 1\nc 2\n"], ids=["at once", "after a look"])
def test_what_a_resumed_shard_cuts_off_is_cut_here(
    more: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was lost left a part of a unit: the copies stay equal, whenever it is seen."""
    monkeypatch.setattr(cluster, "_POLL", 0.0)
    theirs, ours = tmp_path / "theirs.jsonl", tmp_path / "ours"
    ours.mkdir()
    for path in (theirs, ours / cluster.SAMPLES):
        path.write_bytes(b"a 1\na 2\nb 1\n")

    def write(text: bytes) -> Callable[[], object]:
        return lambda: theirs.write_bytes(text)

    child: Any = Child(write(b"a 1\na 2\n" + more), write(b"a 1\na 2\nc 1\nc 2\nd"))
    for lines in cluster._new_lines(child, theirs):
        cluster._append(lines, ours, lambda: None)
    assert (ours / cluster.SAMPLES).read_bytes() == b"a 1\na 2\nc 1\nc 2\n"


@pytest.mark.slow
def test_answers_come_home_before_the_shard_ends(two_workers: None, tmp_path: Path) -> None:
    """Whoever stops the run keeps what was answered, and no process stays running."""
    pids = tmp_path / "pid"
    slow = (
        WRITES
        + f"""
pathlib.Path({str(pids)!r}).write_text(str(os.getpid()))
time.sleep(100)
"""
    )

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.run_shards([["-c", slow, cluster.FOLDER, "a"]], tmp_path, workers=2, advance=stop)
    assert (tmp_path / "shard-1" / "samples.jsonl").read_text().startswith("a 0\na 1\n")
    until = time.monotonic() + 60  # at once where nothing else is running
    while _alive(int(pids.read_text())) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(int(pids.read_text()))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_share_the_machine(two_workers: None) -> None:
    """Equal shares of whole processors; more workers than processors take turns on parts."""
    import ray

    cores = ray.cluster_resources()["CPU"]
    assert cluster._resources(1)["num_cpus"] == cores
    assert cluster._resources(2)["num_cpus"] == max(cores / 2, cores // 2)
    assert cluster._resources(1000)["num_cpus"] == cores / 1000


def test_commands_name_their_shard() -> None:
    """Each with its folder and its number."""
    assert [c[2:] for c in cluster.shard_commands(["bench", "--limit", "1"], 2)] == [
        ["bench", "--limit", "1", "--out", cluster.FOLDER, "--shard", "1/2"],
        ["bench", "--limit", "1", "--out", cluster.FOLDER, "--shard", "2/2"],
    ]


@pytest.mark.slow
def test_the_command_measures_the_same_on_a_cluster(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """`bench --ray 2` leaves the record that one process leaves, times aside, and no process."""
    pytest.importorskip("ray")
    suite = tmp_path / "few.jsonl"
    rows = [{"id": str(i), "task": "qa", "turns": [f"Question {i}?"]} for i in range(4)]
    suite.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "bench",
        "--model",
        str(checkpoints[0]),
        "--suite",
        str(suite),
        "--methods",
        "pld",
        "--max-tokens",
        "8",
        "--json",
    ]
    found = []
    for more in ([], ["--ray", "2"]):
        out = tmp_path / f"out{len(more)}"
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from foretoken.cli import main; main()",
                *words,
                *more,
                "--out",
                str(out),
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "ray" not in done.stderr.lower()
        [results] = json.loads(done.stdout)
        answers = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
        found.append((results, {(a["method"], a["temperature"], a["id"]): a for a in answers}))
    (alone, one), (spread, many) = found
    assert one.keys() == many.keys() and len(one) == 16
    assert all(one[key]["token_ids"] == many[key]["token_ids"] for key in one)
    assert [run["tokens"] for run in alone["runs"]] == [run["tokens"] for run in spread["runs"]]


def test_why_a_shard_failed(tmp_path: Path) -> None:
    """What it said last, or its exit status where it said nothing."""
    said = tmp_path / "stderr.txt"
    for text, why in (("noise\nno model. \n\n", "no model."), ("\n", "exit status 3, and nothing")):
        said.write_text(text)
        assert (cluster._failure(3, said) or "").startswith(why)
        assert cluster._failure(0, said) is None
