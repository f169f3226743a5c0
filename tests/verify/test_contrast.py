"""Contrast as a criterion: what its floor and its score let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from approximate_rules import CPU, EVEN, first_distribution, scored, written
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.draws import KeyedDraws
from foretoken.protocols import Verifier
from foretoken.testing import Drawn, Pair, TableModel
from foretoken.tree import DraftTree, Kind
from foretoken.verify.contrast import Contrast

SURE = [0.05, 0.8, 0.1, 0.05]
"""A drafter's distribution: it overrates token 1, and token 0 not at all."""


@pytest.mark.parametrize(
    ("rule", "draft", "drawn", "passed"),
    [
        (Contrast(0.1, 0.5), [0, 0], True, 2),  # p = 0.4, q = 0.05
        (Contrast(0.1, 0.5), [0, 1, 0], True, 1),  # 0.3 / 0.8 is below a half
        (Contrast(0.1, 0.3), [0, 1, 0], True, 3),
        (Contrast(0.3, 0.3), [0, 3, 0], True, 1),  # 0.1 is below 0.3 · 0.4, at twice q
        (Contrast(0.2, 0.3), [0, 3, 0], True, 3),
        (Contrast(0.1, 0.35), [0, 1, 0], False, 1),  # chosen: q = 1
        (Contrast(0.1, 0.25), [0, 1, 0], False, 3),
        (Contrast(0.0, 0.0), [3, 3, 3], False, 3),
        (Contrast(1.0, 0.0), [0, 1], False, 1),  # the likeliest alone reaches all of its own
        (Contrast(0.0, 1.0), [0, 1], True, 1),  # not overrated at all
    ],
    ids=str,
)
def test_contrast_by_hand(rule: Verifier, draft: list[int], drawn: bool, passed: int) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    trees = DraftTree(torch.tensor([draft]), [len(draft)])
    if drawn:
        trees.kind = Kind.INDEPENDENT
        trees.proposals = torch.tensor([[SURE] * len(draft)], dtype=torch.float64)
    scores = scored([[EVEN] * (len(draft) + 1)], 1)
    found = rule(trees, scores, KeyedDraws([1], [5], CPU))
    assert found.lengths.tolist() == [passed]


def test_what_is_impossible_never_passes() -> None:
    """Not even where everything plausible does: a request may have forbidden the token."""
    trees = DraftTree(torch.tensor([[3]]), [1])
    scores = scored([[[0.5, 0.3, 0.2, 0.0]] * 2], 1)
    assert Contrast(0, 0)(trees, scores, KeyedDraws([1], [5], CPU)).lengths.tolist() == [0]


def test_the_first_tokens_distribution() -> None:
    """Drawn, it passes or the target's own follows: q where p reaches tau · q and the floor, and
    what is missing by p."""
    p, q = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.1, 0.35, 0.5, 0.05])
    pair = Pair(TableModel.markov(p.expand(4, -1)), TableModel.markov(q.expand(4, -1)))
    found = first_distribution(pair, Contrast(0.2, 0.5), lambda pr: Drawn(pr.draft, (1,)))
    kept = torch.tensor([0.1, 0.35, 0.0, 0.0])  # 0.15 / 0.5 is low, 0.05 / 0.5 implausible
    expected = (kept + (1 - kept.sum()) * p).double()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_the_likelier_of_two_branches_is_kept() -> None:
    """Of equally long paths."""
    trees = DraftTree(torch.tensor([[1, 0]]), [2], parents=torch.tensor([[0, 0]]))
    scores = scored([[EVEN] * 3], 1)
    found = Contrast(0.1, 0.1)(trees, scores, KeyedDraws([1], [5], CPU))
    assert found.path[0, 0] == 2 and written(found, trees)[0][0][0] == 0


def test_by_name(pair: Pair) -> None:
    """It serves edits, which p has in it, and is told from the exact rule."""
    config = {"method": "sps", "model": pair.draft, "verifier": "contrast"}
    llm = LLM(pair.target, speculative_config=config)
    assert llm.engine.verifier == Contrast() and not Contrast.exact
    params = SamplingParams(temperature=0.9, seed=1, max_tokens=30, bad_token_ids=[5])
    [output] = llm.generate([[5, 9, 2]], params)
    assert output.error is None and 5 not in output.token_ids
    assert llm.stats.accepted > 0


@pytest.mark.parametrize("make", [lambda: Contrast(alpha=1.1), lambda: Contrast(tau=-0.1)])
def test_wrong_parameters(make: Callable[[], Verifier]) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=r"both must be in \[0, 1\]"):
        make()
