"""FasterDecoding's Medusa."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreign import check_drafts_as_ours, check_refused, of_module
from foretoken.drafters.medusa import MedusaHeads
from foretoken.testing import Pair


@pytest.mark.parametrize("name", of_module(MedusaHeads))
def test_it_drafts_what_our_own_checkpoint_does(name: str, small: Pair, tmp_path: Path) -> None:
    """The same trees and acceptances, and the same tensors."""
    check_drafts_as_ours(name, small, tmp_path)


@pytest.mark.parametrize("name", ["vocabulary"])
def test_what_does_not_fit_is_refused(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence, with both values where there are two."""
    check_refused(name, small, tmp_path)
