"""A small target, native and as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foreign import LAYERS, VOCAB, WIDTH
from foretoken.testing import Pair, tiny_pair, tiny_transformers


@pytest.fixture(scope="session")
def small() -> Pair:
    """A target, native and in transformers."""
    return tiny_pair(VOCAB, layers=LAYERS, width=WIDTH)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_transformers(VOCAB, layers=LAYERS, width=WIDTH, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder
