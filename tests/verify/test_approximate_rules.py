"""Approximate rules: what each parameter lets pass, the limit in which nothing does, the count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from approximate_rules import CPU, EVEN, GREEDY, LOOSE, STRICT, everything, scored
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import GreedyDraws, KeyedDraws
from foretoken.protocols import Verifier
from foretoken.testing import (
    Drawn,
    Pair,
    Scripted,
    check_distribution,
    check_greedy,
    check_independence,
    distance,
    joint_distribution,
    serve,
    table_pair,
    target_distribution,
)
from foretoken.tree import DraftTree, Kind, chains
from foretoken.verify.contrast import Contrast
from foretoken.verify.distance import Distance
from foretoken.verify.lenience import Lenience
from foretoken.verify.relaxed import Relaxed
from foretoken.verify.rollback import Rollback
from foretoken.verify.rollback_run import RollbackRun
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.top_beta import TopBeta
from foretoken.verify.typical import Typical
from test_distribution import chosen_chain


def test_approximate_rules_are_found() -> None:
    """The lists of this file hold every rule of the package that isn't exact."""
    found = {type(rule) for rule in everything()}
    warm = {Typical, Contrast}  # greedy decoding at temperature 0, however loose
    assert found == {type(rule) for rule in STRICT} == {type(rule) for rule in LOOSE} | warm


