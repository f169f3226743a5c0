"""The exact distribution that an acceptance rule writes in one step, on tables of p and q.

`distributions.joint_distribution` runs the whole loop; this runs the rule alone, on drafts of one
shape for many pairs (p, q) at once, and follows every random outcome of the draft and of the rule.
Texts shorter than the longest are continued by p.

A context is the draft tokens so far, numbered like a heap: 0 is the empty one, and c · V + x + 1 is
context c followed by token x.

Legend: B scripts run at once, P pairs, C contexts, N nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verifier
from foretoken.testing.enumeration import EnumeratedDraws, Script
from foretoken.tree import DraftTree, Kind

_ROWS = 4096


@dataclass(frozen=True)
class Shape:
    """Drafts that differ in their tokens only: each node's parent slot and kind.

    Chosen siblings are the likeliest tokens of q, in order; drawn ones are drawn from it.
    """

    parents: tuple[int, ...]
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, kind: Kind, *parents: int) -> Shape:
        """All nodes of one kind."""
        return cls(parents, (kind,) * len(parents))

    @property
    def depth(self) -> int:
        """The longest path."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return max(depths)

    def earlier(self, node: int) -> list[int]:
        """The siblings before a node that a rule may accept."""
        return [
            other
            for other in range(node)
            if self.parents[other] == self.parents[node] and self.kinds[other] != Kind.AUXILIARY
        ]


class Written(NamedTuple):
    """distribution [P, V^T] of the first T = depth + 1 tokens; accepted [P] drafted tokens on
    average."""

    distribution: Tensor
    accepted: Tensor


def contexts(vocab: int, tokens: int) -> int:
    """How many contexts have at most `tokens` tokens."""
    return int(sum(vocab**n for n in range(tokens + 1)))


def rule_distribution(rule: Verifier, shape: Shape, target: Tensor, proposal: Tensor) -> Written:
    """What `rule` writes; target and proposal are [P, C, V] with C = contexts(V, depth)."""
    pairs, _, vocab = target.shape
    mass = target.new_zeros(pairs, contexts(vocab, shape.depth + 1))
    accepted = target.new_zeros(pairs)
    todo: list[tuple[int, list[int]]] = [(pair, []) for pair in range(pairs)]
    while todo:
        batch, todo = todo[-_ROWS:], todo[:-_ROWS]
        scripts = [Script(chosen) for _, chosen in batch]
        pair = torch.tensor([pair for pair, _ in batch])
        text, length = _written(rule, shape, target[pair], proposal[pair], EnumeratedDraws(scripts))
        weight = target.new_tensor([script.weight for script in scripts])
        mass.index_put_((pair, text), weight, accumulate=True)
        accepted.index_add_(0, pair, weight * length)
        for (own, _), script in zip(batch, scripts, strict=True):
            todo += [(own, other) for other in script.others]
    return Written(_completed(mass, target, shape.depth + 1), accepted)


def own_distribution(target: Tensor, tokens: int) -> Tensor:
    """[P, V^T] the distribution of T tokens by [P, C, V] tables alone."""
    mass = target.new_zeros(len(target), contexts(target.shape[-1], tokens))
    mass[:, 0] = 1
    return _completed(mass, target, tokens)


def _written(
    rule: Verifier, shape: Shape, target: Tensor, proposal: Tensor, draws: Draws
) -> tuple[Tensor, Tensor]:
    """One step of [B, C, V] tables: the context [B] of the text, the accepted tokens [B]."""
    trees, place = draft(shape, proposal, draws)
    rows = torch.arange(len(place))
    probs = target[rows[:, None], place]
    blind = torch.full_like(probs, torch.nan)
    path, lengths, token, _ = rule(trees, Scores(blind, probs, probs[..., 0] < 0), draws)
    slots = torch.cat([path.new_zeros(len(path), 1), path], 1)
    return place[rows, slots[rows, lengths]] * probs.shape[-1] + token + 1, lengths


def draft(shape: Shape, proposal: Tensor, draws: Draws) -> tuple[DraftTree, Tensor]:
    """The trees drafted from [B, C, V] tables, and the context [B, S] of each slot."""
    rows, vocab = torch.arange(len(proposal)), proposal.shape[-1]
    place = [torch.zeros_like(rows)]
    tokens: list[Tensor] = []
    for node, (parent, kind) in enumerate(zip(shape.parents, shape.kinds, strict=True)):
        distribution = proposal[rows, place[parent]]
        tokens.append(
            _token(distribution, kind, [tokens[i] for i in shape.earlier(node)], draws, node)
        )
        place.append(place[parent] * vocab + tokens[-1] + 1)
    slots = torch.stack(place, 1)
    count, parents = len(tokens), torch.tensor(shape.parents).expand(len(rows), -1).long()
    chain = shape.parents == tuple(range(count))
    one = len(set(shape.kinds)) == 1
    trees = DraftTree(
        torch.stack(tokens, 1) if tokens else parents,
        [count] * len(rows),
        parents=None if chain else parents,
        kinds=None if one else torch.tensor(shape.kinds, dtype=torch.int8).expand(len(rows), -1),
        kind=shape.kinds[0] if one else Kind.CHOSEN,
        proposals=proposal[rows[:, None], slots],
        rows=parents,
    )
    return trees, slots


def _token(
    distribution: Tensor, kind: Kind, earlier: Seq[Tensor], draws: Draws, node: int
) -> Tensor:
    """[B] one node's token, given its siblings'; any token where the distribution has nothing
    left."""
    if kind == Kind.CHOSEN:
        likely = distribution.sort(dim=-1, descending=True, stable=True).indices
        return likely[:, len(earlier) % distribution.shape[-1]]
    if kind == Kind.AUXILIARY:
        return distribution.argmax(-1)
    if kind == Kind.WITHOUT_REPLACEMENT and earlier:
        distribution = distribution.scatter(1, torch.stack(list(earlier), 1), 0.0)
        distribution = torch.where(distribution.sum(-1, keepdim=True) > 0, distribution, 1.0)
        distribution = distribution / distribution.sum(-1, keepdim=True)
    return draws.draft(distribution, 0, node)


def _completed(mass: Tensor, target: Tensor, tokens: int) -> Tensor:
    """Distribute the mass [P, …] of every shorter context over its texts of `tokens` tokens."""
    vocab = target.shape[-1]
    for place in range(contexts(vocab, tokens - 1)):
        below = slice(place * vocab + 1, place * vocab + vocab + 1)
        mass[:, below] += mass[:, place, None] * target[:, place]
    return mass[:, contexts(vocab, tokens - 1) :]
