"""Paths of draft trees: the way to a slot, and the longest match among equal siblings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.protocols import Scores
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.paths import longest_match, path_to

# slots 1 and 2 hang below the root, 3 below 1, 4 below 2, 5 below 4
PARENTS = torch.tensor([[0, 0, 1, 2, 4]])


def scored(slots: int) -> Scores:
    """Uniform distributions over 9 tokens."""
    probs = torch.full((1, slots, 9), 1 / 9)
    return Scores(probs.log(), probs, torch.zeros(1, slots, dtype=torch.bool))


def test_path_to_every_slot() -> None:
    """From below the root to the slot itself; the root has an empty path."""
    trees = DraftTree(torch.zeros(1, 5, dtype=torch.long), [5], PARENTS)
    expected: list[list[int]] = [[], [1], [2], [1, 3], [2, 4], [2, 4, 5]]
    for slot, slots in enumerate(expected):
        path, lengths = path_to(trees, torch.tensor([slot]))
        assert path[0, : lengths[0]].tolist() == slots
    chain = DraftTree(torch.zeros(1, 3, dtype=torch.long), [3])
    path, lengths = path_to(chain, torch.tensor([2]))
    assert path[0, : lengths[0]].tolist() == [1, 2]


def test_equal_siblings_are_followed_together() -> None:
    """Two siblings hold the token 5; only the second one's branch goes on as the text does."""
    trees = DraftTree(torch.tensor([[5, 5, 6, 7, 8]]), [5], PARENTS)
    text = torch.tensor([5, 7, 8, 3])

    def choose(distributions: Tensor, depths: Tensor) -> Tensor:
        return text[depths]

    path, lengths, token, _ = longest_match(trees, scored(6), choose)
    assert path[0, : lengths[0]].tolist() == [2, 4, 5] and token.tolist() == [3]


def test_point_masses_are_not_asked() -> None:
    """Where every distribution is known to be a point mass, `choose` is not called."""

    class Certain(Scores):
        @property
        def certain(self) -> Tensor:
            return torch.tensor([[5, 6, 1, 1, 1, 1]])

    def choose(distributions: Tensor, depths: Tensor) -> Tensor:
        raise AssertionError("called")

    plain = scored(6)
    certain = Certain(plain.logits, plain.distribution, plain.bad)
    trees = DraftTree(torch.tensor([[5, 5, 6, 7, 8]]), [5], PARENTS)
    path, lengths, token, _ = longest_match(trees, certain, choose)
    assert path[0, : lengths[0]].tolist() == [1, 3] and token.tolist() == [1]


@pytest.mark.parametrize("kind", [Kind.CHOSEN, Kind.INDEPENDENT, Kind.AUXILIARY, None])
@pytest.mark.parametrize("parents", [None, [0, 0, 1, 2]])
def test_lists_say_what_tensors_do(kind: Kind | None, parents: list[int] | None) -> None:
    """Of chains and trees, of as many nodes as a row has, no auxiliary one among those accepted.
    None: some nodes are."""
    torch.manual_seed(0)

    class Certain(Scores):
        @property
        def certain(self) -> Tensor:
            return chosen

    def choose(distributions: Tensor, depths: Tensor) -> Tensor:
        """By tensors: the distributions say at which slots."""
        return distributions.argmax(-1)

    for _ in range(50):
        counts, chosen = torch.randint(0, 5, (3,)).tolist(), torch.randint(0, 2, (3, 5))
        kinds = torch.randint(0, 2, (3, 4), dtype=torch.int8) * Kind.AUXILIARY
        trees = DraftTree(
            torch.randint(0, 2, (3, 4)),
            counts,
            parents=None if parents is None else torch.tensor([parents] * 3),
            kinds=kinds if kind is None else None,
            kind=kind or Kind.CHOSEN,
        )
        probs = F.one_hot(chosen, 2).double()
        given = probs.log(), probs, torch.zeros(3, 5, dtype=torch.bool)
        wanted = longest_match(trees, Scores(*given), choose)
        got = longest_match(trees, Certain(*given), choose)
        assert got.lengths.tolist() == wanted.lengths.tolist()
        assert got.token.tolist() == wanted.token.tolist()
        for mine, other, length in zip(got.path, wanted.path, got.lengths, strict=True):
            assert mine[:length].tolist() == other[:length].tolist()
