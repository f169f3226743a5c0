"""Passes: who sees whom, at which positions, and where keys and values are written."""

from __future__ import annotations

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import (
    block_feed,
    chain_feed,
    frontier_feed,
    rerun_feed,
    scratch_feed,
    token_feed,
    tree_feed,
)
from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")


def cache(*lengths: int) -> KVCache:
    made = KVCache(alike(1, 1, 1), len(lengths), 32, torch.float64, CPU)
    made.lengths[:] = lengths
    return made


def seen(feed: object, row: int) -> list[list[int]]:
    """The cells that each token of a row sees."""
    return [each.nonzero()[:, 0].tolist() for each in feed.visible()[row]]  # type: ignore[attr-defined]


def test_a_chain_sees_what_stands_before() -> None:
    """Ragged rows; logits are wanted at the last real token of each."""
    feed = chain_feed(cache(2, 0), [0, 1], [[7, 8, 9], [5]])
    assert seen(feed, 0) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen(feed, 1)[0] == [0]
    assert feed.positions.tolist() == [[2, 3, 4], [0, 1, 2]]
    assert feed.last == [2, 0] and feed.length == 5
    assert seen(token_feed(cache(2), [0], torch.tensor([7])), 0) == [[0, 1, 2]]


def test_a_node_sees_its_path() -> None:
    """Siblings don't see each other and have one position."""
    feed = tree_feed(cache(2), [0], [1], from_paths([[[5, 6], [5, 7]]], CPU))
    assert seen(feed, 0) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5]]
    assert feed.positions.tolist() == [[2, 3, 4, 4]]


def test_a_chunk_ends_where_its_positions_do() -> None:
    """Nodes are in the chunk of their position, wherever they stand."""
    feed = tree_feed(cache(2, 5), [0, 1], [1, 1], from_paths([[[5, 6], [5, 7]], [[5]]], CPU))
    mask = feed.chunked(torch.float64, 4)
    assert mask.shape == (2, 1, 4, feed.length) and feed.chunked(torch.float64, 4) is mask
    near = [[(row == 0).nonzero()[:, 0].tolist() for row in part[0]] for part in mask]
    assert near[0] == [[0, 1, 2], [0, 1, 2, 3], [4], [5]]  # positions 2, 3, 4, 4
    assert near[1][:2] == [[4, 5], [4, 5, 6]]  # positions 5, 6


def test_alternatives_see_the_draft_and_themselves() -> None:
    """After two tokens of a draft that is not committed: three tokens for one place."""
    feed = scratch_feed(cache(2), [0], torch.tensor([[7, 8, 9]]), 2)
    assert seen(feed, 0) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 3, 6]]
    assert feed.positions.tolist() == [[4, 4, 4]]


def test_a_rerun_is_blind_to_the_first_run() -> None:
    """The last two committed tokens again: after the text, at their old positions."""
    feed = rerun_feed(cache(5), [0], torch.tensor([[7, 8]]))
    assert seen(feed, 0) == [[0, 1, 2, 5], [0, 1, 2, 5, 6]]
    assert feed.positions.tolist() == [[3, 4]] and feed.starts == [5]
    assert feed.key_positions().tolist() == [[0, 1, 2, 3, 4, 3, 4]]


def test_a_block_sees_all_of_itself() -> None:
    """Every place of it sees every other, at positions that follow the root's."""
    feed = block_feed(cache(2), [0], torch.tensor([[7]]), 3)
    assert seen(feed, 0) == [[0, 1, 2, 3, 4]] * 3
    assert feed.positions.tolist() == [[2, 3, 4]] and feed.tokens.tolist() == [[7, 7, 7]]


def test_a_growing_tree_sees_its_earlier_levels() -> None:
    """Two nodes of the second level, each below another node of the first."""
    sees = torch.tensor([[[1, 1, 0, 1, 0], [1, 0, 1, 0, 1]]], dtype=torch.bool)
    feed = frontier_feed(cache(4), [0], torch.tensor([[8, 9]]), sees, [0, 1, 1, 2, 2])
    assert feed.starts == [6] and feed.positions.tolist() == [[5, 5]]
    assert seen(feed, 0) == [[0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 5, 7]]
    assert feed.key_positions().tolist() == [[0, 1, 2, 3, 4, 4, 5, 5]]


