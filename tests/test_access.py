"""Access: what a drafter declares, and that a target offers all that the protocol names."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from foretoken import ForetokenError
from foretoken.access import LEVELS, Access, Wants, check_levels
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair


def test_a_drafter_wants_the_least_by_default() -> None:
    """Logits for appended tokens and no states; what is wanted doesn't change afterwards."""
    wants = Wants()
    assert (wants.levels, wants.hidden) == ("a", ())
    with pytest.raises(FrozenInstanceError):
        wants.levels = "b"  # type: ignore[misc]


def test_a_native_target_offers_every_level_and_every_verb(pair: Pair) -> None:
    """Nothing that the protocol names is missing on the target that drafters are bound to."""
    target = ModelTarget(pair.target, 2, 64)
    assert target.levels == set(LEVELS)
    named = set(Access.__annotations__) | {
        name for name in vars(Access) if callable(getattr(Access, name)) and name[0] != "_"
    }
    assert {"embed", "kv", "vocab_size", "resume_point"} <= named
    assert not {name for name in named if not hasattr(target, name)}


def test_what_a_target_lacks_is_named() -> None:
    """Every missing level in words, with who wants it; nothing where all are there."""
    check_levels("Drafter X", "ab", frozenset("abc"))
    with pytest.raises(ForetokenError, match=r"^Drafter X needs \(e\) .*; \(f\) .* another method"):
        check_levels("Drafter X", "aef", frozenset("abc"))


def test_no_drafter_can_replace_the_scoring() -> None:
    """What a drafter is handed gives data; it has no way to put a function into a pass."""
    assert not {"score", "score_by", "whole", "run"} & set(vars(Access))
