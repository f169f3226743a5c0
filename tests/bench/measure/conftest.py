"""Fixtures that several tests of this folder share."""

from __future__ import annotations

import pytest

from foretoken import LLM
from foretoken.testing import Pair


@pytest.fixture(scope="module")
def tiny(pair: Pair) -> LLM:
    return LLM(pair.target, max_num_seqs=1)
