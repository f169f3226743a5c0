"""A small target and what it writes."""

from __future__ import annotations

import pytest

from foretoken.testing import Pair, tiny_pair
from foretoken.train.records import Records
from lessons import written


@pytest.fixture(scope="session")
def small() -> Pair:
    """A target of 23 tokens."""
    return tiny_pair(23)


@pytest.fixture(scope="session")
def records(small: Pair) -> Records:
    """What the target writes greedily."""
    return written(small.target)
