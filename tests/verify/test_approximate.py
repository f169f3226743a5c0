"""Approximate rules: what each parameter lets pass, the limit in which nothing does, the count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build_verifier
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import GreedyDraws, KeyedDraws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.registry import verifier_names
from foretoken.testing import (
    Drawn,
    Pair,
    Scripted,
    check_company,
    check_distribution,
    check_greedy,
    check_seeded,
    distance,
    joint_distribution,
    logits_after,
    serve,
    table_pair,
    target_distribution,
    tiny_pair,
)
from foretoken.tree import DraftTree, Kind, chains
from foretoken.trees.from_lists import from_paths
from foretoken.verify.distance import Distance
from foretoken.verify.lenience import Lenience
from foretoken.verify.relaxed import Relaxed
from foretoken.verify.rollback import Rollback
from foretoken.verify.rollback_run import RollbackRun
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.top_beta import TopBeta
from foretoken.verify.typical import Typical
from test_distribution import chosen_chain, chosen_tree
from test_tree import path_to, tree_of

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)

STRICT: list[Verifier] = [
    TopBeta(beta=1, tau=math.inf),
    TopBeta(beta=9, tau=0),
    Relaxed(top_k=1, delta=1),
    Relaxed(top_k=9, delta=0),
    Distance(epsilon=0),
    Rollback(alpha=0),
    RollbackRun(mismatches=1),
    Lenience(1.0),
    Typical(),
    Typical(epsilon=1, delta=0),
]
"""Settings in which a rule is greedy decoding at temperature 0."""

LOOSE: list[Verifier] = [
    TopBeta(beta=40, tau=9),
    Relaxed(top_k=40, delta=0.99),
    Distance(epsilon=40),
    Distance(epsilon=0, minimum_block=3),
    Rollback(alpha=9),
    RollbackRun(mismatches=3),
    Lenience(0.01),
]


def scored(
    distributions: Any, temperature: float = 0, dtype: torch.dtype = torch.float64
) -> Scores:
    """Scores of a target whose probabilities [B][S][V] are given."""
    logits = torch.tensor(distributions, dtype=dtype).log()
    probs = (logits / (temperature or 1)).softmax(-1)
    if temperature == 0:
        probs = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
    return Scores(logits, probs, torch.zeros(logits.shape[:2], dtype=torch.bool))


def written(verdict: Verdict, trees: DraftTree) -> list[tuple[list[int], int]]:
    """For each row the tokens written, and how many of them strayed."""
    assert verdict.strayed is not None
    found = []
    for b, count in enumerate(verdict.lengths.tolist()):
        tokens = [int(trees.tokens[b, slot - 1]) for slot in verdict.path[b, :count]]
        found.append(([*tokens, int(verdict.token[b])], int(verdict.strayed[b])))
    return found


def chain(rule: Verifier, distributions: Any, draft: list[int]) -> tuple[list[int], int]:
    """What a greedy step writes for one chain."""
    trees = chains([draft], CPU)
    [found] = written(rule(trees, scored([distributions]), GreedyDraws()), trees)
    return found


EVEN = [0.4, 0.3, 0.2, 0.1]


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        # The target says 0 everywhere; the second, third and fourth choice are 1, 2 and 3.
        (TopBeta(beta=1, tau=9), [0, 1, 0], ([0, 0], 0)),
        (TopBeta(beta=2, tau=9), [1, 2, 0], ([1, 0], 1)),
        (TopBeta(beta=3, tau=9), [1, 2, 3], ([1, 2, 0], 2)),
        (TopBeta(beta=4, tau=9), [1, 2, 3], ([1, 2, 3, 0], 3)),
        (TopBeta(beta=4, tau=math.log(0.4 / 0.3) + 1e-9), [1, 0, 2], ([1, 0, 0], 1)),
        (TopBeta(beta=4, tau=math.log(0.4 / 0.3) - 1e-9), [1, 0, 2], ([0], 0)),
        (Relaxed(top_k=2, delta=0.9), [1, 1, 2], ([1, 1, 0], 2)),
        (Relaxed(top_k=4, delta=0.1001), [1, 0, 2], ([1, 0, 0], 1)),
        (Relaxed(top_k=4, delta=0.0999), [1, 0, 2], ([0], 0)),
        (Distance(epsilon=1), [1, 0, 2], ([1, 0, 0], 1)),
        (Distance(epsilon=2), [2, 0, 3], ([2, 0, 0], 1)),
        (Distance(epsilon=0, minimum_block=1), [3, 0], ([0], 0)),
        (Distance(epsilon=0, minimum_block=2), [3, 3], ([3, 0], 1)),
        (Distance(epsilon=0, minimum_block=3), [3, 0, 0, 3], ([3, 0, 0, 0], 1)),
        (Distance(epsilon=0, minimum_block=9), [3, 3], ([3, 3, 0], 2)),
        (Rollback(alpha=-math.log(0.2) + 1e-9), [1, 2, 3, 0], ([1, 2, 0], 2)),
        (Rollback(alpha=-math.log(0.2) - 1e-9), [1, 2, 3, 0], ([1, 0], 1)),
        (Rollback(alpha=0), [0, 0, 1], ([0, 0, 0], 0)),  # its own token passes, unlikely or not
        (RollbackRun(mismatches=1), [0, 1, 0], ([0, 0], 0)),
        (RollbackRun(mismatches=2), [0, 1, 0, 2], ([0, 1, 0, 2, 0], 2)),
        (RollbackRun(mismatches=2), [0, 1, 0, 2, 3, 0], ([0, 1, 0, 0], 1)),
        (RollbackRun(mismatches=2), [1, 2], ([0], 0)),
        (RollbackRun(mismatches=3), [1, 2], ([1, 2, 0], 2)),
        (Lenience(1.0), [0, 1], ([0, 0], 0)),
        (Lenience(0.74), [1, 2], ([1, 0], 1)),
        (Lenience(0.76), [1, 2], ([0], 0)),
        (Lenience(0.49), [1, 2, 3], ([1, 2, 0], 2)),
        (Typical(), [0, 1, 0], ([0, 0], 0)),
    ],
    ids=lambda value: str(value),
)
def test_greedy_chains_by_hand(
    rule: Verifier, draft: list[int], expected: tuple[list[int], int]
) -> None:
    """One step on a target that says 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


