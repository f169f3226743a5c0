"""Branches get tokens in proportion to their confidence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foretoken.trees.paced import Paced, Two, paced


def table(slots: dict[int, tuple[float, float]]):  # type: ignore[no-untyped-def]
    """What is predicted at each slot; the tokens tell where they come from."""

    def ask(slot: int, tree: Paced) -> Two:
        assert slot == len(tree.tokens) == len(tree.parents) == len(tree.confidences)
        return Two((10 * slot + 1, 10 * slot + 2), slots.get(slot, (0.9, 0.05)))

    return ask


def test_a_sure_model_makes_a_chain() -> None:
    """The second-likeliest tokens are due next to nothing."""
    tree = paced(table(dict.fromkeys(range(6), (0.97, 0.01))), 6)
    assert tree.parents == [0, 1, 2, 3, 4, 5] and tree.tokens == [1, 11, 21, 31, 41, 51]
    assert abs(tree.confidences[2] - 0.97**3) < 1e-12


def test_an_unsure_place_makes_a_branch() -> None:
    """By hand, M = 4: at the root 0.5 and 0.4 are due 2.22 and 1.78 tokens; then 0.45 and 0.025 of
    the first have been added: due 2.06 - 1, 1.83 and 0.11."""
    tree = paced(table({0: (0.5, 0.4)}), 4)
    assert tree.tokens[:2] == [1, 2] and tree.parents[:2] == [0, 0]
    assert tree.confidences[:2] == [0.5, 0.4]
    assert tree.tokens[2:] == [11, 21] and tree.parents[2:] == [1, 2]


def test_the_threshold_ends_it() -> None:
    """After 0.6 and 0.36 nothing reaches 0.3; the first token comes in any case."""
    unsure = dict.fromkeys(range(9), (0.6, 0.1))
    assert paced(table(unsure), 9, 0.3).tokens == [1, 11]
    assert paced(table(unsure), 9, 0.99).tokens == [1]
    assert paced(table(unsure), 0).tokens == []


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=12), st.integers(1, 12))
def test_it_is_a_tree(shares: list[tuple[float, float]], most: int) -> None:
    """Whatever is predicted: a parent stands first, siblings differ, a node is no likelier than its
    parent."""
    tree = paced(table({slot: (max(two), min(two)) for slot, two in enumerate(shares)}), most)
    assert len(tree.tokens) == most
    assert len({*zip(tree.parents, tree.tokens, strict=True)}) == most
    for slot, (parent, confidence) in enumerate(
        zip(tree.parents, tree.confidences, strict=True), 1
    ):
        assert parent < slot and confidence <= (1.0, *tree.confidences)[parent]
