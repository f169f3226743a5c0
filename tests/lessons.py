"""What tests of trained drafters share: a target's own texts, and what an estimate must meet."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.engine.outputs import RequestOutput
from foretoken.lesson import Estimate
from foretoken.models.model import CausalLM
from foretoken.testing import serve
from foretoken.train.records import Records
from foretoken.verify.target_only import TargetOnly

LIMIT = 20
PROMPTS = [[1, 2, 3], [4, 5], [9] * 6, [7, 3, 7, 3], [20, 1], [8, 8, 2, 1, 0], [5]]
GREEDY = SamplingParams(temperature=0, max_tokens=LIMIT)


def written(target: CausalLM) -> Records:
    """What it writes greedily."""
    outputs = serve(target, Nothing(), TargetOnly(), PROMPTS, GREEDY)
    pairs = [(p, o.token_ids) for p, o in zip(PROMPTS, outputs, strict=True)]
    return Records.of(pairs, LIMIT, target.vocab_size)


def assert_served(expected: Estimate, outputs: Seq[RequestOutput]) -> None:
    """Steps and places, one by one."""
    assert expected.tokens == sum(o.stats.tokens for o in outputs)
    assert expected.steps == sum(o.stats.passes for o in outputs)
    for place, count in enumerate(expected.reached):
        assert count == sum(sum(o.stats.accepted_at[place : place + 1]) for o in outputs)
