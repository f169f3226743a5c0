"""`foretoken simulate`: entered numbers, a run, trees, a roofline, and what is wrong with each."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench.measure.test_ideal import COSTS, run
from foretoken.bench import record
from foretoken.bench.measure import simulate
from foretoken.bench.measure.simulate import Machine
from foretoken.cli.simulate import _size
from foretoken.cli.simulate import simulate as command
from foretoken.control.curve import Curve
from foretoken.errors import ForetokenError

CURVE = Curve({1: 30.0, 8: 33.0, 64: 60.0})


STEEP = Machine(lambda batch, tokens: CURVE(tokens), lambda batch, tokens: 0.1 * CURVE(tokens), 0.2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds results.json, as far as it is read here."""
    plain = run("autoregressive", 1.0, {"0": 40})
    plain["ms_per_step"]["other"] = 0.8
    runs = [plain, run("pld", 2.0, {"0": 5, "4": 5}), run("sps", 3.0, {"4": 10})]
    found = {
        "runs": runs,
        "costs": COSTS,
        "target": {"name": "tiny"},
        "environment": {"cpu": "a CPU"},
    }
    (tmp_path / "results.json").write_text(json.dumps(found))
    monkeypatch.setattr(record, "check", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(arguments: str) -> Any:
    """What the command prints, as data; its error is raised."""
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [*arguments.split(), "--json"])
    if isinstance(done.exception, Exception):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_command_with_entered_numbers() -> None:
    """Rows by batch size, called predicted, the numbers called entered."""
    found = answer("--acceptance 0.8 --draft-cost 0.1 --curve 1:30,8:33,64:60 --batch-sizes 1,64")
    assert found["predicted"] is True
    assert found["acceptance"].startswith("entered") and found["costs"].startswith("entered")
    one, many = found["rows"]
    chain, machine = simulate.chain_of_rates([0.8]), Machine(STEEP.target, STEEP.draft)
    assert one["speedup"] == pytest.approx(simulate.speedup(chain.drafting(4), machine, 1))
    assert (one["nodes"], many["batch_size"]) == (4, 64)
    assert one["best"]["speedup"] >= one["speedup"]


def test_command_with_a_run(folder: Path) -> None:
    """Rates and costs of a results.json; either can be replaced by entered numbers."""
    found = answer("--from results.json --method sps --batch-sizes 1")
    assert found["costs"] == "measured, tiny on a CPU"
    record = json.loads((folder / "results.json").read_text())
    record["environment"]["gpu"] = "a GPU"
    for device, machine in (("cuda", "a GPU"), ("cpu", "a CPU")):
        record["target"]["device"] = device
        (folder / "results.json").write_text(json.dumps(record))
        again = answer("--from results.json --method sps --batch-sizes 1")
        assert again == {**found, "costs": f"measured, tiny on {machine}"}
    assert found["rows"][0]["speedup"] == pytest.approx(3.0 * 11 / (14 + 4 * 1 + 1))
    longer = answer("--from results.json --acceptance 0.5 --draft-length 1 --batch-sizes 1")
    assert longer["rows"][0]["speedup"] == pytest.approx(1.5 * 11 / (11 + 1))
    elsewhere = answer("--from results.json --method pld --curve 1:10,5:30 --batch-sizes 1")
    assert elsewhere["rows"][0]["speedup"] == pytest.approx(2.0 * 10 / 20)
    assert elsewhere["acceptance"].startswith("measured") and "entered" in elsewhere["costs"]
    shorter = answer("--from results.json --method sps --draft-length 2 --batch-sizes 1")
    assert shorter["rows"][0]["tokens_per_step"] == pytest.approx(1 + 0.5 + 0.5)


