"""SafeAILab's EAGLE-1 and EAGLE-2."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreign import check_drafts_as_ours, check_refused, of_module
from foretoken.testing import Pair
from foretoken.trainable.eagle import EagleModule


@pytest.mark.parametrize("name", of_module(EagleModule))
def test_it_drafts_what_our_own_checkpoint_does(name: str, small: Pair, tmp_path: Path) -> None:
    """The same trees and acceptances, and the same tensors."""
    check_drafts_as_ours(name, small, tmp_path)


@pytest.mark.parametrize("name", ["hidden_size", "layers"])
def test_what_does_not_fit_is_refused(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence, with both values where there are two."""
    check_refused(name, small, tmp_path)
