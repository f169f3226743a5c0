"""The likelihood of a text under the target."""

from __future__ import annotations

import pytest

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.likelihood import log_likelihood


@pytest.mark.parametrize("count", [1, 5, 150])
def test_log_likelihood_is_that_of_the_raw_logits(tiny: LLM, count: int) -> None:
    """More than a pass's nodes, too; and the slot that was borrowed is given back."""
    params = SamplingParams(temperature=0.7, seed=2, max_tokens=count, ignore_eos=True, logprobs=0)
    [out] = tiny.generate([[1, 2, 3]], params)
    found = log_likelihood(tiny, [1, 2, 3], out.token_ids)
    assert found == pytest.approx(out.outputs[0].cumulative_logprob, rel=1e-9)
    assert tiny.engine.target.free == 1
    assert log_likelihood(tiny, [1, 2, 3], []) == 0.0
