"""Greedy verification: the longest path of likeliest tokens, on a tree worked out by hand."""

from __future__ import annotations

import torch

from foretoken.draws import GreedyDraws
from foretoken.protocols import Scores
from foretoken.tree import DraftTree
from foretoken.verify.greedy import Greedy


def test_the_longest_path_of_likeliest_tokens() -> None:
    """Row 0 follows the tokens 2, 1 to the end of their branch; row 1 accepts nothing."""
    tokens = torch.tensor([[0, 2, 1, 1]]).expand(2, -1)
    trees = DraftTree(tokens, [4, 4], torch.tensor([[0, 0, 1, 2]]).expand(2, -1))
    likeliest = torch.tensor([[2, 1, 1, 0, 3], [3, 1, 1, 0, 3]])  # [B, S]
    probs = torch.full((2, 5, 4), 0.1).scatter_(-1, likeliest[..., None], 0.7)
    scores = Scores(probs.log(), probs, torch.zeros(2, 5, dtype=torch.bool))
    path, lengths, token, _ = Greedy()(trees, scores, GreedyDraws())
    assert path[0, :2].tolist() == [2, 4]
    assert lengths.tolist() == [2, 0] and token.tolist() == [3, 3]