def test_typical_threshold_by_hand() -> None:
    """At a temperature a token passes above min(epsilon, delta · exp(-entropy))."""
    distributions = [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.25, 0.5, 0.25]]
    trees = chains([[1, 2]], CPU)
    entropy = -sum(p * math.log(p) for p in distributions[0])
    for epsilon, delta, kept in (
        (0.199, 9.0, 2),  # 0.2 > 0.199 and then 0.2 > 0.199
        (0.2001, 9.0, 0),
        (1.0, 0.199 * math.exp(entropy), 2),  # the second place is more uncertain: easier
        (1.0, 0.201 * math.exp(entropy), 0),
        (0.0, 0.0, 2),
        (1.0, 3.0, 0),  # exp(-entropy) is at least 1/3: nothing exceeds 1
    ):
        found = Typical(epsilon, delta)(
            trees, scored([distributions], 1), KeyedDraws([1], [5], CPU)
        )
        assert int(found.lengths[0]) == kept, (epsilon, delta)


def test_typical_prefers_the_likeliest_of_the_longest() -> None:
    """Medusa's choice between candidates: the longest accepted, then the likeliest."""
    trees = from_paths([[[0, 1], [1, 2], [1, 0], [2]]], CPU)  # slots 1, 2 | 3, 4, 5 | 6
    distributions = [
        [[0.3, 0.4, 0.3], [0.1, 0.6, 0.3], [0.4, 0.3, 0.3], [0.3, 0.3, 0.4], *[[1, 0, 0]] * 3]
    ]
    found = Typical(epsilon=0.0)(trees, scored(distributions, 1), KeyedDraws([1], [5], CPU))
    assert found.path[0, : found.lengths[0]].tolist() == [1, 2]  # .3 × .6 beats .4 × .4
    distributions[0][1] = [0.25, 0.5, 0.25]
    found = Typical(epsilon=0.0)(trees, scored(distributions, 1), KeyedDraws([1], [5], CPU))
    assert found.path[0, : found.lengths[0]].tolist() == [3, 4]


