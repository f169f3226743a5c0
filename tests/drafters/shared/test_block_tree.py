"""Trees of a block: what of the text they hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken.drafters.shared import block_tree
from foretoken.trees.best_first import Branches

TREE = Branches([5, 6, 7, 8], [0, 0, 1, 3], 0.0)


@pytest.mark.parametrize(
    ("text", "depth"),
    [([], 0), ([9], 0), ([6, 7], 1), ([5, 7], 2), ([5, 7, 8, 9], 3), ([5, 7, 8], 3), ([5, 8], 1)],
)
def test_how_far_a_path_follows_the_text(text: list[int], depth: int) -> None:
    """Tokens 5 and 6 after the root, 7 after 5, and 8 after that."""
    assert block_tree._depth(TREE, text) == depth


def test_another_records_text_is_not_followed() -> None:
    records, tokens = torch.tensor([[0, 0, 0, 1, 1]]), torch.tensor([[5, 6, 7, 8, 9]])
    lesson: Any = SimpleNamespace(records=records, tokens=tokens)
    assert block_tree._following(lesson, 0, 0, 4) == [6, 7]
    assert block_tree._following(lesson, 0, 1, 4) == [7]
