"""A run that is killed and resumed: what is in its folder at the end."""

from __future__ import annotations

import errno
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
from foretoken.bench.plan import Plan, blocks, units
from foretoken.bench.record import Answer, read_results
from foretoken.bench.report.samples import read_answers
from foretoken.bench.run.resume import Samples, answer_keys, read_plan, write_plan
from measured_answers import answer
from whole_run import RUN_SUITE, Pair, lines, run


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_nothing(checkpoints: Pair, whole: Path, tmp_path: Path, kills: int) -> None:
    """kill -9 at any moments, at both temperatures, and no answer is there twice."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["foretoken.bench.run.session", "foretoken.bench.run.merge"])
    dice, size = random.Random(4), 0
    (held := tmp_path / "held").touch()
    full = (whole / "samples.jsonl").stat().st_size
    for kill in range(kills):
        child = context.Process(target=run, args=(*map(str, checkpoints), tmp_path, (1, 1), held))
        child.start()
        grown = full * (kill + dice.random()) / (kills + 1)
        while size <= grown and child.is_alive():
            time.sleep(0.002)
            size = samples.stat().st_size if (samples := tmp_path / "samples.jsonl").exists() else 0
        time.sleep(dice.random() / 50)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL and not (tmp_path / "results.json").exists()
        with (tmp_path / "samples.jsonl").open("ab") as file:
            file.write([b"", b'{"target": "ti', b"\0\0\0"][kill % 3])  # what a torn write may leave
    held.unlink()
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
    served = [u for block in blocks(RUN_SUITE.prompts, [1, 2]) for u in units(block, PLAN)]
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
    """By its line."""
    data = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_bytes(b"".join([*data[:2], b"{}\n", *data[3:]]))
    with pytest.raises(ForetokenError, match="line 3 is damaged"):
        Samples(tmp_path)


WRONG_LINES = {
    b"": "not JSON",
    b"\x00\xff": "not JSON",
    b"[1]": "no JSON object",
    b'{"target": 3}': "target",
    b'{"target": "t"}': "lacks",
    b"[" * 100_000: "not JSON",
}


@pytest.mark.parametrize("wrong", WRONG_LINES, ids=range(len(WRONG_LINES)))
def test_what_is_no_answer_is_named(whole: Path, tmp_path: Path, wrong: bytes) -> None:
    """The file, the line and what it is, and the file stays as it was."""
    data = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_bytes(b"".join([data[0], wrong + b"\n", *data[1:]]))
    before = (tmp_path / "samples.jsonl").read_bytes()
    said = f"samples.jsonl, line 2 is damaged: .*{WRONG_LINES[wrong]}"
    with pytest.raises(ForetokenError, match=said) as raised:
        Samples(tmp_path)
    assert len(str(raised.value)) < 400 and "\n" not in str(raised.value)
    assert (tmp_path / "samples.jsonl").read_bytes() == before


def test_a_torn_line_is_told(whole: Path, tmp_path: Path, caplog: Any) -> None:
    data = (whole / "samples.jsonl").read_bytes()
    (tmp_path / "samples.jsonl").write_bytes(data[: data.index(b"\n") + 10])
    assert len(Samples(tmp_path).answers) == 1
    assert "ends in the middle of line 2, which is measured again" in caplog.text


def test_a_full_disk(whole: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """One sentence; what was there before can be resumed."""

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    samples = Samples(tmp_path)
    samples.add([answer(id="a")])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ForetokenError, match="No space left on device; what was measured before"):
        samples.add([answer(id="b")])
    monkeypatch.undo()
    again = Samples(tmp_path)
    assert again.resume(0, [[answer(id="a").key]]) == 1 and len(again.answers) == 1


def test_answers_of_later_targets_stay(tmp_path: Path) -> None:
    """Where an earlier one's results are gone, and its units are all there."""
    both = [answer(id="a"), answer(id="a", target="other")]
    Samples(tmp_path).add(both)
    before = (tmp_path / "samples.jsonl").read_bytes()
    (tmp_path / "samples.jsonl").write_bytes(before + b'{"torn')
    samples = Samples(tmp_path)
    assert samples.resume(0, [[both[0].key]]) == 1
    assert samples.answers == both and samples.path.read_bytes() == before


def test_another_answer_in_a_units_place_is_named(whole: Path, tmp_path: Path) -> None:
    """Lines in another order are not resumed."""
    data = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_bytes(b"".join([data[0], data[2], data[1], *data[3:]]))
    keys = [Answer.parse(line.decode()).key for line in data]
    with pytest.raises(ForetokenError, match="line 2 has"):
        Samples(tmp_path).resume(0, [keys])


def test_any_text_can_be_kept(tmp_path: Path) -> None:
    """Halves of surrogate pairs, in whatever a model or a server wrote, are read back equal."""
    odd = "a \ud83d b \udc80 é\u2028"
    kept = answer(id=odd, prompt=odd, text=odd, pieces=[odd] * 4, finish_reason=odd)
    write_plan(tmp_path, {"tasks": odd})
    write_plan(tmp_path, {"tasks": odd})
    samples = Samples(tmp_path)
    samples.add([kept])
    samples.add([answer()])
    assert read_plan(tmp_path) == {"tasks": odd}
    assert Samples(tmp_path).answers == read_answers(samples.path) == [kept, answer()]


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


def test_a_plan_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It lacks the number of prompts, which follows from the rest."""
    write_plan(tmp_path, {"seed": 0})
    (tmp_path / "samples.jsonl").write_text("{}\n")
    write_plan(tmp_path, {"seed": 0, "prompts": 80})
    assert read_plan(tmp_path)["prompts"] == 80


def test_a_strangers_folder_is_refused(tmp_path: Path) -> None:
    """Answers without a plan belong to another run."""
    (tmp_path / "samples.jsonl").write_text("{}\n")
    with pytest.raises(ForetokenError, match=r"no plan\.json"):
        write_plan(tmp_path, {})


def test_results_bind_a_folder_as_answers_do(tmp_path: Path) -> None:
    """Also where the answers that they were computed from are gone."""
    write_plan(tmp_path, {"seed": 0})
    (tmp_path / "results-b.json").write_text("{}")
    with pytest.raises(ForetokenError, match="seed 0, and now it is 1"):
        write_plan(tmp_path, {"seed": 1})


def test_a_later_target_is_resumed_where_its_answers_begin(tmp_path: Path) -> None:
    """Those of the target before it stay where they are."""
    first, second = answer(id="a"), answer(id="a", target="u")
    Samples(tmp_path).add([first])
    samples = Samples(tmp_path)
    samples.add([second])
    assert samples.resume(1, [[second.key]]) == 1 and samples.answers == [first, second]
    assert samples.resume(1, [[second.key, answer(id="b", target="u").key]]) == 0
    assert Samples(tmp_path).answers == [first]