def test_a_window_counts_positions() -> None:
    """The last three positions, wherever their cells are."""
    feed = tree_feed(cache(4), [0], [1], from_paths([[[5], [6]]], CPU))
    assert [row.nonzero()[:, 0].tolist() for row in feed.visible(3)[0]] == [
        [2, 3, 4],
        [3, 4, 5],
        [3, 4, 6],
    ]
    assert feed.seen() is not None
    assert chain_feed(cache(4), [0], [[1]]).seen() is None


def test_all_positions_lie_below_the_reach() -> None:
    """Of chains, trees, drafts that go on, and what is run again; padding included."""
    held = cache(9, 4)
    held.positions = 100
    tree = from_paths([[[5, 6, 7], [5, 9], [3]], [[1, 2]]], CPU)
    sees = torch.ones(2, 2, 4, dtype=torch.bool)
    feeds = [
        chain_feed(held, [0, 1], [[7], [8, 9, 4, 4, 4]]),
        tree_feed(held, [0, 1], [1, 2], tree),
        token_feed(held, [0, 1], torch.tensor([7, 8])),
        frontier_feed(held, [0, 1], torch.tensor([[1, 2], [3, 4]]), sees, [0, 1, 2, 3]),
        block_feed(held, [0, 1], torch.tensor([[1], [2]]), 4),
        scratch_feed(held, [0, 1], torch.tensor([[1, 2], [3, 4]]), 5),
        rerun_feed(held, [0, 1], torch.tensor([[1, 2], [3, 4]])),
    ]
    for feed in feeds:
        assert int(feed.positions.max()) < feed.reach
    assert feeds[0].reach == 14


def test_padding_has_a_position_of_the_table() -> None:
    """Behind a row that is full but for its own token, where another has more."""
    held = cache(30, 2)
    held.positions = 32
    tree = from_paths([[], [[1, 2, 3]]], CPU)
    for feed in (
        chain_feed(held, [0, 1], [[7], [8, 9, 4, 4]]),
        tree_feed(held, [0, 1], [1, 2], tree),
    ):
        assert int(feed.positions.max()) < 32 and feed.positions[:, 0].tolist() == [30, 2]
        assert feed.length == feed.limit == 33  # with the cell that padding is written to


def test_what_a_pass_is_too_long_for() -> None:
    """32 cells, 30 of which are filled: what was run before in a draft counts, too."""
    held, three = cache(30), torch.tensor([[7, 8, 9]])
    sees = torch.ones(1, 2, 5, dtype=torch.bool)
    for feed in (
        lambda: scratch_feed(held, [0], three[:, :1], 2),
        lambda: frontier_feed(held, [0], three[:, :2], sees, [0, 1, 1, 2, 2]),
        lambda: rerun_feed(held, [0], three),
        lambda: block_feed(held, [0], three[:, :1], 3),
    ):
        with pytest.raises(ForetokenError, match="exceeds the cache"):
            feed()


@pytest.mark.parametrize("window", [1, 3])
def test_no_cell_that_is_seen_has_been_passed(window: int) -> None:
    """A growing tree's earlier levels stand between the text and its tokens, whose windows reach
    back over the positions and not over the cells."""
    sees = torch.tensor([[[1, 1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 1]]], dtype=torch.bool)
    held = KVCache(alike(1, 1, 1), 1, 200, torch.float64, CPU)
    for length in range(60, 72):
        held.lengths[:] = [length]
        tokens = torch.tensor([[8, 9]])
        feed = frontier_feed(held, [0], tokens, sees, [0, 1, 1, 1, 1, 2, 2])
        first = min(int(row.nonzero()[0]) for row in feed.visible(window)[0])
        assert feed.passed(feed.starts[0], window) <= first, length