Passes = Callable[[Any, list[float], int], bool]

REFERENCE: dict[type, Passes] = {
    TopBeta: lambda r, p, x: (
        sum(y >= p[x] for y in p) <= r.beta and math.log(max(p) / max(p[x], 1e-99)) <= r.tau
    ),
    Relaxed: lambda r, p, x: sum(y >= p[x] for y in p) <= r.top_k and p[x] > max(p) - r.delta,
    Rollback: lambda r, p, x: -math.log(max(p[x], 1e-99)) <= r.alpha,
    Typical: lambda r, p, x: (
        p[x] > min(r.epsilon, r.delta * math.exp(sum(y * math.log(y) for y in p if y > 0)))
    ),
}
"""The criterion of a node, spelled out: the target's distribution at its parent, and the token."""


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[list[tuple[int, int]]], Tensor, Tensor]:
    """Ragged chosen trees with auxiliary nodes, and a distribution [B, S, 4] at every slot."""
    batch = [
        [(draw(st.integers(0, 3)), draw(st.integers(0, i))) for i in range(draw(st.integers(0, 6)))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    width = max(map(len, batch))
    weights = draw(st.lists(st.integers(0, 9), min_size=4 * (width + 1) * len(batch), max_size=999))
    distributions = torch.tensor(weights[: 4 * (width + 1) * len(batch)], dtype=torch.float64)
    distributions = distributions.view(len(batch), width + 1, 4)
    distributions[distributions.sum(-1) == 0] = 1
    kinds = torch.zeros(len(batch), width, dtype=torch.int8)
    for row in range(len(batch)):
        for node in range(width):
            kinds[row, node] = Kind.AUXILIARY if draw(st.integers(0, 9)) == 0 else Kind.CHOSEN
    return batch, distributions / distributions.sum(-1, keepdim=True), kinds


@settings(max_examples=150, deadline=None)
@given(
    drafts(),
    st.sampled_from(
        [
            TopBeta(2, 0.7),
            TopBeta(3, 9),
            Relaxed(2, 0.2),
            Relaxed(9, 0.1),
            Rollback(1.2),
            Typical(),
            Typical(0.5, 0.8),
        ]
    ),
    st.sampled_from([0, 1, 0.5]),
)
def test_trees_against_trying_every_path(
    draft: tuple[list[list[tuple[int, int]]], Tensor, Tensor], rule: Verifier, temperature: float
) -> None:
    """The longest path whose tokens all pass, the own token after it, and what strayed."""
    batch, distributions, kinds = draft
    temperature = temperature if rule.sampling else 0
    trees, scores = tree_of(batch, kinds=kinds), scored(distributions.tolist(), temperature)
    trees = replace(trees, tokens=trees.tokens.long(), parents=trees.parent_slots.long())
    draws = KeyedDraws(range(len(batch)), [7] * len(batch), CPU) if temperature else GreedyDraws()
    own = draws.pick(scores.probs, trees.depths).tolist()
    read = scores.probs if isinstance(rule, Typical) else scores.logits.softmax(-1)
    verdict = rule(trees, scores, draws)
    for b, row in enumerate(batch):

        def passes(slot: int, b: int = b, row: list[tuple[int, int]] = row) -> bool:
            token, parent = row[slot - 1]
            if kinds[b, slot - 1] == Kind.AUXILIARY:
                return False
            distribution = read[b, parent].tolist()
            best = not rule.sampling and token == own[b][parent]
            return best or REFERENCE[type(rule)](rule, distribution, token)

        paths = [path_to(row, slot) for slot in range(len(row) + 1)]
        whole = [path for path in paths if all(map(passes, path))]
        kept = verdict.path[b, : verdict.lengths[b]].tolist()
        assert kept in whole and len(kept) == max(map(len, whole))
        last = kept[-1] if kept else 0
        assert int(verdict.token[b]) == own[b][last]
        assert verdict.strayed is not None
        strayed = sum(row[slot - 1][0] != own[b][row[slot - 1][1]] for slot in kept)
        assert int(verdict.strayed[b]) == strayed


def everything() -> list[Verifier]:
    """Every approximate rule that the package finds, as it comes."""
    rules = [build_verifier(name) for name in verifier_names()]
    return [rule for rule in rules if not rule.exact]


def test_approximate_rules_are_found() -> None:
    """The lists of this file hold every rule of the package that isn't exact."""
    found = {type(rule) for rule in everything()}
    assert found == {type(rule) for rule in STRICT} == {type(rule) for rule in LOOSE} | {Typical}


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


@pytest.mark.parametrize("rule", [*STRICT, *LOOSE], ids=str)
def test_a_place_without_a_distribution_harms_nobody(rule: Verifier) -> None:
    """A row of NaN, and one without a draft, leave the third row's verdict as it is alone."""
    temperature = 1 if rule.sampling else 0
    distributions = [EVEN, EVEN[::-1], [0.1, 0.2, 0.3, 0.4]]
    trees = chains([[1, 1], [], [1, 3]], CPU)
    scores = scored([distributions] * 3, temperature, torch.float32)
    scores.logits[0] = torch.nan
    scores.probs[0] = torch.tensor([1.0, 0, 0, 0])  # what `fold` makes of such a place
    draws = KeyedDraws([1, 2, 3], [5, 5, 5], CPU)
    together = written(rule(trees, scores, draws), trees)
    alone = chains([[1, 3]], CPU)
    own = scored([distributions], temperature, torch.float32)
    assert together[2:] == written(rule(alone, own, KeyedDraws([3], [5], CPU)), alone)
    assert len(together[1][0]) == 1


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


def test_lenience_one_is_speculative_sampling() -> None:
    """The same verdicts, number for number, as the exact rule's."""
    random = torch.Generator().manual_seed(5)
    distributions = torch.rand(200, 4, 6, generator=random, dtype=torch.float64).pow(3)
    distributions /= distributions.sum(-1, keepdim=True)
    q = torch.rand(200, 3, 6, generator=random, dtype=torch.float64).pow(3)
    q /= q.sum(-1, keepdim=True)
    tokens = torch.multinomial(q.view(-1, 6), 1, generator=random).view(200, 3)
    counts = [row % 4 for row in range(200)]
    trees = DraftTree(tokens, counts, kind=Kind.INDEPENDENT, proposals=q)
    draws = KeyedDraws(range(200), [9] * 200, CPU)
    one, exact = (
        rule(trees, scored(distributions.tolist(), 1), draws)
        for rule in (Lenience(1.0), Speculative())
    )
    assert torch.equal(one.lengths, exact.lengths) and torch.equal(one.token, exact.token)
    assert one.strayed is not None and not one.strayed.any()


def first_distribution(pair: Pair, rule: Verifier, draft: Callable[[Pair], Any]) -> Tensor:
    """The distribution of the first token when one was drafted, by enumeration."""
    distribution = joint_distribution(
        pair.target, lambda: draft(pair), rule, [0, 1, 0], SamplingParams(), 1, budget=1
    )
    chances = [distribution.get((token,), 0.0) for token in range(pair.target.vocab_size)]
    return torch.tensor(chances, dtype=torch.float64)


@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.4, 0.1])
def test_distribution_of_lenience(lenience: float) -> None:
    """min(q, p/l) plus the residual's share; below p/l; and as close to p as that allows."""
    pair = table_pair(4, seed=2)
    p, q = (logits_after(m, [0, 1, 0]).softmax(-1) for m in (pair.target, pair.draft))
    passed = torch.minimum(q, p / lenience)
    residual = (p - q).clamp(min=0)
    expected = passed + (1 - passed.sum()) * residual / residual.sum()
    found = first_distribution(pair, Lenience(lenience), lambda pr: Drawn(pr.draft, (1,)))
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert bool((found <= p / lenience + 1e-12).all())
    forgiven = passed.sum() - torch.minimum(p, q).sum()
    assert float((found - p).abs().sum() / 2) == pytest.approx(float(forgiven))


