"""Trained drafters become bundled models."""

from __future__ import annotations


def test_bundling_puts_the_licence_in_place_of_the_note() -> None:
    """What `foretoken train` writes in a card on licences gives way to the bundled models' own."""
    import bundle

    from foretoken.train.card import licence_lines

    written = ["# x", "", *licence_lines("mini"), "", "## Recipe", "", "    steps: 1", ""]
    card = bundle.bundled_card("\n".join(written), "mini-x", "mini")
    assert card.count("## Licence\n") == 1 and "before it is shared" not in card
    assert "## Recipe\n\n    steps: 1\n" in card and "CC BY-SA" in card
