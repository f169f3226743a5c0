"""The certificate passes what is exact, and fails what is not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.certify import MOST_BINS, Plan, bin_of, certify, checked, lines, prefix_bins
from foretoken.protocols import BaseDrafter
from foretoken.testing import Pair, table_pair, target_distribution
from foretoken.testing.models import logits_after
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
    """By identity where drafts are chosen, by distribution where they are drawn."""
    found = outcomes(plain, {"method": "pld"}, plan())
    assert found == {
        "greedy batch 1": "passed",
        "greedy batch 3": "passed",
        "seeded cell": "passed",
    }
    found = outcomes(plain, {"method": "sps", "model": pair.draft}, plan())
    assert set(found.values()) == {"passed"} and "distribution cell" in found


@pytest.mark.parametrize("given", ["assistant_model", "tuned"])
def test_a_trained_drafter_by_other_names(given: str, tmp_path: Path) -> None:
    """A line names it, whoever's key it stands under, and in a tuned file."""
    config = {"method": "eagle2", "model": "mini-eagle"}
    tuned = tmp_path / "tuned.json"
    tuned.write_text(json.dumps({"schema": 1, "speculative_config": config}))
    other = {"tuned": str(tuned)}
    if given != "tuned":
        other = {"method": "eagle2", given: "mini-eagle"}
    assert lines(other, plan()) == lines(config, plan())
    assert {line.method for line in lines(other, plan())} == {"eagle2 with mini-eagle"}


def test_a_line_tells_how_much_was_drafted(plain: LLM) -> None:
    """A method that drafted nothing on these prompts has passed little."""
    [pld, *_], [grammar, *_] = (
        list(certify(plain, {"method": method}, plan())) for method in ("pld", "grammar")
    )
    assert re.fullmatch(r"24 tokens, [1-9]\d* drafted", pld.compared)
    assert grammar.compared == "24 tokens, 0 drafted" and grammar.outcome == "passed"


def test_what_plain_decoding_cannot_answer_proves_nothing(pair: Pair) -> None:
    """A prompt that the context has no room for fails in both, which is no text that is equal."""
    short = LLM(pair.target, max_num_seqs=3, max_model_len=4)
    with pytest.raises(ForetokenError, match="context"):
        list(certify(short, {"method": "pld"}, plan()))


def test_a_wrong_drafter_fails(plain: LLM) -> None:
    """One that lies about its distribution is caught by the distribution check."""
    likely = int(logits_after(plain.model, plan().prompts[0]).argmax())
    config = {"method": f"{__name__}:Argmax", "verifier": "speculative", "token": likely}
    found = outcomes(plain, config, plan())
    assert found["distribution cell"] == "failed"


def test_a_wrong_rule_fails_with_its_place_and_gap(plain: LLM, pair: Pair) -> None:
    """The first token that differs, and how close the target's choice was there."""
    config = {"method": "sps", "model": pair.draft, "verifier": f"{__name__}:Credulous"}
    lines = list(certify(plain, config, plan(samples=500)))
    assert [line.outcome for line in lines] == ["failed"] * 3
    assert lines[0].place is not None and lines[0].gap is not None and lines[0].gap > 1e-6


def test_bins_are_the_target_s_distribution() -> None:
    """Prefixes with the probabilities that the target gives them, which sum to 1."""
    pair = table_pair(4)
    bins = prefix_bins(pair.target, [0, 1], SamplingParams(temperature=0.9), 2)
    assert sum(bins.values()) == pytest.approx(1.0, abs=1e-12)
    found = dict.fromkeys(bins, 0.0)
    for text, p in target_distribution(
        pair.target, [0, 1], SamplingParams(temperature=0.9), 2
    ).items():
        found[bin_of(text, bins)] += p
    assert found == pytest.approx(bins, abs=1e-12)


def test_chance_is_corrected_for_the_number_of_checks(plain: LLM, pair: Pair) -> None:
    """With ten cells a p-value is ten times as large as with one, and at most 1."""
    config = {"method": "sps", "model": pair.draft}
    one, ten = (
        Plan(
            plan().prompts, {"cell": PARAMS, **dict.fromkeys("abcdefghi"[:n], PARAMS)}, samples=100
        )
        for n in (0, 9)
    )
    found = [
        checked(
            plain, config, each, next(x for x in lines(config, each) if x.cell == "cell")
        ).p_value
        for each in (one, ten)
    ]
    assert found[0] is not None and 0 < found[0] < 1
    assert found[1] == pytest.approx(min(1.0, 10 * found[0]))


def test_bins_are_not_too_many() -> None:
    """Of a large vocabulary and long texts the likeliest prefixes."""
    target = table_pair(9).target
    bins = prefix_bins(target, [0, 1], SamplingParams(), 4)
    assert MOST_BINS - 7 < len(bins) <= MOST_BINS
    assert sum(bins.values()) == pytest.approx(1.0, abs=1e-12)


def test_the_likeliest_prefixes_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into their likeliest tokens; and as many bins as there may be are used."""
    target, params, children = table_pair(9).target, SamplingParams(temperature=0.7), 6
    true = target_distribution(target, [0, 1], params, 3)

    def mass(prefix: tuple[int, ...]) -> float:
        return sum(p for text, p in true.items() if text[: len(prefix)] == prefix)

    monkeypatch.setattr("foretoken.certify.MOST_BINS", 1 + 4 * children)
    monkeypatch.setattr("foretoken.certify._CHILDREN", children)
    bins = prefix_bins(target, [0, 1], params, 3)
    assert len(bins) == 1 + 4 * children
    split = {prefix[:-1] for prefix in bins if prefix}
    whole = [prefix for prefix in bins if prefix not in split and len(prefix) < 3]
    assert min(map(mass, split)) >= max(map(mass, whole))
    for prefix in split:
        told = [mass((*prefix, token)) for token in range(9) if (*prefix, token) in bins]
        rest = [mass((*prefix, token)) for token in range(9) if (*prefix, token) not in bins]
        assert len(told) == children and min(told) >= max(rest)


def test_lines_of_another_rule_have_names_of_their_own(pair: Pair) -> None:
    config = {"method": "sps", "model": pair.draft}
    rules = [lines({**config, **more}, plan()) for more in ({}, {"verifier": "block"})]
    assert [found[0].method for found in rules] == ["sps", "sps by block"]


def test_the_worst_prompt_decides(plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever order they come; drafts of chosen tokens are checked in the largest batch."""
    batches: list[int] = []

    def noted(llm: LLM, config: dict[str, Any], batch: int) -> LLM:
        batches.append(batch)
        return llm

    monkeypatch.setattr("foretoken.certify.with_method", noted)
    for outcomes in (["different", "near_tie"], ["near_tie", "different"]):
        found = iter([(outcome, 0.5) for outcome in outcomes])
        monkeypatch.setattr("foretoken.certify.compare", lambda *_, found=found: next(found))
        [line] = [one for one in lines({"method": "pld"}, plan()) if one.check == "seeded"]
        assert checked(plain, {"method": "pld"}, plan(), line).outcome == "failed"
    assert batches == [3, 3]
