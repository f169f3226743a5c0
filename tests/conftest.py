"""One thread a process, the same examples in every run, and the tiny models that tests share."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from foretoken.testing import Pair, tiny_pair

torch.set_num_threads(1)

hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(scope="session")
def pair() -> Pair:
    """A native float64 target of 97 tokens, a related draft model, the target in transformers."""
    return tiny_pair()
