"""PaSS: what is estimated is served."""

from __future__ import annotations

import pytest
import torch

from foretoken.drafters.lookahead_embeddings import LookaheadEmbeddings, PassTokens
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.verify.speculative import Speculative
from lessons import check_estimate, seeded


@pytest.mark.parametrize("most", [4, 2])
def test_pass_estimates_what_is_served(small: Pair, records: Records, most: int) -> None:
    """Chains of two lengths."""
    module = seeded(PassTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    drafter = LookaheadEmbeddings(module, num_speculative_tokens=most)
    total = check_estimate(drafter, module, small.target, records, Speculative())
    assert total.acceptance_length > 1.9 and total.accepted[1] > 0
