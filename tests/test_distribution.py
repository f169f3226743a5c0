"""Drawn text: the distribution of what is written is the target's own.

By enumeration (every random outcome of the code that runs, to 1e-12) on tables of 3 or 4 tokens,
and by chi-square of the joint distribution of two tokens on a real, tiny model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.protocols import BaseDrafter, Drafter, Verifier
from foretoken.registry import build_verifier, verifier_names
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Drawn,
    Pair,
    Scripted,
    TableModel,
    automaton,
    check_distribution,
    chi_square,
    joint_distribution,
    sampled_counts,
    table_pair,
    target_distribution,
    tiny_pair,
)
from foretoken.tree import DraftTree, Kind
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

Make = Callable[[Pair], Drafter]

END = frozenset({1})


def never_twice(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A user's processor that reads the tokens before: none may follow itself."""
    scores[:, ids[0, -1]] = -torch.inf
    return scores


GRAMMAR = automaton(4, {0: {0: 1, 2: 2}, 1: {2: 0, 0: 2}, 2: {0: 0}}, whole={0, 1})
"""Some places allow one token, some two, and some the end."""

PROCESSORS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.4),
    "hot": SamplingParams(temperature=1.7),
    "greedy": SamplingParams(temperature=0),
    "top_k": SamplingParams(temperature=0.8, top_k=2),
    "top_p": SamplingParams(top_p=0.6),
    "min_p": SamplingParams(min_p=0.5),
    "repetition": SamplingParams(repetition_penalty=1.8),
    "presence_frequency": SamplingParams(presence_penalty=0.7, frequency_penalty=0.4),
    "logit_bias": SamplingParams(logit_bias={0: 1.5, 2: -1.0}),
    "allowed": SamplingParams(allowed_token_ids=[0, 2]),
    "bad": SamplingParams(bad_token_ids=[0]),
    "min_tokens": SamplingParams(min_tokens=2),
    "grammar": SamplingParams(temperature=0.8, structured_outputs=GRAMMAR),
    "own": SamplingParams(logits_processors=[never_twice]),
    "all": SamplingParams(
        temperature=0.7,
        top_k=3,
        top_p=0.95,
        repetition_penalty=1.3,
        frequency_penalty=0.3,
        logit_bias={1: 0.5},
        min_tokens=1,
    ),
}


def chosen_chain(pair: Pair) -> Drafter:
    """A chosen chain of two tokens that depends on the text."""

    class Chain(Scripted):
        trees = False

        def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
            tree = super().draft(sequences, budgets, draws)
            return DraftTree(tree.tokens, tree.counts)

    def paths(sequence: Sequence, budget: int) -> list[list[int]]:
        first = _guess(sequence, pair)
        return [[first, (first * 2 + 1) % pair.target.vocab_size][:budget]]

    return Chain(paths)


def chosen_tree(pair: Pair) -> Drafter:
    """A chosen tree of three nodes, the longer branch last; it depends on the text."""

    def paths(sequence: Sequence, budget: int) -> list[list[int]]:
        first = _guess(sequence, pair)
        other = (first + 1) % pair.target.vocab_size
        return [[other], [first, other]]

    return Scripted(paths)


def _guess(sequence: Sequence, pair: Pair) -> int:
    return (2 * sequence.tokens[-1] + len(sequence.tokens)) % pair.target.vocab_size


def _kinds(kind: Kind) -> dict[str, Make]:
    return {
        f"{kind.name.lower()}-chain": lambda pair: Drawn(pair.draft, (1, 1), kind),
        f"{kind.name.lower()}-tree": lambda pair: Drawn(pair.draft, (2, 1), kind),
    }


SHAPES: dict[Kind, dict[str, Make]] = {
    Kind.CHOSEN: {"chosen-chain": chosen_chain, "chosen-tree": chosen_tree},
    Kind.INDEPENDENT: _kinds(Kind.INDEPENDENT),
    Kind.WITHOUT_REPLACEMENT: _kinds(Kind.WITHOUT_REPLACEMENT),
    Kind.AUXILIARY: {},
}


SIZES: dict[str, dict[str, int]] = {
    "chosen-chain": {"rows": 256},
    "chosen-tree": {"rows": 256, "budget": 3, "steps": 2},
    "chain": {"rows": 256},
    "tree": {"rows": 256, "budget": 4, "steps": 1},
}
"""How much is enumerated: a tree's every slot is an outcome, so after some steps it is enough."""


def size(name: str, shape: str) -> dict[str, int]:
    own = SIZES[shape if shape in SIZES else shape.split("-")[1]]
    # A rule that asks for the target's sample at every place has many outcomes: one step will do.
    return {**own, "steps": 1, "rows": 256} if name == "gumbel" else own


def exact_rules() -> dict[str, Verifier]:
    """Every exact rule that the package finds."""
    rules = {name: build_verifier(name) for name in verifier_names()}
    return {name: rule for name, rule in rules.items() if rule.exact}


FEW = ("plain", "greedy", "top_p", "all", "grammar")
"""For the rules after the first two: what a processor does is done before any rule is asked."""


