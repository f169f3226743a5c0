"""Sampled text of a real model: every lossless rule, temperature and processor, by chi-square.

The joint distribution of two tokens of 8 is 64 bins. What is sampled runs through the loop, the
fold and the keyed random numbers as requests do; what is expected is spelled out from the target
alone. The same number of samples must reject every mistake that `rule_mutants` lists for a
rule.

Legend: B rows, C contexts, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import SamplingParams
from foretoken.access import Wants
from foretoken.certify import PROCESSORS, TEMPERATURES, cells
from foretoken.draws import Draws
from foretoken.protocols import BaseDrafter, Verifier
from foretoken.registry import build_verifier, verifier_names
from foretoken.sampling.fold import fold
from foretoken.testing import Pair, chi_square, sampled_counts, target_distribution, tiny_pair
from foretoken.testing.models import logits_after
from foretoken.testing.rules import Shape
from foretoken.testing.rules import draft as draw
from foretoken.tree import DraftTree, Kind
from rule_mutants import MUTANTS, Changed, RuleMutant, Thinned

VOCAB, PROMPT, TOKENS = 8, [5, 2, 2, 5], 2
SAMPLES, ROWS = {"block": 8_000}, 2_000
FEWEST = 4_000
"""Samples of a rule: as many as its subtlest mistake needs to be seen."""
CHOSEN, DRAWN, REST = Kind.CHOSEN, Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT
CHAIN, TREE = (0, 1), (0, 0, 1, 2)

CELLS = cells(TEMPERATURES, list(PROCESSORS))
FAILS = 1e-4 / len(CELLS)

SHAPES: dict[str, list[Shape]] = {
    "target_only": [Shape.of(CHOSEN, *TREE)],
    "speculative": [Shape.of(DRAWN, *CHAIN)],
    "multi_candidate": [Shape.of(DRAWN, *TREE), Shape.of(REST, *TREE), Shape.of(CHOSEN, *TREE)],
    "k_seq": [Shape.of(DRAWN, *TREE)],
    "optimal_transport": [Shape.of(DRAWN, *TREE)],
    "block": [Shape.of(DRAWN, *CHAIN)],
    "traversal": [Shape.of(DRAWN, *TREE), Shape.of(REST, *TREE)],
    "gumbel": [Shape.of(REST, *TREE)],
}
"""What each rule that samples is tried on."""


@cache
def models() -> Pair:
    """A model of 8 tokens and one that is often wrong about it."""
    return tiny_pair(VOCAB, noise=0.2, width=16, seed=3)


@cache
def texts(longest: int) -> list[tuple[int, ...]]:
    """All texts of at most `longest` tokens, in the order of a heap."""
    return [text for n in range(longest + 1) for text in itertools.product(range(VOCAB), repeat=n)]


@cache
def table() -> dict[tuple[int, ...], Tensor]:
    """What the draft model says after the prompt and each text of up to two tokens."""
    return {text: logits_after(models().draft, [*PROMPT, *text])[None] for text in texts(2)}


class Planted(BaseDrafter):
    """Trees of one shape from the draft model, all rows at once."""

    wants, trees = Wants("b"), True

    def __init__(self, shape: Shape) -> None:
        self.shape, self.kinds = shape, frozenset(shape.kinds)

    def draft(self, sequences: Any, budgets: Any, draws: Draws) -> DraftTree:
        paths = texts(self.shape.depth - 1)
        written = [tuple(s.output) for s in sequences]
        some = dict(zip(written, sequences, strict=True))  # one of each that have the same text
        logits = torch.stack(
            [torch.cat([table()[(*text, *path)] for path in paths]) for text in some]
        )
        distributions = fold(
            logits, list(some.values()), lambda: [[list(p) for p in paths]] * len(some)
        ).probs
        rows = {text: row for row, text in enumerate(some)}
        distributions = distributions[[rows[text] for text in written]]
        return self.change(draw(self.shape, self.padded(distributions), draws)[0])

    def padded(self, distributions: Tensor) -> Tensor:
        """[B, C, V] with rows after the leaves, which are never drawn from."""
        missing = len(texts(self.shape.depth)) - distributions.shape[1]
        return torch.cat([distributions, distributions[:, :1].expand(-1, missing, -1)], 1)

    def change(self, trees: DraftTree) -> DraftTree:
        return trees


def sampled_p(rule: Verifier, drafter: BaseDrafter, params: SamplingParams) -> float:
    """How likely the sampled joint distribution of two tokens is under the target's own."""
    pair, samples = models(), SAMPLES.get(type(rule).__name__.lower(), FEWEST)
    counts = sampled_counts(
        pair.target, lambda: drafter, rule, PROMPT, params, TOKENS, samples, rows=ROWS, budget=8
    )
    return chi_square(counts, target_distribution(pair.target, PROMPT, params, TOKENS))


def test_every_rule_that_samples_is_tried() -> None:
    rules = {name: build_verifier(name) for name in verifier_names()}
    assert set(SHAPES) == {name for name, rule in rules.items() if rule.exact and rule.sampling}


def tried() -> Iterator[Any]:
    """Every rule in every cell. A rule sees what the fold has made of logits: of those with a
    processor at another temperature than 1, all but one rule's are slow."""
    for name, shapes in SHAPES.items():
        for cell in CELLS:
            fast = name == "speculative" or cell.startswith("T=1 ") or cell.endswith(" plain")
            for number, shape in enumerate(shapes):
                marks = [] if fast else [pytest.mark.slow]
                yield pytest.param(name, shape, cell, id=f"{name}-{number}-{cell}", marks=marks)


@pytest.mark.parametrize(("name", "shape", "cell"), list(tried()))
def test_sampled_distribution(name: str, shape: Shape, cell: str) -> None:
    """No cell fails at 1e-4 once corrected for their number."""
    assert sampled_p(build_verifier(name), Planted(shape), CELLS[cell]) >= FAILS


def shape_of(mutant: RuleMutant) -> Shape:
    """The mutant's tree, whose every node at depth d has `branches[d]` children."""
    parents, level = [], [0]
    for count in mutant.branches:
        above = [slot for slot in level for _ in range(count)]
        level = list(range(len(parents) + 1, len(parents) + 1 + len(above)))
        parents += above
    return Shape.of(mutant.kind, *parents)


class Misplanted(Planted):
    """Trees that the mutant's drafter changes before it hands them over."""

    def __init__(self, mutant: RuleMutant) -> None:
        kind = REST if mutant.wrong is Thinned else mutant.kind
        super().__init__(Shape.of(kind, *shape_of(mutant).parents))
        self.mutant = mutant

    def change(self, trees: DraftTree) -> DraftTree:
        wrong = self.mutant.wrong
        return wrong.change(self, trees) if issubclass(wrong, Changed) and trees.nodes else trees  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MUTANTS)
def test_as_many_samples_reject_mistakes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each listed mistake fails the same check, in one cell or another."""
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    rule, drafter = mutant.wrong_rule or mutant.rule, Misplanted(mutant)
    tried = ("T=1 plain", "T=1.5 min_p")
    assert any(sampled_p(rule, drafter, CELLS[cell]) < FAILS for cell in tried)
