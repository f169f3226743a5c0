"""A pair of models of 23 tokens, and the checkpoint of a small model for its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.testing import Pair, related, tiny_pair


@pytest.fixture(scope="module")
def small() -> Pair:
    return tiny_pair(23)


@pytest.fixture(scope="module")
def folder(small: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model that agrees with the target now and then."""
    path = tmp_path_factory.mktemp("draft")
    related(small.transformers, 0.15).float().save_pretrained(path)
    return path