def processors(name: str, rule: Verifier) -> list[str]:
    if not rule.sampling:
        return ["greedy"]
    return list(PROCESSORS if name in ("speculative", "target_only") else FEW)


CELLS = [
    pytest.param(rule, make, size(name, shape), processor, id=f"{name}-{shape}-{processor}")
    for name, rule in exact_rules().items()
    for kind in sorted(rule.kinds)
    for shape, make in SHAPES[kind].items()
    if rule.trees or not shape.endswith("tree")
    for processor in processors(name, rule)
]


@pytest.mark.parametrize(("rule", "make", "size", "processor"), CELLS)
def test_distribution_of_every_rule(
    rule: Verifier, make: Make, size: dict[str, int], processor: str
) -> None:
    """Each exact rule keeps the target's joint distribution for each kind of node it takes."""
    params = PROCESSORS[processor]
    ends = END if params.min_tokens or params.structured_outputs else frozenset()
    check_distribution(make, rule, table_pair(3), PROCESSORS[processor], 3, end_ids=ends, **size)


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 5])
def test_distribution_of_drawn_chains(gamma: int, seed: int) -> None:
    """γ tokens drawn from another model: the distribution of γ + 1 tokens, and of one token
    more."""
    pair = table_pair(3, seed=seed)
    for tokens, steps in ((gamma + 1, 3), (gamma + 2, 2)):
        check_distribution(
            lambda p: SmallLM(p.draft, gamma),
            Speculative(),
            pair,
            SamplingParams(temperature=0.8),
            tokens,
            steps=steps if gamma == 3 else None,
            rows=256,
        )


def test_distribution_with_four_tokens() -> None:
    """A wider vocabulary, a draft model that knows nothing, and one that knows everything."""
    target = TableModel.random(4, seed=3)
    for draft in (TableModel(torch.zeros_like(target.table)), target):
        pair = Pair(target, draft)
        check_distribution(
            lambda p: SmallLM(p.draft, 2),
            Speculative(),
            pair,
            SamplingParams(top_p=0.8),
            3,
            rows=256,
        )


def test_distribution_where_supports_differ() -> None:
    """A draft that proposes the impossible, and one that never proposes the likely."""
    target = TableModel.markov(torch.tensor([[0.5, 0.5, 0], [0.2, 0.3, 0.5], [1.0, 0, 0]]))
    draft = TableModel.markov(torch.tensor([[0.0, 0.5, 0.5], [0.9, 0.1, 0], [0.2, 0.3, 0.5]]))
    check_distribution(
        lambda p: SmallLM(p.draft, 2),
        Speculative(),
        Pair(target, draft),
        SamplingParams(),
        4,
        rows=256,
    )


@pytest.mark.parametrize("name", ["k_seq", "optimal_transport"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_distribution_of_rules_for_independent_draws(name: str, temperature: float) -> None:
    """A small model's chain is one draw a prefix; at temperature 0 its tokens are chosen."""
    check_distribution(
        lambda p: SmallLM(p.draft, 2),
        build_verifier(name),
        table_pair(3),
        SamplingParams(temperature=temperature),
        3,
        rows=64,
    )


def test_distribution_with_the_heuristic_length() -> None:
    """The +2/−1 rule looks at the past only, so it leaves the distribution alone."""
    check_distribution(
        lambda p: SmallLM(p.draft, 1, num_assistant_tokens_schedule="heuristic"),
        Speculative(),
        table_pair(3),
        SamplingParams(),
        4,
        rows=1,
        steps=3,
    )


def test_distribution_of_copied_text() -> None:
    """Prompt lookup copies chosen tokens, under either rule for chains."""
    for rule in (TargetOnly(), Speculative()):
        check_distribution(
            lambda p: PromptLookup(2),
            rule,
            table_pair(3),
            SamplingParams(temperature=1.2),
            3,
            prompt=[0, 1, 2, 0, 1],
            rows=1,
            steps=2,
        )


def test_distribution_of_a_trimmed_draft() -> None:
    """Drawn nodes beyond the budget are left out by draw order, which keeps the distribution."""
    check_distribution(
        lambda p: Drawn(p.draft, (1, 1, 1)),
        Speculative(),
        table_pair(3),
        SamplingParams(),
        2,
        rows=1,
    )


class HalfDrawn(BaseDrafter):
    """A chain of one chosen token and one drawn after it, in one tree with `kinds`."""

    kinds = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})

    def __init__(self, pair: Pair, chosen_first: bool) -> None:
        self.pair, self.chosen_first = pair, chosen_first

    def draft(self, sequences: object, budgets: object, draws: object) -> DraftTree:
        [sequence] = sequences  # type: ignore[misc]
        maker = Drawn(self.pair.draft)
        first_distribution = maker._distribution(sequence, [])
        first = 1 if self.chosen_first else int(draws.draft(first_distribution[None], 0))  # type: ignore[attr-defined]
        second_distribution = maker._distribution(sequence, [first])
        second = int(draws.draft(second_distribution[None], 1)) if self.chosen_first else 1  # type: ignore[attr-defined]
        kinds = torch.full((1, 2), int(Kind.INDEPENDENT), dtype=torch.int8)
        kinds[:, 0 if self.chosen_first else 1] = Kind.CHOSEN
        distributions = torch.stack((first_distribution, second_distribution))[None]
        return DraftTree(torch.tensor([[first, second]]), [2], kinds=kinds, proposals=distributions)


