"""A published checkpoint's tensors go into a module; the target's own must be the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreign import check_refused
from foretoken.testing import Pair


@pytest.mark.parametrize("name", ["embedding", "size of it", "head"])
def test_another_embedding_or_head_is_refused(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence says how far it is from the target's."""
    check_refused(name, small, tmp_path)
