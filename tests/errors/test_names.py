"""Names of other libraries: each is answered with what to do here."""

from __future__ import annotations

import dataclasses

import pytest

from foretoken import ForetokenError, SamplingParams
from foretoken.errors.names import REMEDIES

FOREIGN = [name for names in REMEDIES for name in names.split()]
KNOWN = {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_of_another_library(name: str) -> None:
    """It is refused, with the remedy, whatever its value: nothing is accepted and then ignored."""
    for value in (None, False, 1):
        with pytest.raises(ForetokenError, match=f"^SamplingParams has no {name}: .*\\.$"):
            SamplingParams(**{name: value})


def test_the_table_is_about_names_that_we_lack() -> None:
    """A parameter that is built leaves the table, and a remedy names what exists."""
    assert not KNOWN & {*FOREIGN} and len(FOREIGN) == len({*FOREIGN})
    for remedy in REMEDIES.values():
        used = {word.strip(",;") for word in remedy.split() if "_" in word}
        assert used <= KNOWN | {"cumulative_logprob", "token_ids"}


def test_unknown_and_nameless() -> None:
    """A slip is answered with the nearest name, a bare value with how to write it."""
    with pytest.raises(ForetokenError, match=r"sampling parameter 'max_token'.*'max_tokens'"):
        SamplingParams(max_token=3)  # type: ignore[call-arg]
    with pytest.raises(ForetokenError, match=r"^Unknown sampling parameter 'length'"):
        SamplingParams(length=3)  # type: ignore[call-arg]
    with pytest.raises(ForetokenError, match=r"takes names only, and got 0\.5; write name=value"):
        SamplingParams(0.5)  # type: ignore[call-arg]