@pytest.mark.parametrize("rule", everything(), ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_drafted(rule: Verifier, dtype: torch.dtype) -> None:
    """An empty tree is a step of plain decoding."""
    trees = chains([[], []], CPU)
    scores = scored([[EVEN], [EVEN[::-1]]], 1 if rule.sampling else 0, dtype)
    draws = KeyedDraws([1, 2], [5, 5], CPU) if rule.sampling else GreedyDraws()
    found, plain = rule(trees, scores, draws), TargetOnly()(trees, scores, draws)
    assert torch.equal(found.token, plain.token) and found.lengths.tolist() == [0, 0]
    assert found.strayed is not None and found.strayed.tolist() == [0, 0]


TOLERANCES: dict[str, tuple[Callable[[Any], Verifier], list[Any]]] = {
    "beta": (lambda x: TopBeta(x, 9), [1, 2, 3, 5, 9]),
    "tau": (lambda x: TopBeta(9, x), [0, 0.1, 0.5, 1, 3]),
    "top_k": (lambda x: Relaxed(x, 1), [1, 2, 3, 5, 9]),
    "delta": (lambda x: Relaxed(9, x), [0, 0.05, 0.1, 0.3, 1]),
    "distance": (Distance, [0, 1, 2, 4, 9]),
    "minimum block": (lambda x: Distance(0, x), [1, 2, 3, 5, 9]),
    "alpha": (Rollback, [0, 1, 2, 3, 9]),
    "run": (RollbackRun, [1, 2, 3, 5, 9]),
    "lenience": (Lenience, [1, 0.8, 0.5, 0.2, 0.01]),
    "contrast": (lambda x: Contrast(0, x), [1, 0.8, 0.5, 0.2, 0]),
    "typical epsilon": (lambda x: Typical(x, 9), [1, 0.3, 0.1, 0.05, 0]),
    "typical delta": (lambda x: Typical(1, x), [9, 1, 0.5, 0.2, 0]),
}


@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("drawn", [False, True])
def test_strays_grow_with_the_tolerance(name: str, drawn: bool) -> None:
    """On chains, with the same draws: a looser rule keeps more, and more of it strays."""
    make, values = TOLERANCES[name]
    rule = make(values[0])
    random = torch.Generator().manual_seed(3)
    rows, nodes, vocab = 300, 5, 8
    logits = torch.randn(rows, nodes + 1, vocab, generator=random, dtype=torch.float64)
    scores = scored(logits.softmax(-1).tolist(), 1 if rule.sampling else 0)
    draws = KeyedDraws(range(rows), [7] * rows, CPU) if rule.sampling else GreedyDraws()
    noise = torch.randn(rows, nodes, vocab, generator=random, dtype=torch.float64)
    distributions = (logits[:, :-1] + noise).softmax(-1)
    tokens = torch.multinomial(distributions.view(-1, vocab), 1, generator=random).view(rows, nodes)
    trees = DraftTree(tokens, [nodes] * rows)
    if drawn and rule.sampling:
        trees = DraftTree(tokens, [nodes] * rows, kind=Kind.INDEPENDENT, proposals=distributions)
    before = None
    totals = []
    for value in values:
        found = make(value)(trees, scores, draws)
        assert found.strayed is not None
        if before is not None and before.strayed is not None:
            assert bool((found.lengths >= before.lengths).all()), value
            assert bool((found.strayed >= before.strayed).all()), value
        totals.append(int(found.strayed.sum()))
        before = found
    assert totals[0] == 0 and totals[-1] > 100


@pytest.mark.parametrize(
    "rule", [Lenience(0.5), Typical(), Typical(0.02, 1.0), Contrast(0, 0)], ids=str
)
@pytest.mark.parametrize("drawn", [False, True])
def test_the_distribution_is_another(rule: Verifier, drawn: bool) -> None:
    """With a tolerance the distribution of three tokens is off by more than 1e-3: approximate is
    true."""
    pair, params = table_pair(3), SamplingParams(temperature=0.8)
    make = (lambda pr: Drawn(pr.draft, (1, 1))) if drawn else chosen_chain
    distribution = joint_distribution(
        pair.target, lambda: make(pair), rule, [0, 1, 0], params, 3, steps=1
    )
    assert distance(distribution, target_distribution(pair.target, [0, 1, 0], params, 3)) > 1e-3


@pytest.mark.parametrize("make", [chosen_chain, lambda pr: Drawn(pr.draft, (1, 1))])
@pytest.mark.parametrize("rule", [Lenience(1.0), Typical(1.0, 99.0)], ids=str)
def test_the_distribution_is_the_targets_in_the_limit(rule: Verifier, make: Any) -> None:
    """Without tolerance the distribution of three tokens is the target's own."""
    check_distribution(make, rule, table_pair(3), SamplingParams(temperature=0.8), 3, steps=1)


@pytest.mark.parametrize("rule", STRICT, ids=str)
@pytest.mark.parametrize("slots", [1, 3])
def test_strict_settings_are_greedy_decoding(rule: Verifier, slots: int, rough: Pair) -> None:
    """Token for token, and nothing strays."""
    for make in (lambda pr: SmallLM(pr.draft, 3), lambda pr: PromptLookup()):
        outputs = check_greedy(make, rule, rough, slots=slots)  # type: ignore[arg-type]
        assert sum(output.stats.strayed for output in outputs) == 0


@pytest.mark.parametrize("rule", LOOSE, ids=str)
def test_loose_settings_are_not(rule: Verifier, rough: Pair) -> None:
    """The text is another, longer steps are kept, and the strays are counted."""
    prompt, params = [5, 9, 2, 5, 9, 2, 5], SamplingParams(temperature=0, max_tokens=40)
    draft = SmallLM(rough.draft, 3)
    [plain] = serve(rough.target, Nothing(), TargetOnly(), [prompt], params)
    [strict] = serve(rough.target, SmallLM(rough.draft, 3), Speculative(), [prompt], params)
    [loose] = serve(rough.target, draft, rule, [prompt], params)
    assert loose.token_ids != plain.token_ids
    assert 0 < loose.stats.strayed <= loose.stats.accepted
    assert loose.stats.mean_acceptance_length > strict.stats.mean_acceptance_length


@pytest.mark.parametrize("rule", everything(), ids=lambda rule: type(rule).__name__)
def test_company_changes_nothing(rule: Verifier, rough: Pair) -> None:
    """A request's text does not depend on the other requests of its batch."""
    params = SamplingParams(temperature=0.7 if rule.sampling else 0, seed=3, max_tokens=16)
    check_independence(lambda pr: SmallLM(pr.draft, 3), rule, rough, params)


def test_strays_are_told_by_the_front_door(rough: Pair) -> None:
    """`stats.stray_rate` of a request and of all, for drafted and for copied tokens."""
    prompts = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3]]
    params = SamplingParams(temperature=0, max_tokens=16)
    for method in ({"method": "sps", "model": rough.draft}, {"method": "pld"}):
        for rule, strays in ((TopBeta(30, 20), True), (TopBeta(1), False)):
            llm = LLM(rough.target, speculative_config={**method, "verifier": rule})
            outputs = llm.generate(prompts, params)
            total = sum(output.stats.strayed for output in outputs)
            assert llm.stats.strayed == total and (total > 0) == strays
            assert llm.stats.stray_rate == total / llm.stats.tokens
    by_name = LLM(rough.target, speculative_config={"method": "pld", "verifier": "top_beta"})
    assert by_name.engine.verifier == TopBeta()


