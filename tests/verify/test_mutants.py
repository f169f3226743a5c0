"""Tests of the tests, for rules: what rules and their drafters are prone to must be noticed.

As in `test_mutants.py`: each mistake moves the distribution of the first tokens by more than 1e-3,
shown by enumeration, and the distribution's own check fails for it. The same check passes without
the mistake."""

from __future__ import annotations

from functools import cache

import pytest

from foretoken import SamplingParams
from foretoken.protocols import Drafter, Verifier
from foretoken.testing import Drawn, Pair, check_distribution
from foretoken.tree import Kind
from rule_mutants import MUTANTS, pair


def distribution_holds(
    rule: Verifier, drafter: type[Drawn], branches: tuple[int, ...], kind: Kind
) -> None:
    """The distribution of one step's tokens is the target's own."""

    def make(models: Pair) -> Drafter:
        made = drafter(models.draft, branches, kind)
        made.kinds = frozenset(Kind) - {Kind.PADDING}
        return made

    check_distribution(
        make,
        rule,
        pair(),
        SamplingParams(),
        len(branches) + 1,
        rows=256,
        steps=1,
        budget=sum(branches) + branches[0] * (len(branches) - 1),
    )


@cache
def is_sound(rule: Verifier, branches: tuple[int, ...], kind: Kind) -> bool:
    """Whether nothing is wrong as the code stands."""
    distribution_holds(rule, Drawn, branches, kind)
    return True


@pytest.mark.parametrize("name", MUTANTS)
def test_rule_mutants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution is the target's as the code stands, and off by more than 1e-3 with the
    mistake."""
    mutant = MUTANTS[name]
    assert is_sound(mutant.rule, mutant.branches, mutant.kind)
    mutant.patch(monkeypatch)
    rule = mutant.wrong_rule or mutant.rule
    with pytest.raises(AssertionError, match="is off by") as caught:
        distribution_holds(rule, mutant.wrong, mutant.branches, mutant.kind)
    assert float(str(caught.value).split("off by ")[1].split()[0]) > 1e-3
