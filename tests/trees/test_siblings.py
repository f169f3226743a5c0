"""Chains with siblings: parents, the end of the chain, and the limit."""

from __future__ import annotations

from foretoken.trees.siblings import SiblingChain


def test_siblings_hang_on_the_chain() -> None:
    """A place's tokens are children of the chain's last token, the first of the place before."""
    chain = SiblingChain(6)
    chain.grow([7, 8])
    chain.grow([9, 1, 2])
    assert (chain.tokens, chain.parents) == ([7, 8, 9, 1, 2], [0, 0, 1, 1, 1])
    chain.grow([3, 4])
    assert (chain.tokens[5:], chain.parents[5:], chain.open) == ([3], [3], False)


def test_no_room() -> None:
    """A limit of 0 takes nothing."""
    chain = SiblingChain(0)
    assert not chain.open
