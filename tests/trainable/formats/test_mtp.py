"""Layers for multi-token prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreign import check_drafts_as_ours, of_module
from foretoken.drafters.mtp import MtpModule
from foretoken.testing import Pair


@pytest.mark.parametrize("name", of_module(MtpModule))
def test_it_drafts_what_our_own_checkpoint_does(name: str, small: Pair, tmp_path: Path) -> None:
    """The same trees and acceptances, and the same tensors."""
    check_drafts_as_ours(name, small, tmp_path)
