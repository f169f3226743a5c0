"""What is noted of a drafter's mistakes, and the lessons made of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from foretoken import ForetokenError
from foretoken.drafters.shared.mistakes import Buffer, Example, Recording, batches, lesson
from foretoken.protocols import Scores, Step
from foretoken.tree import DraftTree, chains
from foretoken.trees.from_lists import from_paths
from online_serving import CPU


def done(tree: DraftTree, path: list[int], states: Tensor, read: int = 0) -> Step:
    none = torch.empty(1, 0)
    scores = Scores(none, none, none, {-1: states[None]})
    tokens = [] if read else [0] * (len(path) + 1)
    return Step(tokens, path, tree.counts[0], 0, tree, scores, read=read)


def numbered(first: int, count: int) -> Tensor:
    """States that say at which place they stand."""
    return torch.arange(first, first + count, dtype=torch.float64)[:, None].expand(-1, 3)


def test_where_a_draft_was_wrong() -> None:
    """The first refused place of a chain and of a tree; what was accepted whole, or not drafted, is
    no mistake; states stand at their tokens."""
    recording, nothing = Recording(100), chains([[]], CPU)
    recording.add(done(nothing, [], numbered(0, 4), read=4))  # the root is token 4
    recording.add(done(chains([[7, 8, 9]], CPU), [1], numbered(4, 4)))  # 5 right, 6 wrong
    recording.add(done(chains([[7, 8]], CPU), [1, 2], numbered(6, 3)))  # 7 and 8 right, 9 beyond
    others = replace(done(chains([[7, 8]], CPU), [], numbered(9, 1)), drafted=0)
    recording.add(others)  # 10 another part's draft, or a prediction's
    tree = from_paths([[[1, 2], [3, 4]]], CPU)
    slots = [tree.tokens[0].tolist().index(3) + 1]
    states = torch.zeros(5, 3, dtype=torch.float64)
    states[[0, *slots]] = numbered(10, 2)
    recording.add(done(tree, slots, states))  # 11 right, 12 wrong
    assert recording.wrong == [6, 12]
    example = recording.example(list(range(100, 113)), 5)
    assert example is not None
    assert (list(example.wrong), example.first, len(example.tokens)) == ([6, 12], 0, 13)
    assert example.written == 5
    assert torch.equal(example.hidden[-1], numbered(0, 12))
    cut = recording.example(list(range(100, 112)), 5)  # the text ended before
    assert cut is not None and list(cut.wrong) == [6] and list(cut.tokens)[-1] == 106
    assert recording.example([1, 2, 3], 1) is None


def test_after_a_leaf_nothing_was_offered() -> None:
    """However deep other branches are."""
    tree, recording = from_paths([[[1, 2], [3]]], CPU), Recording(100)
    recording.add(done(tree, [3], numbered(0, 4)))
    assert recording.wrong == []
    recording.add(done(tree, [1], numbered(2, 4)))
    recording.add(done(tree, [], numbered(4, 4)))
    assert recording.wrong == [4, 5]


def test_a_window_of_a_long_text() -> None:
    """Old states go; places are still the text's."""
    recording = Recording(4)
    recording.add(done(chains([[]], CPU), [], numbered(0, 6), read=6))
    for place in range(6, 12):
        recording.add(done(chains([[1]], CPU), [], numbered(place, 2)))
    example = recording.example(list(range(50, 63)), 6)
    assert example is not None
    assert example.first >= 6 and list(example.tokens)[-1] == 62 and example.written == 1
    assert torch.equal(example.hidden[-1], numbered(example.first, 12 - example.first))
    assert [example.tokens[i] - 50 for i in example.wrong] == list(range(example.first + 1, 13))
    young, late = recording.copy(6), recording.copy(10)
    assert (young.read, young.wrong) == (6, [])
    assert late.read == 10 and late.example(list(range(11)), 6) is None


def test_a_long_chunk_of_a_prompt() -> None:
    """Of its states no more are kept than a window has, so of a text at most two windows."""
    recording, nothing = Recording(4), chains([[]], CPU)
    for first in (0, 50):
        recording.add(done(nothing, [], numbered(first, 50), read=50))
        assert sum(len(chunk[-1]) for chunk in recording._chunks) < 8
    recording.add(done(chains([[1]], CPU), [], numbered(100, 2)))
    example = recording.example(list(range(102)), 101)
    assert example is not None
    assert (example.first, list(example.tokens)) == (96, [96, 97, 98, 99, 100, 101])
    assert torch.equal(example.hidden[-1], numbered(96, 5)) and list(example.wrong) == [5]


def test_the_buffer_is_bounded() -> None:
    """By bytes; the oldest go, and a lesson has a row for each that is left, whose right tokens
    count less than its wrong ones and whose prompt counts nothing."""
    examples = [Example([1, 2, 3 + i], 5, 1, [2], {-1: numbered(i, 2)}) for i in range(4)]
    each = examples[0].bytes
    assert each == 8 * 2 * 3 + 8 * (3 + 1)  # states, tokens and mistakes
    buffer = Buffer(2 * each + 1)
    for example in examples:
        buffer.add(example)
    assert (len(buffer), buffer.bytes) == (2, 2 * each)
    taken = buffer.take()
    assert [example.tokens[2] for example in taken] == [5, 6]
    assert (len(buffer), buffer.bytes) == (0, 0)
    made = lesson(taken, torch.exp, torch.exp, torch.float64, right_weight=0.25)
    assert made.positions.tolist() == [[5, 6, 7]] * 2
    assert made.weight.tolist() == [[0, 0.25, 1]] * 2
    assert torch.equal(made.hidden[-1][1, :2], numbered(3, 2))


def test_batches_are_bounded() -> None:
    """By their tokens with padding; each example is in one of them, a longer one by itself."""
    lengths = [3, 9, 2, 3, 30, 4, 3]
    examples = [Example([0] * n, 0, 1, [1], {-1: numbered(0, n)}) for n in lengths]
    made = [[len(example.tokens) for example in few] for few in batches(examples, 12)]
    assert made == [[2, 3, 3, 3], [4], [9], [30]]
    assert list(batches([], 12)) == []


def test_a_place_without_a_distribution_is_no_mistake() -> None:
    """The target wrote nothing else there: it had failed."""
    recording = Recording(100)
    failed = done(chains([[7, 8]], CPU), [1], numbered(0, 3))
    recording.add(replace(failed, error=ForetokenError("NaN")))
    assert recording.wrong == [] and recording.read == 2


def test_a_rows_states_and_mistakes_are_its_own() -> None:
    """In a batch's tree and pass."""
    none, tree = torch.empty(2, 0), chains([[7], [7, 8]], CPU)
    states = torch.stack([numbered(50, 3), numbered(0, 3)])
    recording = Recording(100)
    recording.add(Step([0, 0], [1], 2, 1, tree, Scores(none, none, none, {-1: states})))
    assert recording.wrong == [2]
    assert torch.equal(recording._chunks[0][-1], numbered(0, 2))