@pytest.mark.parametrize("rule", [TopBeta(), Rollback(), Relaxed(), Lenience()])
def test_rules_of_raw_logits_refuse_edits(pair: Pair, rule: Verifier) -> None:
    """They could accept a token that the request forbids; rules that read the distribution serve
    it."""
    edited = SamplingParams(temperature=0, max_tokens=4, bad_token_ids=[5], ignore_eos=True)
    for own, refused in ((rule, True), (Typical(), False)):
        llm = LLM(pair.target, speculative_config={"method": "pld", "verifier": own})
        [out] = llm.generate([[1, 2]], edited)
        assert (out.error is not None and "reads the raw logits" in out.error) == refused
        empty = replace(edited, bad_token_ids=[], logit_bias={})  # which edit nothing
        [out] = llm.generate([[1, 2]], empty)
        assert out.error is None and len(out.token_ids) == 4


def test_greedy_rules_refuse_a_temperature(pair: Pair) -> None:
    """One sentence for the request, and the others go on."""
    llm = LLM(pair.target, speculative_config={"method": "pld", "verifier": Rollback()})
    warm, cold = llm.generate([[1, 2], [1, 2]], [SamplingParams(temperature=1), GREEDY])
    assert warm.error is not None and "greedy decoding only" in warm.error
    assert cold.error is None and cold.token_ids


@pytest.mark.parametrize(
    ("drafter", "rule", "message"),
    [
        (Scripted(lambda s, b: []), Lenience(), "takes chains only"),
        (Scripted(lambda s, b: []), Distance(), "takes chains only"),
        (
            Drawn(table_pair().draft, (1,), Kind.WITHOUT_REPLACEMENT),
            Lenience(),
            "not valid for without_replacement nodes",
        ),
    ],
)
def test_wrong_pairings_are_refused(drafter: Any, rule: Verifier, message: str) -> None:
    """At load, in one sentence."""
    with pytest.raises(ForetokenError, match=message):
        LLM(table_pair().target, speculative_config={"method": drafter, "verifier": rule})


@pytest.mark.parametrize("rule", [rule for rule in LOOSE if not rule.reads_logits], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_may_not_be_written_never_is(
    rule: Verifier, temperature: float, rough: Pair
) -> None:
    """However loose the rule: the draft copies it, where the prompt has it."""
    if temperature and not rule.sampling:
        pytest.skip("serves greedy decoding only")
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=12, bad_token_ids=[3])
    prompts = [[1, 2, 3, 1, 2], [4, 2, 3, 5, 4, 2]]
    outputs = serve(rough.target, PromptLookup(num_speculative_tokens=1), rule, prompts, params)
    assert all(output.error is None and 3 not in output.token_ids for output in outputs)
