"""Counting what became of drafts: shapes, tests, guesses held against the text, expected tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import product, zip_longest

import numpy as np
import pytest
import torch

from foretoken.control.priors import SIZES, Prior, prior_of
from foretoken.control.rates import (
    History,
    Levels,
    PendingDraft,
    Rates,
    Shape,
    _evidence,
    chain,
    expected,
    shapes_of,
)
from foretoken.tree import Kind, chains
from foretoken.trees.join import join


def counted(rates: Rates) -> list[int]:
    """Tested nodes by depth, whatever their evidence and rank."""
    return [round(sum(found)) for found in zip_longest(*rates.tested, fillvalue=0.0)]


TREE = Shape.of([0, 0, 1, 1, 2, 5])  # two under the root, two under the first, a tail


def test_shapes() -> None:
    """Depths and ranks from parents; a chain is one however it is given."""
    assert TREE.depths == (0, 0, 1, 1, 1, 2) and TREE.ranks == (0, 1, 0, 1, 0, 0)
    assert [TREE.levels(n) for n in range(7)] == [0, 1, 1, 2, 2, 2, 3]
    assert Shape.of([0, 1, 2]) == chain(3) and chain(3).is_chain and not TREE.is_chain
    assert [chain(3).levels(n) for n in (0, 2, 3)] == [0, 2, 3]
    assert not Shape.of([-1]).is_chain
    assert Shape.of([0] * 6).ranks == (0, 1, 2, 3, 3, 3)  # further ones count with the fourth


def test_auxiliary_nodes_cant_be_accepted() -> None:
    """Whether they are all of a tree or some of it."""
    tree = chains([[1, 2], [3]], torch.device("cpu"))
    assert shapes_of(tree) == [chain(2), chain(1)]
    told = replace(tree, kind=Kind.AUXILIARY)
    assert [shape.parents for shape in shapes_of(told)] == [(-1, -1), (-1,)]
    both = join((tree, told))
    assert [shape.parents for shape in shapes_of(both)] == [(0, 1, -1, -1), (0, -1)]


def test_what_a_pass_says() -> None:
    """The children of accepted nodes were tested, others weren't."""
    assert list(chain(4).tests([1, 2])) == [(0, 0, True), (1, 0, True), (2, 0, False)]
    assert list(chain(2).tests([1, 2])) == [(0, 0, True), (1, 0, True)]
    assert list(TREE.tests([2, 5])) == [(0, 0, False), (0, 1, True), (1, 0, True), (2, 0, False)]
    assert list(Shape.of([-1, 0, 1]).tests([2])) == [(0, 0, True)]  # the first can't be accepted


def test_a_guess_is_judged_as_the_text_comes() -> None:
    """Each node once, whether its tokens come one by one or several at a time."""
    for cuts in ([4, 5, 6, 7, 8], [6, 8], [8]):
        guess = PendingDraft([5, 6, 7, 9], chain(4), 3, 0)
        tests = []
        for end in cuts:
            tests += list(guess.tests([0, 0, 0, 5, 6, 7, 8, 9][:end]))
        assert tests == [(0, 0, True), (1, 0, True), (2, 0, True), (3, 0, False)]
        assert not guess.open and not guess.right


def test_a_guess_that_ended_right() -> None:
    """All of it came: nothing more to say, and it was right."""
    guess = PendingDraft([5, 6], chain(2), 0, 0)
    assert [hit for *_, hit in guess.tests([5])] == [True] and guess.open and guess.right
    assert [hit for *_, hit in guess.tests([5, 6, 7])] == [True]
    assert not guess.open and guess.right


def test_a_guess_that_is_a_tree() -> None:
    """It follows the text down its branches."""
    guess = PendingDraft([5, 6, 7, 8, 9, 4], TREE, 1, 0)
    assert list(guess.tests([0, 6])) == [(0, 0, False), (0, 1, True)]
    assert guess.open and guess.right
    assert list(guess.tests([0, 6, 9, 3])) == [(1, 0, True), (2, 0, False)]
    assert not guess.open and not guess.right


