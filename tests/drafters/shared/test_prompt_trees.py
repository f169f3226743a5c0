"""Trees that share their nodes between candidates and prompt tokens."""

from __future__ import annotations

from foretoken.drafters.shared.prompt_trees import PromptTree, PromptTrees


def test_trees_share_their_nodes_out() -> None:
    """States draft as deep as they can; sure guesses ask for the next ones after the last; what
    never helps is left out."""
    trees = PromptTrees([[0.6, 0.2], [0.4, 0.2], [0.3]], 20)
    for nodes in (0, 1, 5, 20):
        for state in range(4):
            tree = trees.of(state, nodes)
            assert len(tree.paths) + sum(tree.prompts) <= nodes
            assert max(map(len, tree.paths), default=0) <= state
            assert max(tree.prompts) <= 3
    assert trees.of(0, 20) == PromptTree((), (3,))
    assert (trees.of(0, 1).prompts, trees.of(1, 1).paths) == ((1,), ((0,),))
    assert PromptTrees([[0.0], [0.0]], 9).of(0, 9) == PromptTree((), (0,))
    sure = PromptTrees([[1.0], [1.0], [1.0]], 20).of(3, 6)
    assert sure.paths == ((0,), (0, 0), (0, 0, 0)) and sure.prompts == (0, 0, 0, 3)
    assert sure.follow([0, 0, 1]) == (2, 2) and sure.follow([4]) == (0, 0)
