"""What a configuration says of the end of a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foretoken.models.model import eos_ids


@pytest.mark.parametrize(
    ("given", "ids"), [(None, set()), (5, {5}), (0, {0}), ([5, 7], {5, 7})], ids=str
)
def test_end_of_text_ids(given: Any, ids: set[int]) -> None:
    """None, one or several; 0 is an id."""
    assert eos_ids(SimpleNamespace(eos_token_id=given)) == frozenset(ids)
    assert eos_ids(SimpleNamespace()) == frozenset()