def test_a_new_guess_waits_for_the_old_one_unless_it_is_used() -> None:
    """So that deep places are judged where only one token comes at a time."""
    history, shared = History(), Rates()
    history.remember([1, 2, 3], chain(3), 0, False)
    history.compare(shared, [1])
    history.remember([8], chain(1), 1, False)
    history.compare(shared, [1, 2])
    assert counted(shared) == [1, 1] and history.last_right
    history.remember([9, 9], chain(2), 2, True)
    history.compare(shared, [1, 2, 3])
    assert not history.last_right and sum(map(sum, shared.tested)) == pytest.approx(3, abs=0.1)


def test_being_right_last_time_is_counted_apart() -> None:
    """What was right goes by other counts than what was wrong."""
    history, shared = History(), Rates()
    for _ in range(200):
        history.record_pass(shared, chain(1), 1, [])  # wrong: cold again
    cold = expected(chain(1), shared, history)[-1]
    history.last_right = True
    for _ in range(50):
        history.record_pass(shared, chain(1), 1, [1])
    assert cold < 0.05 and expected(chain(1), shared, history)[1] > 0.8


def test_a_chain_that_ended_early_was_as_good_as_refused_there() -> None:
    """A drafter that never draws more than two is not thought to draw three."""
    history, shared = History(), Rates()
    for _ in range(100):
        history.record_pass(shared, chain(2), 8, [1, 2])
        history.last_right = False
    found = expected(chain(8), shared, history)
    assert found[2] > 1.8 and found[-1] < found[2] + 0.1
    shared = Rates()
    history.record_pass(shared, Shape.of([0, 0]), 8, [1])  # a tree has as many as there are
    assert counted(shared) == [2]


def test_expected_tokens_of_a_chain_and_a_tree() -> None:
    """Sums of the products along the paths, by rank; what can't be accepted brings nothing."""
    shared, history = Rates(), History()
    at = 4 * 2 * len(SIZES)  # of computed drafts
    shared.tested[at : at + 2] = [[1e9] * 3, [1e9] * 3]
    shared.accepted[at : at + 2] = [[0.5e9, 0.4e9, 0.8e9], [0.25e9, 0.2e9, 0.0]]
    assert expected(chain(3), shared, history) == pytest.approx([0, 0.5, 0.7, 0.86])
    worth = [0.5, 0.25, 0.5 * 0.4, 0.5 * 0.2, 0.25 * 0.4, 0.25 * 0.4 * 0.8]
    assert expected(TREE, shared, history) == pytest.approx([0, *np.cumsum(worth)])
    assert expected(Shape.of([-1, 0, 2]), shared, history) == pytest.approx([0, 0, 0.5, 0.7])


def test_counts_fade_and_sequences_differ() -> None:
    """What changed is soon known; a sequence of its own kind is known as such sooner."""
    shared, one, other = Rates(), History(), History()
    for _ in range(300):
        one.record_pass(shared, chain(1), 1, [])
        other.record_pass(shared, chain(1), 1, [1])
        one.last_right = other.last_right = False
    low, high = (expected(chain(1), shared, history)[-1] for history in (one, other))
    assert (
        low < 0.35
        and high > 0.65
        and expected(chain(1), shared, History())[1] == pytest.approx(0.5, abs=0.05)
    )
    for _ in range(400):
        other.record_pass(shared, chain(1), 1, [])
    assert expected(chain(1), shared, other)[-1] < 0.1


def test_the_size_of_a_copy_tells_how_good_it_is() -> None:
    """Sizes are counted apart; what is believed at first is the method's, and gives way."""
    shared, history = Rates(prior=prior_of("suffix")), History()
    first = [expected(chain(n), shared, history, copied=True)[1] for n in (1, 2, 4, 8, 9)]
    assert first == sorted(first) and first[0] < 0.3 and first[-1] > 0.8
    for _ in range(60):
        history.remember([1], chain(1), 0, True)
        history.compare(shared, [1])
        history.last_right = False
    assert expected(chain(1), shared, history, copied=True)[1] > 0.8
    assert expected(chain(2), shared, history, copied=True)[1] == first[1]


def test_below_a_right_node_is_believed_more() -> None:
    """A copy that starts right goes on right, at least as often as the prior says."""
    shared = Rates(prior=Prior((0.3,) * 5, deeper=0.8))
    assert expected(chain(2), shared, History(), copied=True) == pytest.approx([0, 0.3, 0.54])


