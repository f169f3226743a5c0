"""Trees that share their nodes between candidates and prompt tokens."""

from __future__ import annotations

import pytest

from foretoken.drafters.shared.prompt_trees import PromptTree, PromptTrees


def test_trees_share_their_nodes_out() -> None:
    """States draft as deep as they can; sure guesses ask for the next ones after the last; what
    never helps is left out."""
    trees = PromptTrees([[0.6, 0.2], [0.4, 0.2], [0.3]], 20)
    for nodes in (0, 1, 5, 20):
        for state in range(4):
            tree = trees.of(state, nodes)
            assert sum(trees._ends(state, tree.paths)) == pytest.approx(1.0)
            assert len(tree.paths) + sum(tree.prompts) <= nodes
            assert max(map(len, tree.paths), default=0) <= state
            assert max(tree.prompts) <= 3
    assert trees.of(0, 20) == PromptTree((), (3,))
    assert (trees.of(0, 1).prompts, trees.of(1, 1).paths) == ((1,), ((0,),))
    assert PromptTrees([[0.0], [0.0]], 9).of(0, 9) == PromptTree((), (0,))
    sure = PromptTrees([[1.0], [1.0], [1.0]], 20).of(3, 6)
    assert sure.paths == ((0,), (0, 0), (0, 0, 0)) and sure.prompts == (0, 0, 0, 3)
    assert sure.follow([0, 0, 1]) == (2, 2) and sure.follow([4]) == (0, 0)


def test_planning_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large budgets share plans, each of which tries a bounded number of candidates: it is made
    within a step, and near a text's end each step has another budget."""
    tried: list[int] = []
    known = PromptTrees._trees

    def noted(self: PromptTrees, nodes: int, candidates: int) -> list[PromptTree]:
        tried.append(nodes)
        return known(self, nodes, candidates)

    monkeypatch.setattr(PromptTrees, "_trees", noted)
    trees = PromptTrees([[0.6, 0.2, 0.1], [0.4, 0.2], [0.3]], 300)
    found = [trees.of(3, nodes) for nodes in range(296, 301)]
    assert len(tried) <= 64 and set(tried) == {296}
    assert all(tree == found[0] for tree in found)
    tried.clear()
    for nodes in (40, 41, 42):
        tree = trees.of(3, nodes)
        assert len(tree.paths) + sum(tree.prompts) <= nodes
    assert [tried.count(nodes) for nodes in (40, 41, 42)] == [41, 42, 43]
