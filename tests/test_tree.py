"""Draft trees: what is derived from tokens and parents, against the slow obvious way."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.draws import GreedyDraws
from foretoken.protocols import Scores
from foretoken.tree import DraftTree, Kind, ResumePoint, chains, empty
from foretoken.trees.from_lists import from_paths
from foretoken.verify.target_only import TargetOnly

CPU = torch.device("cpu")


@st.composite
def rows(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """For each row of a batch its nodes, as (token, parent slot); parents stand before children."""
    batch = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 7))
        batch.append([(draw(st.integers(0, 3)), draw(st.integers(0, i))) for i in range(count)])
    return batch


def tree_of(batch: list[list[tuple[int, int]]], **options: object) -> DraftTree:
    width = max(map(len, batch))
    padded = [row + [(0, 0)] * (width - len(row)) for row in batch]
    both = torch.tensor(padded).reshape(len(batch), width, 2)
    return DraftTree(both[..., 0], [len(row) for row in batch], parents=both[..., 1], **options)  # type: ignore[arg-type]


def path_to(row: list[tuple[int, int]], slot: int) -> list[int]:
    """Slots from the first node to `slot`, by walking up."""
    path: list[int] = []
    while slot:
        path.append(slot)
        slot = row[slot - 1][1]
    return path[::-1]


@settings(max_examples=60, deadline=None)
@given(rows())
def test_mask_depths_and_contexts(batch: list[list[tuple[int, int]]]) -> None:
    """A slot sees itself, its ancestors and the root; depth and tokens are its path's."""
    tree = tree_of(batch)
    contexts = tree.contexts()
    for b, row in enumerate(batch):
        for slot in range(len(row) + 1):
            path = path_to(row, slot)
            assert tree.ancestors[b, slot].nonzero()[:, 0].tolist() == [0, *path]
            assert tree.depths[b, slot] == len(path)
            assert contexts[b][slot] == [row[s - 1][0] for s in path]
        assert tree.valid[b].tolist() == [True] * len(row) + [False] * (tree.nodes - len(row))


@settings(max_examples=60, deadline=None)
@given(rows(), st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_trim_keeps_a_prefix(batch: list[list[tuple[int, int]]], budgets: list[int]) -> None:
    """The first nodes of each row stay, everything else about them unchanged."""
    budgets = budgets[: len(batch)]
    kinds = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.int8)
    tree = tree_of(batch, kinds=kinds)
    cut = tree.trim(budgets)
    for b, row in enumerate(batch):
        kept = min(len(row), budgets[b])
        assert cut.counts[b] == kept
        assert cut.tokens[b, :kept].equal(tree.tokens[b, :kept])
        assert cut.ancestors[b, : kept + 1, : kept + 1].equal(
            tree.ancestors[b, : kept + 1, : kept + 1]
        )
    assert cut.nodes == cut.kinds.shape[1] == max([*cut.counts, 0])  # type: ignore[union-attr]


def test_trim_leaves_no_column_to_padding() -> None:
    """Taken from a wider batch, a short tree costs no more than its own nodes."""
    batch = chains([[1, 2, 3, 4, 5], [6]], torch.device("cpu"))
    assert batch.take([1]).trim([3]).tokens.tolist() == [[6]]
    assert batch.trim([5, 5]) is batch


def test_the_amateurs_logits_follow_the_slots() -> None:
    """Of the rows and nodes that stay; a root has some where nothing is drafted."""
    batch = chains([[1, 2, 3], [6]], CPU)
    batch.amateur_logits = logits = torch.randn(2, 4, 5)
    for found, expected in (
        (batch.take([1]), logits[1:]),
        (batch.trim([2, 1]), logits[:, :3]),
        (batch.take([1]).trim([3]), logits[1:, :2]),
        (batch.trim([0, 0]), logits[:, :1]),
    ):
        assert found.amateur_logits is not None and found.amateur_logits.equal(expected)
    assert batch.amateur_logits is logits


def test_states_to_resume_from_follow_the_slots() -> None:
    """Those of the root stay, too, where nothing is drafted."""
    batch = chains([[1, 2, 3], [6]], CPU)
    tokens, states = torch.arange(8).view(2, 4), torch.randn(2, 4, 5)
    batch.resume = ResumePoint(1, tokens, states, 0)
    for found, rows, slots in (
        (batch.take([1]), [1], 4),
        (batch.trim([2, 1]), [0, 1], 3),
        (batch.trim([0, 0]), [0, 1], 1),
    ):
        assert found.resume is not None
        assert found.resume.tokens.equal(tokens[rows, :slots])
        assert found.resume.states.equal(states[rows, :slots])