def test_what_is_believed_of_sampled_text() -> None:
    """Its own prior, where there is one; after a right draft some errors are left."""
    shared = Rates(prior=Prior((0.3,) * 5, 0.8, sampled=Prior((0.1,) * 5, 0.2, again=0.9)))
    alike = Rates(prior=Prior((0.3,) * 5, 0.8))
    believed = [
        expected(chain(2), rates, History(sampled, last_right=right), copied=True)
        for rates in (shared, alike)
        for sampled in (False, True)
        for right in (False, True)
    ]
    greedy = [pytest.approx([0, 0.3, 0.54]), pytest.approx([0, 0.65, 1.17])]
    assert believed[:2] == greedy and believed[4:] == 2 * greedy
    assert believed[2:4] == [pytest.approx([0, 0.1, 0.12]), pytest.approx([0, 0.19, 0.228])]


def test_forgetting_leaves_a_little() -> None:
    """Shares stay, their weight goes: it becomes worth a trial again."""
    shared, at = Rates(), 4 * 2 * len(SIZES)  # of computed drafts
    shared.note([(0, 0, i % 4 == 0) for i in range(400)], 2 * len(SIZES))
    share = shared.accepted[at][0] / shared.tested[at][0]
    hopes = [expected(chain(1), shared, History(), hope=1.5)[1]]
    for _ in range(60):
        shared.forget()
        hopes.append(expected(chain(1), shared, History(), hope=1.5)[1])
    assert shared.accepted[at][0] / shared.tested[at][0] == pytest.approx(share)
    assert 3 < shared.tested[at][0] < 4.1 and hopes == sorted(hopes)


def test_levels_of_drafts_that_end_early() -> None:
    """As long as asked for until it is known better; then what such drafts had, level by level."""
    levels = Levels()
    assert levels.expected(4) == [0, 1, 2, 3, 4]
    for _ in range(1000):
        levels.note(6, 2)
        levels.note(3, 3)
    found = levels.expected(8)
    assert found[:3] == pytest.approx([0, 1, 2], abs=0.01)
    assert found[3] == pytest.approx(2.5, abs=0.02)  # one of two drafts had its third level
    assert found[6] == pytest.approx(2.5, abs=0.05)  # no longer one had more
    assert found[8] == pytest.approx(found[6] + 2)  # nobody asked


def test_only_the_first_sibling_is_believed_more_after_a_right_draft() -> None:
    shared, right = Rates(prior=Prior((0.3,) * 5)), History(last_right=True)
    found = expected(Shape.of([0, 0]), shared, right, copied=True)
    assert found == pytest.approx([0, 0.65, 0.65 + 0.25 * 0.3])


def test_no_hope_is_above_certainty() -> None:
    assert expected(chain(2), Rates(), History(), hope=9.0) == [0, 1, 2]


def test_a_draft_of_nothing_was_not_right() -> None:
    history = History(last_right=True)
    history.record_pass(Rates(), chain(0), 4, [])
    assert not history.last_right


def test_what_is_hardly_ever_reached_is_left_out() -> None:
    shared = Rates(prior=Prior((0.2,) * 5, deeper=0.2))
    assert expected(chain(9), shared, History()) == pytest.approx([0, 0.2, 0.24])


def test_what_was_counted_after_errors_is_believed_after_right_drafts_too() -> None:
    """Until it is known better: a drafter that is always right is so then."""
    shared = Rates()
    shared.note([(0, 0, True)] * 200, 2 * len(SIZES))
    assert expected(chain(1), shared, History(last_right=True))[1] > 0.95


def test_one_short_draft_is_not_all_that_is_known() -> None:
    """Before it drafts were taken for whole, which counts as one of them."""
    levels = Levels()
    levels.note(4, 2)
    assert levels.expected(4) == pytest.approx([0, 1, 2, 2.5, 3], abs=0.01)


def test_every_kind_of_draft_has_counts_of_its_own() -> None:
    kinds = [*product((False, True), (None, *SIZES), (False, True))]
    found = {_evidence(right, nodes, sampled) for right, nodes, sampled in kinds}
    assert found == {*range(len(kinds))}