@pytest.mark.parametrize("chosen_first", [True, False])
def test_distribution_of_mixed_chains(chosen_first: bool) -> None:
    """Chosen and drawn nodes in one chain: a chosen one is a point mass, whatever its row says."""
    check_distribution(
        lambda p: HalfDrawn(p, chosen_first),
        Speculative(),
        table_pair(3),
        SamplingParams(),
        3,
        rows=1,
        steps=2,  # a third one would draft nothing
    )


@pytest.mark.parametrize("processor", PROCESSORS)
def test_plain_decoding_is_the_reference(processor: str) -> None:
    """Drafting nothing, the loop writes the distribution that is spelled out token by token."""
    params = PROCESSORS[processor]
    ends = END if params.min_tokens or params.structured_outputs else frozenset()
    check_distribution(
        lambda p: Nothing(),
        TargetOnly(),
        table_pair(4, seed=2),
        PROCESSORS[processor],
        3,
        rows=64,
        end_ids=ends,
    )


def test_rules_read_folded_distributions_only() -> None:
    """Exact rules give the same verdict when the raw logits are NaN."""
    pair = table_pair(3)

    for rule in exact_rules().values():

        def blinded(trees, scores, draws, rule=rule):  # type: ignore[no-untyped-def]
            scores.logits = scores.logits * torch.nan
            return rule(trees, scores, draws)

        kind = Kind.CHOSEN if Kind.CHOSEN in rule.kinds else Kind.INDEPENDENT
        make = next(iter(SHAPES[kind].values()))
        params = SamplingParams(temperature=float(rule.sampling))
        check_distribution(make, blinded, pair, params, 3, rows=1, steps=1)  # type: ignore[arg-type]


def test_exact_rules_are_found() -> None:
    """The cells above are not empty."""
    lossless = {"block", "greedy", "gumbel", "k_seq", "multi_candidate", "optimal_transport"}
    assert {"speculative", "target_only", "traversal", *lossless} <= set(exact_rules())
    assert len(CELLS) >= 100


REAL = {
    "temperature": SamplingParams(temperature=0.7),
    "top_k": SamplingParams(top_k=12),
    "top_p": SamplingParams(temperature=1.2, top_p=0.7),
    "min_p": SamplingParams(min_p=0.15),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5
    ),
    "lists": SamplingParams(logit_bias={3: 2.0}, bad_token_ids=[11, 40], temperature=0.9),
}
REAL_PROMPT = [5, 9, 2, 5, 9]
SAMPLES = 6_000


def eight_by_eight(text: tuple[int, ...]) -> tuple[int, ...]:
    """64 bins for two tokens."""
    return tuple(token % 8 for token in text)


def real_p(make: Make, rule: Verifier, pair: Pair, params: SamplingParams) -> float:
    """How likely the sampled joint distribution of two tokens is under the target's own."""
    counts = sampled_counts(
        pair.target, lambda: make(pair), rule, REAL_PROMPT, params, 2, SAMPLES, rows=2000
    )
    return chi_square(
        counts, target_distribution(pair.target, REAL_PROMPT, params, 2), eight_by_eight
    )


@pytest.fixture(scope="session")
def small_pair() -> Pair:
    """A real model of 48 tokens whose draft model is accepted about half of the time."""
    return tiny_pair(48, noise=0.1, width=16)


@pytest.mark.parametrize("processor", REAL)
def test_chi_square_on_a_real_model(small_pair: Pair, processor: str) -> None:
    """Two tokens' joint distribution, with the draws that requests really use."""
    p = real_p(lambda pr: SmallLM(pr.draft, 3), Speculative(), small_pair, REAL[processor])
    assert p > 1e-3


def test_chi_square_notices_another_distribution(small_pair: Pair) -> None:
    """The sample is large enough to tell a temperature of 0.7 from one of 0.8."""
    off = target_distribution(small_pair.target, REAL_PROMPT, SamplingParams(temperature=0.8), 2)
    counts = sampled_counts(
        small_pair.target, Nothing, TargetOnly(), REAL_PROMPT, REAL["temperature"], 2, SAMPLES
    )
    assert chi_square(counts, off, eight_by_eight) < 1e-6


def test_enumeration_notices_outside_randomness() -> None:
    """A drafter that is random on its own account can't be enumerated, and that is said."""
    pair = table_pair(3)
    state = iter(range(10**6))
    fickle = Scripted(lambda s, b: [[next(state) * 7 % 3] * (next(state) % 2)])
    with pytest.raises(AssertionError, match="outside draws"):
        joint_distribution(pair.target, lambda: fickle, TargetOnly(), [0, 1], SamplingParams(), 3)
