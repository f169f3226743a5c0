"""Licences in the bundled models' cards."""

from __future__ import annotations

from pathlib import Path

from foretoken import zoo


def test_every_card_names_its_licence_and_sources() -> None:
    """Each bundled model's card names its licence and every text that it was made from."""
    sources = (Path(__file__).parents[2] / "zoo" / "ATTRIBUTION.md").read_text("utf-8").strip()
    for name in zoo.names():
        card = (zoo.path(name) / "README.md").read_text("utf-8")
        assert "\nlicense: cc-by-sa-4.0\n" in card.split("---")[1], name
        assert "## Licence\n" in card and sources in card, name
