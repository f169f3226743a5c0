"""Paths of draft trees: the path to a slot, and the longest path that agrees with a choice.

Legend: B sequences, N tree nodes, S = N + 1 slots, M places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree, Kind

Choose = Callable[[Tensor, Tensor], Tensor]
"""Distributions [B, M, V] after slots at depths [B, M] -> tokens [B, M]."""


def path_to(trees: DraftTree, last: Tensor) -> tuple[Tensor, Tensor]:
    """The slots [B, N] from below the root to slot `last` [B], and how many they are [B]."""
    nodes = trees.nodes
    below = torch.arange(nodes, device=last.device)
    if trees.is_chain:
        return (below + 1).expand(trees.batch, -1), last
    rows = torch.arange(trees.batch, device=last.device)
    on_path = trees.ancestors[rows, last]  # [B, S]
    # Slots are in an order with parents first, so the path's slots in rising order are the path.
    order = torch.where(on_path[:, 1:], below, nodes).sort(1).values
    return order.clamp(max=max(nodes - 1, 0)) + 1, trees.depths[rows, last]


def longest_match(trees: DraftTree, scores: Scores, choose: Choose) -> Verdict:
    """Accept the longest path whose tokens all equal the one that `choose` gives at their parent.

    Where the scores know that every distribution is a point mass, `choose` is not called. Siblings
    with the same token share their prefix, so all their branches are followed, and of equally deep
    nodes the first counts.
    """
    certain = scores.certain
    asked = trees.nodes > 0 or not trees.is_chain
    if asked and certain is not None and _on_host(certain):
        return (_followed_on_host if trees.is_chain else _matched_on_host)(trees, certain)
    if trees.is_chain:
        chosen = choose(scores.probs, trees.depths) if certain is None else certain
        if not asked:  # chosen is [B, S]
            return Verdict(chosen[:, :0], chosen.new_zeros(trees.batch), chosen[:, 0])
        agrees = (trees.tokens == chosen[:, : trees.nodes]) & trees.valid
        last = agrees.long().cumprod(1).sum(1)
        return Verdict(path_to(trees, last)[0], last, chosen.gather(1, last[:, None])[:, 0])
    return match_along(trees, scores, choose)


def match_along(trees: DraftTree, scores: Scores, choose: Choose) -> Verdict:
    """`longest_match`, of which `choose` is asked along the path only."""
    rows = torch.arange(trees.batch, device=trees.tokens.device)
    last = torch.zeros_like(rows)
    alive = last[:, None] == torch.arange(trees.nodes + 1, device=rows.device)  # [B, S]
    token = _chosen(trees, scores, choose, last)  # [B, 1]
    for _ in trees.widths:
        agrees = alive.gather(1, trees.parent_slots) & (trees.tokens == token) & trees.valid
        accepts = agrees.any(1)
        last = torch.where(accepts, agrees.long().argmax(1) + 1, last)
        alive = torch.cat([agrees.new_zeros(trees.batch, 1), agrees], 1)
        token = torch.where(accepts[:, None], _chosen(trees, scores, choose, last), token)
    path, lengths = path_to(trees, last)
    return Verdict(path, lengths, token[:, 0])


def _on_host(x: Tensor) -> bool:
    """Whether reading it as a list transfers nothing between devices."""
    return x.device.type == "cpu"


def _followed_on_host(trees: DraftTree, certain: Tensor) -> Verdict:
    """`longest_match` of chains by lists: a dozen operations on small tensors take microseconds
    each. certain [B, S]: the token after each slot."""
    found = []
    given = (x.tolist() for x in (trees.tokens, certain))
    for tokens, wanted, valid in zip(*given, _valid_on_host(trees), strict=True):
        length = 0
        while length < trees.nodes and valid[length] and tokens[length] == wanted[length]:
            length += 1
        found.append((length, wanted[length]))
    lengths, token = torch.tensor(found).unbind(1)
    return Verdict(trees.depths[:, 1:], lengths, token)


def _matched_on_host(trees: DraftTree, certain: Tensor) -> Verdict:
    """`longest_match` by lists, in a tenth of the time that a CPU takes for small tensors. certain
    [B, S]: the token after each slot."""
    nodes, found = trees.nodes, []
    given = (x.tolist() for x in (trees.tokens, trees.parent_slots, certain))
    for tokens, parents, wanted, valid in zip(*given, _valid_on_host(trees), strict=True):
        last, alive = 0, [0]
        while alive:
            last, token = alive[0], wanted[alive[0]]
            alive = [
                slot
                for slot in range(1, nodes + 1)
                if tokens[slot - 1] == token and parents[slot - 1] in alive and valid[slot - 1]
            ]
        path: list[int] = []
        slot = last
        while slot:
            path.insert(0, slot)
            slot = parents[slot - 1]
        found.append([*path, *([nodes] * (nodes - len(path))), len(path), wanted[last]])
    verdict = torch.tensor(found)
    return Verdict(verdict[:, :nodes], verdict[:, nodes], verdict[:, nodes + 1])


def _valid_on_host(trees: DraftTree) -> list[list[bool]]:
    """`DraftTree.valid` as lists."""
    if trees.kinds is None and trees.kind != Kind.AUXILIARY:
        return [[node < count for node in range(trees.nodes)] for count in trees.counts]
    valid: list[list[bool]] = trees.valid.tolist()
    return valid


def _chosen(trees: DraftTree, scores: Scores, choose: Choose, slots: Tensor) -> Tensor:
    """[B, 1] the token after one slot [B] of each tree."""
    if scores.certain is not None:
        return scores.certain.gather(1, slots[:, None])
    rows = torch.arange(trees.batch, device=slots.device)
    return choose(scores.probs[rows, slots][:, None], trees.depths[rows, slots][:, None])
