"""Outcomes one after the other, and numbers that no two of them may share."""

from __future__ import annotations

import pytest
import torch

from foretoken.testing.enumeration import EnumeratedDraws, Script

COIN = torch.full((1, 1, 2), 0.5)
ZERO = torch.zeros(1, 1, dtype=torch.long)


def fresh() -> EnumeratedDraws:
    return EnumeratedDraws([Script([])])


def test_every_outcome_once() -> None:
    """Two coins and a certainty: four runs, whose probabilities add up to 1."""
    todo, found = [list[int]()], {}
    while todo:
        draws = EnumeratedDraws([script := Script(todo.pop())])
        tokens = [int(draws.draft(COIN[0], depth)) for depth in (0, 1)]
        tokens.append(int(draws.pick(torch.tensor([[[0.0, 2.0]]]), ZERO)))
        found[tuple(tokens)] = script.weight
        todo += script.others
    assert found == dict.fromkeys([(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)], 0.25)


def test_outcomes_needn_t_add_up_to_1() -> None:
    """Each counts by its share; what is nothing beside the others is none."""
    script = Script([])
    assert script.choose([1e-20, 0.0, 3e-20, 1e-40]) == 0
    assert script.others == [[2]] and script.weight == pytest.approx(0.25)


def test_two_draws_of_one_number_are_an_error() -> None:
    """Of one step, in one call or two; certain ones need none, and parts have their own."""
    draws = fresh()
    draws.draft(COIN[0], 0)
    draws.draft(COIN[0], 0, 1)
    draws.inner(0).draft(COIN[0], 0)
    draws.inner(1).draft(COIN[0], 0)
    draws.inner(1, [7]).draft(COIN[0], 0)
    draws.draft(torch.tensor([[0.0, 1.0]]), 0)
    for repeated in (draws, draws.take([0]), draws.inner(1), draws.inner(1, [7])):
        with pytest.raises(AssertionError, match="share their random number"):
            repeated.draft(COIN[0], 0)
    with pytest.raises(AssertionError, match="share their random number"):
        fresh().accept(torch.tensor([[0.5, 0.5]]), torch.tensor([[3, 3]]))


def test_a_place_has_one_token() -> None:
    """Slots of one depth may share its number, and a slot may be asked again; another
    distribution there would be another token."""
    draws, two = fresh(), torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    draws.pick(two, torch.zeros(1, 2, dtype=torch.long))
    draws.pick(two[:, 1:], ZERO)
    draws.pick(COIN, ZERO + 1)
    with pytest.raises(AssertionError, match="Two tokens of one step"):
        draws.pick(torch.tensor([[[0.1, 0.9]]]), ZERO)
