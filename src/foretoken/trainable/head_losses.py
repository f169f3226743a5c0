"""What drafters with heads on the target's last state share: trees, losses, estimates, states.

Head i, counted from 0, guesses the token i + 1 places after the root, from the state that the
root itself was read from: with the state at place t, the root stands at t + 1 and head i guesses
token t + 2 + i. Sources: static trees and the plan of a tree from each head's accuracies, Cai et
al. 2024 (Medusa) section 2.3.3 and appendix C.

Legend: B rows, T places, H heads, D width, V vocabulary, P tokens to predict, K ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, chunked, getting_there
from foretoken.trees.best_first import best_first
from foretoken.trees.grow import MEDUSA_63

Paths = tuple[tuple[int, ...], ...]
"""A tree as the rank paths of its nodes, parents first."""

Logits = Callable[[Tensor], Tensor]
"""Head states [..., H, D] -> logits [..., H, V]."""

_CHUNK = 128  # places whose logits of all heads stand at once


def heads_loss(
    lesson: Lesson, states: Tensor, logits: Logits, parameters: Seq[Tensor], objective: Objective
) -> Tensor:
    """The sum over heads of decay^i (times the dynamic weight) times head i's mean loss; states
    [B, T, H, D] at place t.

    The target's logits after a token are made once for all heads that guess it.
    """
    heads = torch.arange(states.shape[2], device=states.device)
    row, token = (lesson.weight > 0).nonzero(as_tuple=True)  # [P]
    place = token[:, None] - 2 - heads  # [P, H]
    inside = lesson.positions[row, token][:, None] >= 2 + heads
    seen = states[row[:, None], place.clamp(min=0), heads]  # [P, H, D]
    weight = lesson.weight[row, token]
    share = inside * weight[:, None] * objective.decay**heads / weight.sum().clamp(min=1e-9)
    if objective.dynamic:
        chances = _chances(lesson, states, logits, objective)
        there = getting_there(chances)[row[:, None], place.clamp(min=0), heads]
        share = share * there**objective.dynamic
    said = lesson.hidden[-1][row, (token - 1).clamp(min=0)] if objective.reads_target else None
    goal = lesson.tokens[row, token]

    def measure(at: slice, part: Tensor) -> Tensor:
        target = None if said is None else lesson.head(said[at])[:, None]
        loss = objective(logits(part), target, goal[at, None])
        return (loss * share[at]).sum()

    return chunked(measure, [seen], parameters, _CHUNK)


def guesses_loss(
    lesson: Lesson, states: Tensor, row: Tensor, token: Tensor, ahead: Tensor, objective: Objective
) -> Tensor:
    """The mean loss of states [P, D] that guess tokens [P] of rows [P] through the target's head,
    each weighted by its token and decay^ahead [P]."""
    share = lesson.weight[row, token] * objective.decay**ahead
    share = share / share.sum().clamp(min=1e-9)
    said = lesson.hidden[-1][row, token - 1] if objective.reads_target else None
    goal = lesson.tokens[row, token]

    def measure(at: slice, part: Tensor) -> Tensor:
        target = None if said is None else lesson.head(said[at])
        return (objective(lesson.head(part), target, goal[at]) * share[at]).sum()

    return chunked(measure, [states])


@torch.no_grad()
def _chances(lesson: Lesson, states: Tensor, logits: Logits, objective: Objective) -> Tensor:
    """[B, T, H] how likely head i of place t holds token t + 2 + i."""
    goal = torch.stack([lesson.tokens.roll(-2 - i, 1) for i in range(states.shape[2])], 2)
    flat, goals = states.flatten(0, 1), goal.flatten(0, 1)
    parts = [
        objective.chance(logits(flat[at : at + _CHUNK]), goals[at : at + _CHUNK])
        for at in range(0, len(flat), _CHUNK)
    ]
    return torch.cat(parts).view(goal.shape)


def heads_ranks(lesson: Lesson, states: Tensor, logits: Logits) -> Tensor:
    """[B, T, H] how many tokens head i held likelier than the token i + 1 after the root, for
    every root; V where there is no such token in the record."""
    batch, length, heads, _ = states.shape
    ranks = torch.full((batch, length, heads), 1 << 30, device=states.device)
    row, root = (lesson.room >= 0).nonzero(as_tuple=True)
    ahead = torch.arange(1, heads + 1, device=states.device)
    for at in range(0, len(row), _CHUNK):
        r, t = row[at : at + _CHUNK], root[at : at + _CHUNK]
        place = (t[:, None] + ahead).clamp(max=length - 1)
        said = logits(states[r, (t - 1).clamp(min=0)])  # [c, H, V]
        goal = lesson.tokens[r[:, None], place]
        better = (said > said.gather(-1, goal[..., None])).sum(-1)
        there = (t[:, None] + ahead < length) & (lesson.positions[r, t] > 0)[:, None]
        there = there & (lesson.records[r[:, None], place] == lesson.records[r, t][:, None])
        ranks[r, t] = torch.where(there, better, ranks[r, t])
    return ranks


def accepted(ranks: Tensor, room: Tensor, paths: Seq[Seq[int]]) -> Tensor:
    """[B, T, depth] bool: more than n places accepted, by the ranks [B, T, H] of the text's tokens
    and the tree's first `room` [B, T] nodes."""
    depth = max(map(len, paths), default=0)
    most = 1 + max((max(path) for path in paths), default=0)
    index: dict[int, dict[int, int]] = {level: {} for level in range(depth)}
    for place, path in enumerate(paths):
        index[len(path) - 1][_code(path, most)] = place
    alive = room > 0
    code = torch.zeros_like(room)
    found = []
    for level in range(depth):
        code = code * most + ranks[:, :, level].clamp(max=most - 1)
        codes = torch.tensor(sorted(index[level]), device=room.device)
        places = torch.tensor([index[level][c] for c in sorted(index[level])], device=room.device)
        at = torch.searchsorted(codes, code).clamp(max=len(codes) - 1)
        hit = (codes[at] == code) & (ranks[:, :, level] < most) & (places[at] < room)
        alive = alive & hit
        found.append(alive)
    return torch.stack(found, 2) if found else alive[..., None][..., :0]


