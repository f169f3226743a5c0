"""A pair of models that the tests of rules share."""

from __future__ import annotations

import pytest

from foretoken.testing import (
    Pair,
    tiny_pair,
)


@pytest.fixture(scope="module")
def rough() -> Pair:
    """A target whose draft model is wrong about half of the time."""
    return tiny_pair(noise=0.1)
