"""The path that approximate rules accept, and what strays on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from approximate_rules import CPU, EVEN, LOOSE, STRICT, scored, written
from foretoken.draws import GreedyDraws, KeyedDraws
from foretoken.protocols import Verifier
from foretoken.tree import DraftTree, Kind, chains
from foretoken.verify.relaxed import Relaxed
from foretoken.verify.rollback import Rollback
from foretoken.verify.shared.approximate import ratio
from foretoken.verify.top_beta import TopBeta
from foretoken.verify.typical import Typical
from test_tree import path_to, tree_of

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


def test_siblings_are_compared_with_their_row() -> None:
    """Two draws below the root have one distribution, and the draw below them another."""
    proposals = torch.tensor([[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]])
    trees = DraftTree(
        torch.tensor([[0, 1, 2]]),
        [3],
        torch.tensor([[0, 0, 1]]),
        kind=Kind.INDEPENDENT,
        proposals=proposals,
        rows=torch.tensor([[0, 0, 1]]),
    )
    probs = torch.tensor([0.4, 0.4, 0.2]).expand(1, 4, -1)
    assert ratio(trees, probs)[0].tolist() == pytest.approx([0.5, 1.0, 0.25])
