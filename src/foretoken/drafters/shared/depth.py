"""How deep a draft is, where the method's own tree, or its checkpoint, sets a limit."""

from __future__ import annotations

from foretoken.errors import ForetokenError, shown


def draft_depth(asked: int | None, most: int, what: str) -> int:
    """The levels to draft: as many as were asked for, or all that there are.

    what: has `most` levels, and how to get more, for the error.
    """
    if asked is None:
        return most
    if not 1 <= asked <= most:
        raise ForetokenError(
            f"num_speculative_tokens is {shown(asked)} and {what}; it must be 1 to {most}."
        )
    return asked
