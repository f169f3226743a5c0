"""TLI: the distribution where the vocabularies have few tokens in common."""

from __future__ import annotations

from foretoken.drafters.tli import Tli
from foretoken.verify.speculative import Speculative
from pieces import check_where_few_tokens_are_shared


def test_distribution_where_few_tokens_are_shared() -> None:
    """The target's own distribution, though most of its tokens can't be drafted."""
    check_where_few_tokens_are_shared(Tli, Speculative())