def test_distribution_of_typical() -> None:
    """A drafted token that passes keeps the drafter's probability, the rest is the target's."""
    pair = table_pair(4, seed=2)
    p, q = (logits_after(m, [0, 1, 0]).softmax(-1) for m in (pair.target, pair.draft))
    rule = Typical(0.2, 9.0)
    passed = torch.where(p > 0.2, q, 0)
    assert 0 < passed.sum() < 1
    found = first_distribution(pair, rule, lambda pr: Drawn(pr.draft, (1,)))
    assert torch.allclose(found, passed + (1 - passed.sum()) * p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [Lenience(0.5), Typical(), Typical(0.02, 1.0)], ids=str)
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


def test_typical_trees_in_the_limit() -> None:
    """A threshold of 1 refuses every node: the target's own distribution, and text, with any
    tree."""
    check_distribution(
        chosen_tree,
        Typical(1.0, 99.0),
        table_pair(3),
        SamplingParams(),
        3,
        rows=256,
        budget=3,
        steps=1,
    )


def test_typical_without_tolerance_keeps_the_text(pair: Pair) -> None:
    """Token for token plain decoding's, at any temperature."""
    check_seeded(lambda pr: PromptLookup(), Typical(1.0, 99.0), pair, slots=3)


@pytest.fixture(scope="module")
def rough() -> Pair:
    """A target whose draft model is wrong about half of the time."""
    return tiny_pair(noise=0.1)


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
    """A request's text does not depend on who is served beside it."""
    params = SamplingParams(temperature=0.7 if rule.sampling else 0, seed=3, max_tokens=16)
    check_company(lambda pr: SmallLM(pr.draft, 3), rule, rough, params)


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


