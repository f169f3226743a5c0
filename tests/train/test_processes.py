"""Training on several processes, which gloo joins on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.train import processes
from foretoken.train.answers import _Writer
from foretoken.train.data import read_conversations
from foretoken.train.job import Job
from foretoken.train.recipe import read_recipe
from foretoken.train.run import make
from launches import launch
from train.test_run import HEADS, weights
from trainings import SMALL

pytest.importorskip("accelerate")

LIMIT = 900  # seconds; processes that wait for each other would never end

CHILD = """
import faulthandler, gc, os, sys, time
faulthandler.dump_traceback_later({limit})  # where it waits, should it wait for ever
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from pathlib import Path, PosixPath
from foretoken.train import loop
from train import test_processes
left = torch.distributed.destroy_process_group
def destroyed(*given):
    alive = [type(each).__name__ for each in gc.get_objects()]
    assert "DistributedDataParallel" not in alive, "it would destroy the group with the GIL held"
    left(*given)
torch.distributed.destroy_process_group = destroyed
rank = int(os.environ["RANK"])
clock = time.monotonic
if {skewed!r} and rank == 1:  # its clock runs late, and in jumps
    loop.time.monotonic = lambda: clock() // 0.3 * 0.3 - 5
{before}
for out in {outs!r}:
    test_processes.train(Path({target!r}), Path({prompts!r}), Path(out), **{changes!r})
"""


def train(
    target: Path,
    prompts: Path,
    out: Path,
    every: float = 60.0,
    shard: bool = False,
    method: str = "medusa",
    shard_target: bool = False,
    source: str = "target",
    states: Path | None = None,
    **changes: Any,
) -> Any:
    shape = SMALL if method == "sps" else {}
    recipe = read_recipe(method, {**HEADS, **shape, **changes})
    asked = read_conversations(prompts)
    given: dict[str, Any] = {"every": every, "shard": shard, "shard_target": shard_target}
    given |= {"source": source, "states": states, "show": False}
    given |= {"dtype": "float64", "device": "cpu"}
    return make(Job(method, str(target), asked, recipe, out, **given))


def train_on_two(
    target: Path,
    prompts: Path,
    out: Path,
    skewed: bool = False,
    again: Path | None = None,
    before: str = "",
    by_torchrun: bool = False,
    **changes: Any,
) -> None:
    """Two processes, which meet at a port that a third one holds; both are ended where one fails.
    again: the folder of a second training by the same processes. before: lines that each runs
    first. by_torchrun: whether that starts them, and not what does so sooner."""
    outs = [str(folder) for folder in (out, again) if folder is not None]
    names = {"tests": str(Path(__file__).parents[1]), "target": str(target), "limit": LIMIT - 30}
    about = {"prompts": str(prompts), "outs": outs, "skewed": skewed, "changes": changes}
    about["before"] = before
    child, said = out.with_suffix(".py"), out.with_suffix(".log")
    child.write_text(CHILD.format(**names, **about))
    if not by_torchrun:
        assert launch(child, said, 2, LIMIT) == 0, said.read_text()[-4000:]
        return
    local = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")
    command = [sys.executable, "-m", "torch.distributed.run", *local, str(child)]
    with said.open("w") as log:
        own = {**os.environ, "ACCELERATE_USE_CPU": "1"}
        launcher = subprocess.Popen(command, env=own, stdout=log, stderr=log)
        try:
            code = launcher.wait(LIMIT)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # which ends the processes too
            code = launcher.wait()
    assert code == 0, said.read_text()[-4000:]


@pytest.mark.parametrize(
    "method",
    ["eagle", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dflash", "medusa"))],
)
def test_two_processes_learn_what_one_does(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, method: str
) -> None:
    """With twice its accumulation: the same weights, from texts that each wrote half of, by the
    same noise (EAGLE's) and places (DFlash's). Their clocks differ, and both save when the first
    one says."""
    changes: dict[str, Any] = {"method": method, "steps": 6, "evaluate_every": 4}
    train(checkpoints[0], prompts, tmp_path / "one", accumulation=2, **changes)
    changes |= {"every": 0.05, "skewed": True, "by_torchrun": True}
    train_on_two(checkpoints[0], prompts, tmp_path / "two", **changes)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-12)
    names = {path.name for path in (tmp_path / "one" / "data").iterdir()}
    assert {path.name for path in (tmp_path / "two" / "data").iterdir()} == names
    assert (tmp_path / "two" / "README.md").exists()
    lines = [
        (tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")
    ]
    for name in ("loss", "learned"):
        one, two = ([json.loads(line)[name] for line in each] for each in lines)
        assert len(two) == 6 and two == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("shard", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_processes_of_a_launch_train_twice(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, shard: bool
) -> None:
    """Whatever the first process does between: the second training learns what the first did."""
    first, second = tmp_path / "first", tmp_path / "second"
    changes: dict[str, Any] = {"method": "eagle", "steps": 2, "evaluate_every": 2}
    train_on_two(checkpoints[0], prompts, first, again=second, shard=shard, **changes)
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert (second / "README.md").exists()


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert processes.device("auto") == "auto"
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert processes.device("auto") == processes.device("cuda") == "cuda:3"
    assert processes.device("cpu") == "cpu" and processes.device("cuda:3") == "cuda:3"
    with pytest.raises(ForetokenError, match="'cuda:1', and each of 8 processes has a GPU of its"):
        processes.device("cuda:1")


def test_answers_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is another process's is waited for."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    waited: list[Path] = []

    def wait(file: Path) -> None:
        waited.append(file)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "wait_for", wait)
    nothing: Any = None
    writer = _Writer(nothing, SamplingParams(max_tokens=4), 9)
    monkeypatch.setattr(_Writer, "_made_for", lambda *given: {})
    for number in (0, 2):
        with pytest.raises(KeyboardInterrupt):
            writer.records([], number, Path(f"{number}.npz"))
    assert waited == [Path("0.npz"), Path("2.npz")]