def test_command_with_trees_and_a_roofline(tmp_path: Path) -> None:
    """A tree of so many nodes and levels, and the best one; a curve may come from a file."""
    line = "--parameters 7e9 --bandwidth-gb-s 2000 --tflops 300"
    found = answer(f"--ranks 0.6,0.2 --nodes 8 --draft-length 3 {line} --batch-sizes 1")
    assert "roofline of entered numbers" in found["costs"]
    assert found["rows"][0]["nodes"] == 8 and found["rows"][0]["depth"] <= 3
    tree, chain = (SimpleNamespace(nodes=4, depth=depth) for depth in (3, 4))
    assert (_size(tree), _size(chain)) == ("4 deep 3", "4")  # type: ignore[arg-type]
    path = tmp_path / "curve.json"
    path.write_text('{"1": 30, "8": 33}')
    assert answer(f"--acceptance 0.5 --curve {path} --batch-sizes 1")["rows"]


def test_command_shows_a_table() -> None:
    """The same for people."""
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["--acceptance", "0.8", "--curve", "1:30,8:33"])
    assert done.exit_code == 0
    assert "Predicted" in done.output and "drafting free" in " ".join(done.output.split())
    slow = CliRunner().invoke(app, ["--acceptance", "0", "--curve", "1:8280", "--other", "0.5"])
    assert " 12,420.0 " in slow.output
    fast = CliRunner().invoke(app, ["--acceptance", "0", "--curve", "1:0.0403"])
    assert " 0.0403 " in fast.output
    assert "own work entered as 0.5 of a plain pass" in " ".join(slow.output.split())


LINE = "--curve 1:30"
ROOF = "--parameters 7e9 --tflops 300"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"{LINE}", "in one way"),
        (f"{LINE} --acceptance 0.8 --ranks 0.5", "in one way"),
        (f"{LINE} --acceptance 1.2", "between 0 and 1"),
        (f"{LINE} --acceptance high", "--acceptance is 'high'"),
        (f"{LINE} --acceptance 0.8 --batch-sizes 0", "at least 1"),
        (f"{LINE} --acceptance 0.8 --draft-cost -1", "shares of a pass"),
        (f"{LINE} --acceptance 0.8 --tflops 3", "not both"),
        (f"{LINE} --acceptance 0.8 --draft-cost nan", "finite shares of a pass"),
        (f"{LINE} --acceptance 0.8 --other inf", "finite shares of a pass"),
        (f"--acceptance 0.8 {ROOF} --bandwidth-gb-s inf", "all of them finite"),
        (f"{LINE} --method sps", "which results.json"),
        ("--acceptance 0.8", "no cost curve"),
        (f"{LINE} --acceptance 0.8 --context 4096", "--context is of a roofline"),
        ("--from results.json --method pld --kv-bytes-per-token 9", "--kv-bytes-per-token is of"),
        (f"{LINE} --acceptance 0.8 --nodes 8", "--nodes is of a tree"),
        ("--acceptance 0.8 --curve 30", "--curve is '30'"),
        ("--acceptance 0.8 --curve 0:30", "at least one point"),
        ("--acceptance 0.8 --tflops 3", "needs --parameters"),
        (f"--acceptance 0.8 {ROOF} --bandwidth-gb-s -2000", "all above 0"),
        (f"--acceptance 0.8 {ROOF} --bandwidth-gb-s nan", "all above 0"),
        (f"--acceptance 0.8 {ROOF} --bandwidth-gb-s 9 --context -1", "no other number below 0"),
        ("--from results.json --method pldd", "'pld'"),
        ("--from results.json --method pld --temperature 1", "not measured at temperature 1"),
        ("--from results.json --method pld --draft-length 5", "up to 4 tokens"),
        (f"--from results.json --method sps {LINE}", "by --draft-cost"),
        (f"{LINE} --acceptance 0.8 --from results.json", "--from gives costs"),
        (f"--ranks 0.5 {ROOF} --bandwidth-gb-s 9 --from results.json", "leave out --from"),
        (f"{LINE} --acceptance 0.8 --temperature 0", "--temperature is of a run"),
        ("--from nothing.json --method sps", "can't be read"),
    ],
)
def test_bad_input(folder: Path, arguments: str, message: str) -> None:
    """Each is an error that says what to give."""
    with pytest.raises(ForetokenError, match=message):
        answer(arguments)
