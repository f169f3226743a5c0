"""`foretoken certify`: the certificate, its record and its exit status."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from foretoken import LLM, METHODS, ForetokenError, SamplingParams
from foretoken.certify import PROCESSORS, Check, Plan, lines
from foretoken.cli import certify as command
from foretoken.cli.commands import app
from foretoken.drafters.hydra import HydraHeads
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.eagle import EagleModule
from foretoken.verify.speculative import Speculative


@dataclass(frozen=True)
class Credulous(Speculative):
    """Accepts everything."""

    def __call__(self, trees: Any, scores: Any, draws: Any) -> Any:
        verdict = super().__call__(trees, scores, draws)
        lengths = torch.tensor(trees.counts)
        return verdict._replace(lengths=lengths)


def test_command_says_it_with_its_exit_status(tmp_path: Path) -> None:
    """0 where all checks pass, 1 where one fails; the record says the same."""
    arguments = ["certify", "--method", "pld", "--quick", "--prompt", "A b c a b c.", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "record.json")])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert {c["outcome"] for c in record["checks"]} == {"passed"} and record["dtype"] == "float64"
    wrong = [
        "--method",
        "sps",
        "--draft-model",
        "mini-draft",
        "--verifier",
        f"{__name__}:Credulous",
    ]
    few = ["--quick", "--samples", "100", "--prompt", "A b c a b c."]
    done = CliRunner().invoke(app, ["certify", *wrong, *few])
    assert done.exit_code == 1 and "failed" in done.output


def test_a_record_is_resumed(tmp_path: Path) -> None:
    """What it holds is not checked again; another certificate's is refused."""
    out = tmp_path / "record.json"
    asked = ["certify", "--method", "pld", "--quick", "--dtype", "float32", "--out", str(out)]
    first = CliRunner().invoke(app, [*asked, "--prompt", "A b c a b c."])
    assert first.exit_code == 0, first.output
    record = json.loads(out.read_text())
    kept = {**record["checks"][0], "compared": "kept"}
    out.write_text(json.dumps({**record, "checks": [kept]}))
    again = CliRunner().invoke(app, [*asked, "--prompt", "A b c a b c."])
    assert again.exit_code == 0, again.output
    assert json.loads(out.read_text())["checks"] == [kept, *record["checks"][1:]]
    for change in (["--prompt", "D e f."], ["--num-speculative-tokens", "3"], ["--top-p", "0.9"]):
        other = CliRunner().invoke(app, [*asked, "--prompt", "A b c a b c.", *change])
        assert other.exit_code == 1 and "another --out" in " ".join(other.output.split())


def test_a_drafter_that_was_trained_again_is_checked_again(tmp_path: Path) -> None:
    """Its path is the same and its weights are others, so a record begun before is refused."""
    facts, drafter = Facts.of(LLM("mini").model), tmp_path / "hydra"
    heads = HydraHeads(facts, own_lm_heads=False)
    heads.save(drafter, {})
    asked = ["certify", "--method", "hydra", "--draft-model", str(drafter), "--quick"]
    asked += ["--prompt", "A b c.", "--temperature", "1", "--samples", "100"]
    asked += ["--out", str(tmp_path / "record.json")]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert CliRunner().invoke(app, asked).exit_code == 0
    with torch.no_grad():
        next(heads.parameters()).add_(1)
    heads.save(drafter, {})
    again = CliRunner().invoke(app, asked)
    assert again.exit_code == 1 and "contents of" in again.stderr


def test_a_tuned_file_that_says_something_else(tmp_path: Path) -> None:
    """The record has the options that were checked, so it isn't resumed with others."""
    tuned, out = tmp_path / "mine.json", tmp_path / "record.json"
    asked = ["certify", "-sc", json.dumps({"tuned": str(tuned)}), "--quick", "--out", str(out)]
    asked += ["--prompt", "A b c a b c.", "--dtype", "float32"]
    for tokens, code in ((3, 0), (3, 0), (4, 1)):
        config = {"method": "pld", "num_speculative_tokens": tokens}
        tuned.write_text(json.dumps({"schema": 1, "speculative_config": config}))
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == code, done.output
    assert "another --out" in " ".join(done.stderr.split())
    assert json.loads(out.read_text())["methods"]["num_speculative_tokens"] == 3


def test_all_builds_every_method(tmp_path: Path) -> None:
    """With the bundled small model and a datastore of the target's own answers; what needs more
    than the target gives is left out."""
    plain = LLM("mini", max_num_seqs=4)
    prompt = ["A b c a b c."]
    store = command._datastore(plain, prompt, str(tmp_path))
    configs = command._every_method("mini-draft", store)
    lossless = {row.name for row in METHODS.values() if row.lossless and not row.trained}
    assert {config["method"] for config in configs} >= {*lossless, "pld+sps", "pld|sps"}
    assert all(command._can_serve(plain, config) for config in configs)
    outside = LLM("mini", model_impl="transformers")
    beyond = {c["method"] for c in configs if not command._can_serve(outside, c)}
    assert beyond == {"draft_verify", "early_exit", "swift", "ppd", "speed", "substitute"}


