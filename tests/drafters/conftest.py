"""A tiny target, what it writes, and the checkpoint of a small model for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.testing import Pair, related, tiny_pair
from foretoken.train.records import Records
from lessons import written


@pytest.fixture(scope="module")
def small() -> Pair:
    """A target of 23 tokens, and a related model."""
    return tiny_pair(23)


@pytest.fixture(scope="module")
def records(small: Pair) -> Records:
    """What the target writes greedily."""
    return written(small.target)


@pytest.fixture(scope="module")
def folder(small: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model that agrees with the target now and then."""
    path = tmp_path_factory.mktemp("draft")
    related(small.transformers, 0.15).float().save_pretrained(path)
    return path
