"""How deep drafts are."""

from __future__ import annotations

import pytest

from foretoken import ForetokenError
from foretoken.drafters.shared.depth import draft_depth


def test_as_deep_as_asked() -> None:
    """All levels, or fewer."""
    assert (draft_depth(None, 4, "-"), draft_depth(4, 4, "-"), draft_depth(1, 4, "-")) == (4, 4, 1)


@pytest.mark.parametrize("asked", [0, 5, -1])
def test_deeper_than_there_are_levels(asked: int) -> None:
    """Both numbers are named."""
    with pytest.raises(ForetokenError, match=f"is {asked} and the tree has 4 levels.*1 to 4"):
        draft_depth(asked, 4, "the tree has 4 levels")


def test_a_number_of_many_digits() -> None:
    """It is cut, not the sentence."""
    with pytest.raises(ForetokenError) as error:
        draft_depth(10**400, 3, "the tree has 3 levels")
    assert len(str(error.value)) < 200 and str(error.value).endswith("it must be 1 to 3.")
