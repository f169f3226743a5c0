"""Target-only sampling: a drafted token passes iff it is the target's own sample there."""

from __future__ import annotations

import torch

from foretoken.draws import KeyedDraws
from foretoken.protocols import Scores
from foretoken.tree import DraftTree
from foretoken.verify.target_only import TargetOnly

CPU = torch.device("cpu")
ROWS = 400


def test_the_text_is_the_targets_samples() -> None:
    """Accepted tokens and the extra token are the samples that plain decoding draws at these
    positions; the token after them was not drafted, or was another one."""
    random = torch.Generator().manual_seed(4)
    probs = torch.rand(ROWS, 4, 3, generator=random, dtype=torch.float64)
    probs /= probs.sum(-1, keepdim=True)
    tokens = torch.randint(3, (ROWS, 3), generator=random)
    draws = KeyedDraws(range(ROWS), [7] * ROWS, CPU)
    samples = torch.cat(
        [
            KeyedDraws(range(ROWS), [7 + place] * ROWS, CPU).pick(
                probs[:, place : place + 1], torch.zeros(ROWS, 1, dtype=torch.long)
            )
            for place in range(4)
        ],
        1,
    )
    scores = Scores(probs.log(), probs, torch.zeros(ROWS, 4, dtype=torch.bool))
    _, lengths, token, _ = TargetOnly()(DraftTree(tokens, [3] * ROWS), scores, draws)
    assert len(lengths.unique()) == 4
    for row, length in enumerate(lengths.tolist()):
        assert tokens[row, :length].equal(samples[row, :length])
        assert token[row] == samples[row, length]
        assert length == 3 or tokens[row, length] != samples[row, length]
