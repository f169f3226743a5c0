"""The drafter that drafts nothing."""

from __future__ import annotations

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.testing import Pair, serve
from foretoken.testing.checks import greedy_reference
from foretoken.verify.target_only import TargetOnly


def test_every_pass_writes_one_token(pair: Pair) -> None:
    """Plain decoding: the target's greedy text, nothing drafted, a pass for each token."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    [output] = serve(pair.target, Nothing(), TargetOnly(), [[5, 9, 2]], params)
    assert output.token_ids == greedy_reference(pair.target, [5, 9, 2], 12)
    assert (output.stats.passes, output.stats.drafted) == (12, 0)
