"""Losses of heads that predict tokens ahead, and what they make of the text's tokens: their ranks,
and the chances that drawn ones are accepted.

Head i, counted from 0, predicts the token i + 1 places after the root, from the state that the
root itself was read from: with the state at place t, the root is at t + 1 and head i predicts
token t + 2 + i. Source: Cai et al. 2024 (Medusa), section 2.2.

Legend: B rows, T places, H heads, D width, V vocabulary, P tokens to predict.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor, nn

from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import (
    Objective,
    chance_to_reach,
    chunked,
    drawn_chance,
    sibling_chances,
)

Logits = Callable[[Tensor], Tensor]
"""Head states [..., H, D] -> logits [..., H, V]."""

_CHUNK = 128  # places whose logits of all heads exist at once


def heads_loss(
    lesson: Lesson, states: Tensor, logits: Logits, parameters: Seq[Tensor], objective: Objective
) -> Tensor:
    """The sum over heads of decay^i (times the dynamic weight) times head i's mean loss; states
    [B, T, H, D] at place t.

    The target's logits after a token are computed once for all heads that predict it.
    """
    heads = torch.arange(states.shape[2], device=states.device)
    row, token = (lesson.weight > 0).nonzero(as_tuple=True)  # [P]
    place = token[:, None] - 2 - heads  # [P, H]
    # A row may begin within its text, and a text within its row.
    inside = (place >= 0) & (lesson.positions[row, token][:, None] >= 2 + heads)
    head_states = states[row[:, None], place.clamp(min=0), heads]  # [P, H, D]
    weight = lesson.weight[row, token]
    share = inside * weight[:, None] * objective.decay**heads / weight.sum().clamp(min=1e-9)
    if objective.dynamic:
        chances = _chances(lesson, states, logits, objective)
        reach = chance_to_reach(chances)[row[:, None], place.clamp(min=0), heads]
        share = share * reach**objective.dynamic
    target_states = (
        lesson.hidden[-1][row, (token - 1).clamp(min=0)] if objective.reads_target else None
    )
    goal = lesson.tokens[row, token]

    def measure(at: slice, part: Tensor) -> Tensor:
        target = None  # what is learned from learns nothing by it
        if target_states is not None:
            target = lesson.head(target_states[at]).detach()[:, None]
        loss = objective(logits(part), target, goal[at, None])
        return (loss * share[at]).sum()

    at_once = lesson.places_at_once(_CHUNK, 1 + len(heads))
    return chunked(measure, [head_states], parameters, at_once)


More = tuple[Callable[[slice, Tensor, Tensor], Tensor], Seq[Tensor]]
"""(some predictions, their states [P, D] and logits [P, V]) -> what their losses are more [P], and
the trained tensors that it uses."""


def predictions_loss(
    lesson: Lesson,
    states: Tensor,
    row: Tensor,
    token: Tensor,
    ahead: Tensor,
    objective: Objective,
    *,
    own: nn.Linear | None = None,
    more: More | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean loss of states [P, D] that predict tokens [P] of rows [P], each weighted by its
    token and decay^ahead [P], and the sum of these weights. own: a head in place of the
    target's."""
    share = lesson.weight[row, token] * objective.decay**ahead
    total = share.sum()
    share = share / total.clamp(min=1e-9)
    target_states = lesson.hidden[-1][row, token - 1] if objective.reads_target else None
    goal, head = lesson.tokens[row, token], own or lesson.head
    parameters = [*(own.parameters() if own else ()), *(more[1] if more else ())]

    def measure(at: slice, part: Tensor) -> Tensor:
        target = None if target_states is None else lesson.head(target_states[at])
        logits = head(part)
        loss = objective(logits, target, goal[at])
        if more is not None:
            loss = loss + more[0](at, part, logits)
        return (loss * share[at]).sum()

    return chunked(measure, [states], parameters, lesson.places_at_once(2 * _CHUNK, 2)), total


@torch.no_grad()
def _chances(lesson: Lesson, states: Tensor, logits: Logits, objective: Objective) -> Tensor:
    """[B, T, H] the probability that head i of place t gives token t + 2 + i."""
    goal = torch.stack([lesson.tokens.roll(-2 - i, 1) for i in range(states.shape[2])], 2)
    flat, goals = states.flatten(0, 1), goal.flatten(0, 1)
    chunk = lesson.places_at_once(_CHUNK, states.shape[2])
    parts = [
        objective.probability(logits(flat[at : at + chunk]), goals[at : at + chunk])
        for at in range(0, len(flat), chunk)
    ]
    # Torch 2.9 would reuse the weights that autocast has rounded here, which carry no gradients.
    torch.clear_autocast_cache()
    return torch.cat(parts).view(goal.shape)