def test_greedy_rules_refuse_a_temperature(pair: Pair) -> None:
    """One sentence for the request, and the others go on."""
    llm = LLM(pair.target, speculative_config={"method": "pld", "verifier": Rollback()})
    warm, cold = llm.generate([[1, 2], [1, 2]], [SamplingParams(temperature=1), GREEDY])
    assert warm.error is not None and "greedy decoding only" in warm.error
    assert cold.error is None and cold.token_ids


@pytest.mark.parametrize(
    ("drafter", "rule", "said"),
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
def test_wrong_pairings_are_refused(drafter: Any, rule: Verifier, said: str) -> None:
    """At load, in one sentence."""
    with pytest.raises(ForetokenError, match=said):
        LLM(table_pair().target, speculative_config={"method": drafter, "verifier": rule})


@dataclass(frozen=True)
class Wrong:
    """Parameters out of range, and what is said of them."""

    make: Callable[[], Verifier]
    said: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(lambda: TopBeta(beta=0), "beta must be at least 1"),
        Wrong(lambda: TopBeta(tau=-1), "tau at least 0"),
        Wrong(lambda: TopBeta(tau=math.nan), "tau at least 0"),
        Wrong(lambda: Relaxed(top_k=0), "at least 1"),
        Wrong(lambda: Relaxed(delta=-0.1), "at least 0"),
        Wrong(lambda: Distance(epsilon=-1), "at least 0"),
        Wrong(lambda: Distance(minimum_block=0), "at least 1"),
        Wrong(lambda: Rollback(alpha=-1), "at least 0"),
        Wrong(lambda: RollbackRun(mismatches=0), "at least 1"),
        Wrong(lambda: Lenience(0), "above 0"),
        Wrong(lambda: Lenience(1.5), "at most 1"),
        Wrong(lambda: Typical(epsilon=2), r"in \[0, 1\]"),
        Wrong(lambda: Typical(delta=-1), "at least 0"),
    ],
    ids=lambda wrong: wrong.said,
)
def test_wrong_parameters(wrong: Wrong) -> None:
    """What was given and what is expected."""
    with pytest.raises(ForetokenError, match=wrong.said):
        wrong.make()
