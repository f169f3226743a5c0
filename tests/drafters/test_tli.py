"""TLI: the distribution where the vocabularies have few tokens in common."""

from __future__ import annotations

from foretoken import SamplingParams
from foretoken.drafters.tli import Tli
from foretoken.testing import (
    Pair,
    TableModel,
    check_distribution,
)
from foretoken.verify.speculative import Speculative
from pieces import Pieces


def test_distribution_where_few_tokens_are_shared() -> None:
    """Every outcome enumerated; the request's own bias and ban are of target ids, and one ban
    leaves no shared token."""
    theirs, own = Pieces(["a", "b", "c"]), Pieces(["c", "b", "aa"])
    pair = Pair(TableModel.random(3, 1), TableModel.random(3, 2))
    for params in (
        SamplingParams(logit_bias={1: 2.0}, temperature=0.8),
        SamplingParams(frequency_penalty=0.9, top_p=0.9),
        SamplingParams(bad_token_ids=[1, 2]),
        SamplingParams(temperature=0),
    ):
        check_distribution(
            lambda p: Tli(p.draft, own, theirs, 2), Speculative(), pair, params, 3, rows=1
        )
