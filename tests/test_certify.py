"""The certificate passes what is exact, and fails what is not, with an exit status that says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from foretoken import LLM, METHODS, ForetokenError, SamplingParams
from foretoken.certify import Plan, bin_of, certify, lines, prefix_bins
from foretoken.cli import certify as command
from foretoken.cli.commands import app
from foretoken.drafters.hydra import HydraHeads
from foretoken.protocols import BaseDrafter
from foretoken.testing import Pair, table_pair, target_distribution
from foretoken.testing.models import logits_after
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.eagle import EagleModule
from foretoken.tree import DraftTree, Kind, chains
from foretoken.verify.speculative import Speculative

PARAMS = SamplingParams(temperature=0.8, top_k=6)


@dataclass
class Argmax(BaseDrafter):
    """Claims to have drawn what is always one token."""

    token: int = 1

    kinds = frozenset({Kind.INDEPENDENT})

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = chains([[self.token]] * len(sequences), torch.device("cpu"))
        distributions = torch.full((len(sequences), 1, 97), 1 / 97, dtype=torch.float64)
        return DraftTree(tree.tokens, tree.counts, kind=Kind.INDEPENDENT, proposals=distributions)


@dataclass(frozen=True)
class Credulous(Speculative):
    """Accepts everything."""

    def __call__(self, trees: Any, scores: Any, draws: Any) -> Any:
        verdict = super().__call__(trees, scores, draws)
        lengths = torch.tensor(trees.counts)
        return verdict._replace(lengths=lengths)


def plan(samples: int = 1500, **options: Any) -> Plan:
    prompts = ((5, 9, 2, 5, 9), (40, 3, 3, 17))
    return Plan(prompts, {"cell": PARAMS}, max_tokens=12, samples=samples, **options)


@pytest.fixture(scope="module")
def plain(pair: Pair) -> LLM:
    return LLM(pair.target, max_num_seqs=3)


def outcomes(plain: LLM, config: dict[str, Any], plan: Plan) -> dict[str, str]:
    return {f"{c.check} {c.cell}": c.outcome for c in certify(plain, config, plan)}


def test_exact_methods_pass(plain: LLM, pair: Pair) -> None:
    found = outcomes(plain, {"method": "pld"}, plan())
    assert found == {
        "greedy batch 1": "passed",
        "greedy batch 3": "passed",
        "seeded cell": "passed",
    }
    found = outcomes(plain, {"method": "sps", "model": pair.draft}, plan())
    assert set(found.values()) == {"passed"} and "distribution cell" in found


def test_a_wrong_drafter_fails(plain: LLM) -> None:
    likely = int(logits_after(plain.model, plan().prompts[0]).argmax())
    config = {"method": f"{__name__}:Argmax", "verifier": "speculative", "token": likely}
    found = outcomes(plain, config, plan())
    assert found["distribution cell"] == "failed"


def test_a_wrong_rule_fails_with_its_place_and_gap(plain: LLM, pair: Pair) -> None:
    config = {"method": "sps", "model": pair.draft, "verifier": f"{__name__}:Credulous"}
    lines = list(certify(plain, config, plan(samples=500)))
    assert [line.outcome for line in lines] == ["failed"] * 3
    assert lines[0].place is not None and lines[0].gap is not None and lines[0].gap > 1e-6


def test_bins_are_the_target_s_distribution() -> None:
    pair = table_pair(4)
    bins = prefix_bins(pair.target, [0, 1], SamplingParams(temperature=0.9), 2)
    assert sum(bins.values()) == pytest.approx(1.0, abs=1e-12)
    found = dict.fromkeys(bins, 0.0)
    for text, p in target_distribution(
        pair.target, [0, 1], SamplingParams(temperature=0.9), 2
    ).items():
        found[bin_of(text, bins)] += p
    assert found == pytest.approx(bins, abs=1e-12)


def test_command_says_it_with_its_exit_status(tmp_path: Path) -> None:
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
    done = CliRunner().invoke(app, ["certify", *wrong, "--quick", "--prompt", "A b c a b c."])
    assert done.exit_code == 1 and "failed" in done.output


def test_a_record_is_gone_on_with(tmp_path: Path) -> None:
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


def test_all_builds_every_method(tmp_path: Path) -> None:
    """With the bundled small model and a datastore of the target's own answers; what needs more
    than the target gives is left out."""
    plain = LLM("mini", max_num_seqs=4)
    prompt = ["A b c a b c."]
    configs = command._every_method(None, command._datastore(plain, prompt, str(tmp_path)))
    lossless = {row.name for row in METHODS.values() if row.lossless and not row.trained}
    assert {config["method"] for config in configs} >= {*lossless, "pld+sps", "pld|sps"}
    assert all(command._can_serve(plain, config) for config in configs)
    outside = LLM("mini", model_impl="transformers")
    beyond = {c["method"] for c in configs if not command._can_serve(outside, c)}
    assert beyond == {"draft_verify", "early_exit", "swift", "ppd", "speed"}


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


def test_command_asks_for_a_method() -> None:
    done = CliRunner().invoke(app, ["certify", "--quick", "--prompt", "x"])
    assert done.exit_code != 0