def test_chains_are_trees() -> None:
    """A chain's mask, depths and contexts are those of the tree that says its parents."""
    drafts = [[3, 1, 2], [], [0]]
    chain = chains(drafts, CPU)
    tree = DraftTree(chain.tokens, chain.counts, parents=torch.arange(3).expand(3, -1))
    assert chain.is_chain and not tree.is_chain
    assert chain.ancestors.equal(tree.ancestors) and chain.depths.equal(tree.depths)
    assert chain.contexts() == tree.contexts() and chain.parent_slots.equal(tree.parent_slots)
    assert chain.counts == [3, 0, 1]


def test_empty_trees() -> None:
    """Nothing drafted is a tree with a root alone."""
    for tree in (empty(2, CPU), chains([[], []], CPU), from_paths([[], []], CPU)):
        assert (tree.batch, tree.nodes, tree.counts) == (2, 0, [0, 0])
        assert tree.ancestors.shape == (2, 1, 1) and tree.valid.shape == (2, 0)
        assert tree.contexts() == [[[]], [[]]]
        assert tree.trim([3, 0]) is tree


def test_auxiliary_and_padding_are_not_valid() -> None:
    """Only nodes that may be accepted are valid."""
    kinds = torch.tensor([[Kind.CHOSEN, Kind.AUXILIARY, Kind.INDEPENDENT, Kind.PADDING]])
    tree = DraftTree(torch.zeros(1, 4, dtype=torch.long), [4], kinds=kinds.to(torch.int8))
    assert tree.valid.tolist() == [[True, False, True, False]]


@settings(max_examples=100, deadline=None)
@given(rows(), st.randoms(use_true_random=False), st.booleans())
def test_longest_matching_path(
    batch: list[list[tuple[int, int]]], random: object, aux: bool
) -> None:
    """Target-only sampling accepts the deepest path of samples, found here by trying every slot."""
    kinds = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.int8)
    if aux and kinds.numel():
        kinds[:, random.randrange(kinds.shape[1])] = Kind.AUXILIARY  # type: ignore[attr-defined]
    tree = tree_of(batch, kinds=kinds)
    table: dict[tuple[int, tuple[int, ...]], int] = {}  # what is said depends on the prefix alone
    said = torch.tensor(
        [
            [table.setdefault((b, tuple(path)), random.randrange(4)) for path in row]  # type: ignore[attr-defined]
            for b, row in enumerate(tree.contexts())
        ]
    )
    probs = torch.nn.functional.one_hot(said, 4).double()
    scores = Scores(probs * torch.nan, probs, probs[..., 0] > 1)
    path, lengths, token, _ = TargetOnly()(tree, scores, GreedyDraws())
    for b, row in enumerate(batch):
        kept = path[b, : lengths[b]].tolist()
        alive = [
            path_to(row, slot)
            for slot in range(len(row) + 1)
            if all(
                row[s - 1][0] == said[b, row[s - 1][1]] and kinds[b, s - 1] != Kind.AUXILIARY
                for s in path_to(row, slot)
            )
        ]
        assert kept in alive and len(kept) == max(map(len, alive))
        assert token[b] == said[b, kept[-1] if kept else 0]


def test_what_is_offered() -> None:
    """How many nodes may be accepted, and the deepest of them: no auxiliary ones, nor padding."""
    assert chains([[1, 2], [3]], CPU).offered == [(2, 2), (1, 1)]
    assert empty(1, CPU).offered == [(0, 0)]
    tokens = torch.zeros(1, 3, dtype=torch.long)
    assert DraftTree(tokens, [3], kind=Kind.AUXILIARY).offered == [(0, 0)]
    kinds = torch.tensor([[Kind.CHOSEN, Kind.AUXILIARY, Kind.AUXILIARY]]).to(torch.int8)
    assert DraftTree(tokens, [3], kinds=kinds).offered == [(1, 1)]
    parents = torch.tensor([[0, 0, 2]])
    assert DraftTree(tokens, [3], parents, kinds).offered == [(1, 1)]
    assert DraftTree(tokens, [3], parents).offered == [(3, 2)]