def test_all_of_another_model(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled draft model is `mini`'s. Without one what needs it is left out, and so is what
    the target can't be served by; each is said, and ends nothing."""
    checked: list[dict[str, Any]] = []

    def run(plain: Any, configs: list[dict[str, Any]], *_: Any) -> list[Any]:
        checked.extend(configs)
        return []

    monkeypatch.setattr(command, "_run", run)
    asked = ["certify", "--model", str(checkpoints[0]), "--all", "--quick", "--prompt", "abc"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    methods = {config["method"] for config in checked}
    assert {"autoregressive", "pld", "suffix", "rest"} <= methods
    assert not methods & {"sps", "sequoia", "tli", "staged", "pld+sps"}
    assert "Without sps, " in done.stderr and "--draft-model" in done.stderr
    checked.clear()
    done = CliRunner().invoke(app, [*asked, "--draft-model", "mini-draft"])
    assert done.exit_code == 0 and "tli" in {config["method"] for config in checked}
    assert "sps" not in {config["method"] for config in checked}
    assert "Without sps: " in done.stderr


def test_all_of_nothing_is_no_certificate(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a target can be served by none of the methods."""
    monkeypatch.setattr(command, "_can_serve", lambda *_: False)
    asked = ["certify", "--model", str(checkpoints[0]), "--all", "--quick", "--prompt", "abc"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1 and "nothing is checked" in done.stderr


def test_all_takes_trained_drafters(tmp_path: Path) -> None:
    """Each checkpoint with every method that reads it; what is another target's is no drafter."""
    plain = LLM("mini", max_num_seqs=4)
    facts = Facts.of(plain.model)
    for folder, module in {
        "eagle": EagleModule(facts),
        "hydra": HydraHeads(facts, own_lm_heads=False),
        "hydra-plus": HydraHeads(facts, own_lm_heads=False, num_layers=2),
        "foreign": EagleModule(Facts(32, 64, 2)),
    }.items():
        module.save(tmp_path / folder, {})
    configs = command._trained(plain, tmp_path)
    found = [(each["method"], Path(each["model"]).name) for each in configs]
    assert found == [
        ("hydra", "hydra"),
        ("hydra", "hydra-plus"),
        ("eagle", "eagle"),
        ("eagle2", "eagle"),
    ]
    plan = Plan(((1, 2),), {}, max_tokens=4)
    named = [line.method for config in configs for line in lines(config, plan)]
    assert len({*named}) == 4 and "hydra with hydra-plus" in named
    with pytest.raises(ForetokenError, match="None of the folders"):
        command._trained(plain, tmp_path / "eagle")


@pytest.mark.parametrize(
    "options",
    [
        ["--all", "--method", "pld"],
        ["--all", "-sc", '{"method": "pld"}'],
        ["--all", "--verifier", "block"],
        ["--all", "--num-speculative-tokens", "3"],
        ["--method", "pld", "--drafters", "folder"],
    ],
    ids=" ".join,
)
def test_nothing_given_is_ignored(options: list[str]) -> None:
    """One method or all of them, before anything is loaded."""
    done = CliRunner().invoke(app, ["certify", "--model", "./nowhere", *options])
    assert done.exit_code == 1 and "--all" in done.stderr and "nowhere" not in done.stderr


def test_command_asks_for_a_method() -> None:
    """Without one there is nothing to check."""
    done = CliRunner().invoke(app, ["certify", "--quick", "--prompt", "x"])
    assert done.exit_code != 0


def test_what_must_be_equal_to_go_on() -> None:
    """All that is checked, and the code that runs; not the machine nor the day."""
    code = {"torch": "1", "transformers": "2", "foretoken": "3", "git_commit": "4"}
    head = {"environment": {**code, "cpu": "a", "date": "b"}, "model": "mini"}
    assert command._identity(head) == {"model": "mini", **code}


def test_what_is_checked_by_default_quickly_and_of_all() -> None:
    """Prompts, cells, batches, tokens and samples; cells that are asked for are the only ones."""
    plain = LLM("mini")
    made = [
        command._plan(plain, None, command._Checking(quick=quick, everything=everything))
        for quick, everything in ((False, False), (True, False), (False, True))
    ]
    assert [len(plan.prompts) for plan in made] == [6, 2, 12]
    assert [len(plan.cells) for plan in made] == [len(PROCESSORS), 2, 6]
    assert [plan.batches for plan in made] == [(1, 3), (1, 3), (1, 4)]
    assert [(plan.max_tokens, plan.samples) for plan in made] == [
        (32, 4000),
        (16, 1000),
        (64, 4000),
    ]
    few = command._Checking(quick=True, samples=100, first_tokens=1, prompt=["a"])
    plan = command._plan(plain, SamplingParams(temperature=0.5), few)
    assert [*plan.cells] == ["T=0.5 as given"] and len(plan.prompts) == 1
    assert (plan.samples, plan.first_tokens) == (100, 1)


def test_the_rules_for_drawn_chains() -> None:
    """Exact ones that sample, and not the one that is checked as the method's own."""
    rules = command._rules_of_chains()
    assert "block" in rules and "optimal_transport" not in rules
    assert not {"lenience", "typical", "relaxed", "greedy", "top_beta"} & {*rules}
    assert METHODS["sps"].verifier not in rules


def test_where_a_text_differs_is_shown() -> None:
    check = Check("pld", "greedy", "batch 1", "failed", "3 of 4 texts", place=7, gap=0.25)
    assert command._difference(check) == "token 7, gap 0.25"
    assert command._difference(replace(check, gap=None)) == "token 7"
    assert command._difference(replace(check, place=None)) == ""
