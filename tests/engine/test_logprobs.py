"""Log-probabilities are of the raw logits, in float32 at least."""

from __future__ import annotations

import torch

from foretoken.engine.logprobs import entries, log_probabilities


def test_log_probabilities_are_of_the_raw_logits() -> None:
    """In float32 at least, whatever the logits' dtype."""
    logits = torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_probabilities(logits), logits.log_softmax(-1))
    assert log_probabilities(logits.half()).dtype == torch.float32


def test_the_token_itself_is_always_there() -> None:
    """Its rank counts the tokens above it; the likeliest others come first."""
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    [(entry, own)] = entries(logits, [0], 2)
    assert [(token, each.rank) for token, each in entry.items()] == [(1, 1), (3, 2), (0, 4)]
    assert entry[0].logprob == own == float(logits.log_softmax(-1)[0, 0])
    [(alone, _)] = entries(logits, [1], 0)
    assert list(alone) == [1] and alone[1].rank == 1
