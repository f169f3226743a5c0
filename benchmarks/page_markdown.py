"""How the pages' tables are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NONE = "–"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table whose first `words` columns stand to the left and the others to the right."""
    rule = "|" + "---|" * words + "--:|" * (len(head) - words)
    lines = [re.sub(r"(?<=\|)  (?=\|)", " ", f"| {' | '.join(row)} |") for row in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def code(name: str) -> str:
    """A method's name as a cell; a bar in it would end the cell."""
    return f"`{name}`".replace("|", "\\|")


def ranged(value: float, interval: Sequence[float] | None) -> str:
    """A number and an interval, its own or that of a ratio that the page names."""
    if interval is None:
        return f"{value:.2f}"
    low, high = interval
    return f"{value:.2f} ({low:.2f}–{high:.2f})"


def tokens_a_second(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