Scores = Callable[[Tensor, Tensor], Tensor]
"""Head states [P, H, D], after the tokens [P, H] before the predicted ones -> logits [P, H, V]."""

Measure = Callable[[Tensor, Tensor, Callable[[], Tensor]], Tensor]
"""A draft's logits [P, H, V], the text's tokens [P, H], and a function that computes the target's
logits there [P, H, V] -> [P, H], or more of each head."""


NO_RANK = 2**30
"""In place of a rank where there is no token."""


def rank(scores: Tensor, goal: Tensor, target: Callable[[], Tensor]) -> Tensor:
    """[...] how many tokens have larger logits than the text's; scores: [..., V], goal: [...].
    A `Measure` that needs no target."""
    return (scores > scores.gather(-1, goal[..., None])).sum(-1)


def ranks_at_roots(lesson: Lesson, states: Tensor, logits: Scores) -> Tensor:
    """[B, T, H] for every root and head i: the rank of the text's token i + 1 places after the
    root, that is, how many tokens have larger logits; `NO_RANK` where the record has no such token.
    states: [B, T, H, D]."""
    none = torch.full(states.shape[:3], NO_RANK, device=states.device)
    return _at_roots(lesson, states, logits, rank, none)


def chances_at_roots(lesson: Lesson, states: Tensor, logits: Scores) -> Tensor:
    """[B, T, H] for every root and head i: the chance that the token which is drawn i + 1 places
    after the root, at the lesson's temperature, is accepted and is the text's. 0 where the record
    has no such token. states: [B, T, H, D]."""

    def chance(scores: Tensor, goal: Tensor, target: Callable[[], Tensor]) -> Tensor:
        return drawn_chance(scores, target(), goal, lesson.temperature)

    return _at_roots(lesson, states, logits, chance, states.new_zeros(states.shape[:3]))


def sibling_chances_at_roots(lesson: Lesson, states: Tensor, logits: Scores, count: int) -> Tensor:
    """[B, T, H, count] the same of each of `count` siblings that are drawn there without
    replacement, right on average. The same lesson has the same numbers."""
    random = torch.Generator(states.device).manual_seed(0)

    def chances(scores: Tensor, goal: Tensor, target: Callable[[], Tensor]) -> Tensor:
        heads = zip(scores.unbind(1), target().unbind(1), goal.unbind(1), strict=True)
        each = [sibling_chances(*head, lesson.temperature, count, random) for head in heads]
        return torch.stack(each, 1)

    none = states.new_zeros(*states.shape[:3], count)
    return _at_roots(lesson, states, logits, chances, none)


def _at_roots(
    lesson: Lesson, states: Tensor, logits: Scores, measure: Measure, values: Tensor
) -> Tensor:
    """`values` [B, T, H, …], with the measure written to every root's places that the record
    has."""
    length, heads = states.shape[1:3]
    row, root = (lesson.max_nodes >= 0).nonzero(as_tuple=True)
    ahead = torch.arange(1, heads + 1, device=states.device)
    for at in range(0, len(row), _CHUNK):
        r, t = row[at : at + _CHUNK], root[at : at + _CHUNK]
        place = (t[:, None] + ahead).clamp(max=length - 1)
        before = lesson.tokens[r[:, None], place - 1]
        scores = logits(states[r, (t - 1).clamp(min=0)], before)  # [chunk, H, V]
        goal = lesson.tokens[r[:, None], place]

        def target(r: Tensor = r, place: Tensor = place) -> Tensor:
            return lesson.head(lesson.hidden[-1][r[:, None], place - 1])

        found = measure(scores, goal, target).to(values.dtype)
        inside = (t[:, None] + ahead < length) & (lesson.positions[r, t] > 0)[:, None]
        inside = inside & (lesson.records[r[:, None], place] == lesson.records[r, t][:, None])
        inside = inside.view(*inside.shape, *[1] * (values.dim() - inside.dim() - 1))
        values[r, t] = torch.where(inside, found, values[r, t])
    return values
