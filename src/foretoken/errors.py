"""Errors that a user can act on: one sentence that names the thing and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ForetokenError(ValueError):
    """Bad input: the message is one sentence, fit to be shown without a stack trace."""


def unknown(kind: str, given: str, choices: Iterable[str]) -> ForetokenError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = sorted(set(choices))
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ForetokenError(f"Unknown {kind} {given!r}.{hint} Choose one of: {', '.join(known)}.")
