"""Chosen drafts under rules for drawn ones."""

from __future__ import annotations

import pytest
import torch

from foretoken.draws import KeyedDraws, stream_key
from foretoken.protocols import Scores, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.block import Block
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.shared.chosen import is_drawn
from foretoken.verify.speculative import Speculative
from foretoken.verify.traversal import Traversal

SEEDS, VOCAB = 3000, 3
CPU = torch.device("cpu")


def scores(nodes: int) -> Scores:
    probs = torch.full((SEEDS, nodes + 1, VOCAB), 1 / VOCAB, dtype=torch.float64)
    return Scores(probs.log(), probs, torch.zeros(SEEDS, nodes + 1, dtype=torch.bool))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("rule", [Speculative(), Block(), MultiCandidate(), Traversal()])
def test_what_the_seed_itself_wrote(rule: Verifier, tree: bool, mixed: bool) -> None:
    """A draft that plain decoding wrote with the same seed is accepted, whole, as the text is a
    function of the seed; a test by other numbers would replace it by a token that is not drawn
    from the target's distribution. In a batch with drawn drafts too, which have theirs."""
    if tree and not rule.trees:
        return
    draws = KeyedDraws([stream_key(seed, 0) for seed in range(SEEDS)], [4] * SEEDS, CPU)
    uniform = scores(1).probs
    own = draws.pick(uniform, torch.tensor([[0, 1]]).expand(SEEDS, -1))
    drawn = torch.arange(SEEDS) % 2 == 1 if mixed else torch.zeros(SEEDS, dtype=torch.bool)
    first, last = own.unbind(1)
    first = torch.where(drawn, draws.draft(uniform[:, 0], 0), first)
    wrong = (first + 1) % VOCAB
    tokens = torch.stack((wrong, first, last) if tree else (first, last), 1)
    kinds = torch.where(drawn, Kind.INDEPENDENT, Kind.CHOSEN).to(torch.int8)[:, None]
    trees = DraftTree(
        tokens,
        [tokens.shape[1]] * SEEDS,
        parents=torch.tensor([[0, 0, 2]]).expand(SEEDS, -1) if tree else None,
        kinds=kinds.expand(tokens.shape) if mixed else None,
        proposals=uniform[:, :1].expand(-1, tokens.shape[1], -1) if mixed else None,
    )
    found = rule(trees, scores(trees.nodes), draws)
    assert (found.lengths[~drawn] == 2).all()
    path = [2, 3] if tree else [1, 2]
    assert found.path[~drawn, :2].tolist() == [path] * int((~drawn).sum())
    if mixed:
        written = torch.where(
            found.lengths > 0, tokens.gather(1, (found.path[:, :1] - 1))[:, 0], found.token
        )
        counts = written[drawn].bincount(minlength=VOCAB).double()
        expected = counts.sum() / VOCAB
        assert ((counts - expected) ** 2 / expected).sum() < 30  # 2 degrees of freedom


def test_which_nodes_are_drawn() -> None:
    """None where no tree has any."""
    tokens = torch.tensor([[1, 2]])
    proposals = torch.ones(1, 2, VOCAB)
    assert is_drawn(DraftTree(tokens, [2])) is None
    assert is_drawn(DraftTree(tokens, [2], proposals=proposals)) is None
    both = DraftTree(tokens, [2], kind=Kind.INDEPENDENT, proposals=proposals)
    assert is_drawn(both).tolist() == [[True, True]]  # type: ignore[union-attr]
    kinds = torch.tensor([[Kind.CHOSEN, Kind.WITHOUT_REPLACEMENT]], dtype=torch.int8)
    one = DraftTree(tokens, [2], kinds=kinds, proposals=proposals)
    assert is_drawn(one).tolist() == [[False, True]]  # type: ignore[union-attr]
