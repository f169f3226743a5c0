"""The type of a `speculative_config` has the keys that `config.py` takes, and their types."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from inspect import signature
from typing import Any, get_type_hints

import pytest

import foretoken
from foretoken import LLM, METHODS, SpeculativeConfig, assisted
from foretoken.errors.values import typed
from foretoken.registry import FIELDS, OPTION_ALIASES, drafter_class, drafter_names, target_class
from foretoken.speculative_config import AnyConfig, OtherNames

BUILT = {"names", "lenient", "costs"}  # which `build` fills in
OWN = {"method", "verifier", "tuned"}


def classes() -> list[type[Any]]:
    """Every class that takes a method's options."""
    wrappers = [target_class(row.target) for row in METHODS.values() if row.target]
    return [*map(drafter_class, drafter_names()), *wrappers]


def options() -> set[str]:
    return {f.name for cls in classes() if is_dataclass(cls) for f in fields(cls) if f.init}


def test_the_keys_are_those_that_are_taken() -> None:
    """Every option of every class, what `build` reads itself, and the names of other libraries."""
    others = (set(OPTION_ALIASES) | set(FIELDS)) - options()
    assert set(OtherNames.__annotations__) == others
    assert set(SpeculativeConfig.__annotations__) == (options() - BUILT) | OWN | others


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_the_types_take_every_default(cls: type[Any]) -> None:
    """What a class does without an option may be written out."""
    hints = get_type_hints(SpeculativeConfig)
    for field in fields(cls) if is_dataclass(cls) else ():
        if field.default is not MISSING and field.name not in BUILT:
            typed(field.name, field.default, hints[field.name])


def test_aliases_have_the_types_of_what_they_name() -> None:
    """`num_assistant_tokens` is a number where `num_speculative_tokens` is one."""
    hints = get_type_hints(SpeculativeConfig)
    for alias, name in OPTION_ALIASES.items():
        assert hints[name] in (hints[alias], hints[alias] | None), alias


def test_it_is_what_is_declared() -> None:
    """By both front doors."""
    assert foretoken.SpeculativeConfig is SpeculativeConfig
    for front in (LLM.__init__, assisted):
        declared = signature(front, eval_str=False).parameters["speculative_config"].annotation
        assert declared == "AnyConfig | None"
    assert SpeculativeConfig in AnyConfig.__args__
