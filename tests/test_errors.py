"""Errors: one sentence with a remedy."""

from __future__ import annotations

from foretoken.errors import ForetokenError, unknown


def test_the_nearest_name_is_offered() -> None:
    """A slip of the pen is answered with what was meant, and all choices follow in order."""
    error = unknown("method", "medsua", ["pld", "medusa", "sps"])
    assert isinstance(error, ForetokenError) and isinstance(error, ValueError)
    assert str(error) == (
        "Unknown method 'medsua'. Did you mean 'medusa'? Choose one of: medusa, pld, sps."
    )


def test_nothing_near() -> None:
    """A name that is like no other is not answered with a guess."""
    assert "Did you mean" not in str(unknown("method", "xyzzy", ["pld", "sps"]))