def _code(path: Seq[int], base: int) -> int:
    """The path as one number."""
    code = 0
    for rank in path:
        code = code * base + rank
    return code


def rank_counts(ranks: Tensor, room: Tensor, most: int = 10) -> Tensor:
    """[H, most + 1] how often each head held the text's token for its likeliest, its second …, and
    last the number of roots."""
    at_roots = ranks[room >= 0]  # [R, H]
    counts = [(at_roots == rank).sum(0) for rank in range(most)]
    return torch.stack([*counts, torch.full_like(counts[0], len(at_roots))], 1).cpu()


def rates_of(counts: Tensor) -> list[list[float]]:
    """Shares [H][ranks] of counts [H, ranks + 1]."""
    found: list[list[float]] = (counts[:, :-1] / counts[:, -1:].clamp(min=1)).tolist()
    return [[round(share, 5) for share in head] for head in found]


def plan(rates: Seq[Seq[float]], nodes: int) -> Paths:
    """The `nodes` likeliest rank paths where rates[i][r] is how often head i's guess of rank r is
    right: a path's chance is taken to be the product."""

    def following(level: int) -> list[tuple[float, int, int]]:
        own = rates[level] if level < len(rates) else ()
        return [(rate, rank, level + 1) for rank, rate in enumerate(own) if rate > 0]

    best = best_first(0, following, nodes)
    paths: list[tuple[int, ...]] = [()]
    for rank, parent in zip(best.tokens, best.parents, strict=True):
        paths.append((*paths[parent], rank))
    return tuple(paths[1:])


def tree_of(tree: str | Seq[Seq[int]], nodes: int, rates: Seq[Seq[float]] | None) -> Paths:
    """The option `tree` of a drafter: "planned" (of `nodes` nodes, by the checkpoint's rates),
    "medusa" (the paper's 63 nodes), or rank paths."""
    if not isinstance(tree, str):
        return tuple(tuple(path) for path in tree)
    if tree == "medusa":
        return MEDUSA_63
    if tree != "planned":
        raise ForetokenError(
            f"tree is {tree!r}; it must be 'medusa', 'planned' or a list of rank paths such as "
            "[[0], [1], [0, 0]]."
        )
    if not rates:
        raise ForetokenError(
            "This checkpoint has no acceptance rates to plan a tree by; use tree 'medusa', or give "
            "rank paths."
        )
    return plan(rates, nodes)


def fitting(paths: Paths, depth: int, vocab_size: int) -> Paths:
    """The part of a tree that so many levels and so small a vocabulary can fill."""
    return tuple(p for p in paths if len(p) <= depth and max(p) < vocab_size)


@dataclass
class _Held:
    """The state that the first root was read from, and that of the present one."""

    prompt: Tensor
    last: Tensor


class States(Protocol):
    """Of each sequence the state [D] that heads read when they draft after its root."""

    def begin(self, sequence: Sequence) -> None: ...

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Keep up, after a step or a chunk of the prompt."""
        ...

    def fork(self, sequence: Sequence, copy: Sequence) -> None: ...

    def of(self, sequences: Seq[Sequence]) -> tuple[list[int], Tensor | None]:
        """The rows that have one, and their states [rows, D]."""
        ...

    def end(self, sequence: Sequence) -> None: ...


class LastStates:
    """Of each sequence the target's normed state [D] that its root was read from."""

    def begin(self, sequence: Sequence) -> None:
        pass

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Keep it, after a step or a chunk of the prompt."""
        if not steps:
            return
        states = steps[0].scores.hidden[-1]
        places = torch.tensor([(step.row, last_slot(step)) for step in steps], device=states.device)
        picked = states[places[:, 0], places[:, 1]]  # a copy: the pass itself may go
        for sequence, step, state in zip(sequences, steps, picked.unbind(0), strict=True):
            if step.read:
                sequence.state[self] = _Held(state, state)
            elif self in sequence.state:
                sequence.state[self].last = state
            else:  # a prompt of one token, which was never prefilled
                sequence.state[self] = _Held(state[:0], state)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """The copy starts after the prompt, however far the other is."""
        held = sequence.state.get(self)
        if held is not None and len(held.prompt):
            copy.state[self] = _Held(held.prompt, held.prompt)

    def of(self, sequences: Seq[Sequence]) -> tuple[list[int], Tensor | None]:
        """The rows that have one, and their states [rows, D]."""
        rows = [row for row, sequence in enumerate(sequences) if self in sequence.state]
        held = [sequences[row].state[self].last for row in rows]
        return rows, torch.stack(held) if held else None

    def end(self, sequence: Sequence) -> None:
        pass


def last_slot(step: Step) -> int:
    """The slot after which the last token was sampled; in prefill the last one read."""
    return step.read - 1 if step.read else step.path[-1] if step.path else 0
