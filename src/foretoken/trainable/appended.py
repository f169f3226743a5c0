"""Losses and estimates of trained tokens that are appended to a text to predict tokens ahead.

These tokens are prompt tokens or masks, in blocks. A block after place t attends to the text up to
t and to itself, each of its tokens to those before it, and its positions continue from t. Its
prediction i is for the text's token t + first + i. Many blocks of one text run in one pass and
don't attend to each other.

Legend: B rows, T places, R blocks of a row, A tokens of a block, X = R·A, C predictions of a block,
D width, V vocabulary, P blocks that count.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.trainable.head_losses import NO_RANK, rank
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, chunked, drawn_chance
from foretoken.trainable.masked_attention import Mask

States = Callable[[Tensor], Tensor]
"""Places [B, R] -> the states [B, R, C, D] from which the blocks after them predict."""

Logits = Callable[[Tensor], Tensor]
"""Such states [..., C, D] -> logits [..., C, V]."""

Measure = Callable[[Tensor, Tensor, Callable[[], Tensor]], Tensor]
"""A block's logits [P, C, V], the text's tokens [P, C], and a function that computes the target's
logits there [P, C, V] -> [P, C]."""

_CHUNK = 128  # blocks whose logits exist at once
_PLACES = 64  # blocks of a row that run at once where all are needed


def draw_places(lesson: Lesson, blocks: int, first: int) -> Tensor:
    """[B, R] places drawn at random from those whose first prediction is for a token with a weight,
    and from others where these are too few."""
    counts = (lesson.weight > 0).roll(-first, 1)
    counts[:, -first:] = False
    chance = torch.rand(counts.shape, device=counts.device) + counts
    return chance.topk(min(blocks, counts.shape[1]), 1).indices


def block_positions(lesson: Lesson, places: Tensor, tokens: int) -> tuple[Tensor, Mask]:
    """Positions [B, X] of blocks of `tokens` tokens after the places [B, R], and which of the text
    and the blocks each of the T + X tokens attends to [B, Q, T + X]: a text's to none of these."""
    ahead = torch.arange(1, tokens + 1, device=places.device)
    positions = (lesson.positions.gather(1, places)[..., None] + ahead).flatten(1)
    (rows, length), blocks = lesson.tokens.shape, places.shape[1]
    order = torch.arange(length + blocks * tokens, device=places.device)
    block = torch.arange(blocks, device=places.device).repeat_interleave(tokens)  # [X]
    after = torch.cat((order[:length].expand(rows, -1), places.repeat_interleave(tokens, 1)), 1)
    within = torch.cat((torch.full_like(order[:length], -1), block))

    def mask(at: slice) -> Tensor:
        own = (within[at, None] == block) & (order[at, None] >= order[length:])
        return torch.cat((lesson.sees(after[:, at]), own.expand(rows, -1, -1)), 2)

    return positions, mask


def blocks_loss(
    lesson: Lesson,
    places: Tensor,
    states: Tensor,
    first: int,
    logits: Logits,
    parameters: Seq[Tensor],
    objective: Objective,
) -> Tensor:
    """The sum over predictions of decay^i times prediction i's mean loss.

    states: [B, R, C, D] of the blocks after the places [B, R]. parameters: what `logits` uses that
    is trained.
    """
    ahead, inside = _goals(lesson, places, first, states.shape[2])
    weight = lesson.weight.gather(1, ahead.flatten(1)).view(ahead.shape) * inside
    decay = objective.decay ** torch.arange(states.shape[2], device=places.device)
    share = weight / weight.sum((0, 1)).clamp(min=1e-9) * decay
    row, block = share.sum(-1).nonzero(as_tuple=True)  # [P]
    ahead, share = ahead[row, block], share[row, block]
    goal = lesson.tokens[row[:, None], ahead]
    target_states = lesson.hidden[-1][row[:, None], ahead - 1] if objective.reads_target else None

    def measure(at: slice, part: Tensor) -> Tensor:
        target = None if target_states is None else lesson.head(target_states[at])
        return (objective(logits(part), target, goal[at]) * share[at]).sum()

    at_once = lesson.places_at_once(_CHUNK, 2 * states.shape[2])
    return chunked(measure, [states[row, block]], parameters, at_once)


def block_ranks(
    lesson: Lesson, wanted: Tensor, states: States, first: int, count: int, logits: Logits
) -> Tensor:
    """[B, T, C] the rank of the text's token in prediction i of the block after each wanted place
    [B, T]; `NO_RANK` elsewhere, and where the record ends before. count: C."""
    none = torch.full((*wanted.shape, count), NO_RANK, device=wanted.device)
    return _measured(lesson, wanted, states, first, logits, rank, none)


def block_acceptance(
    lesson: Lesson, wanted: Tensor, states: States, first: int, count: int, logits: Logits
) -> Tensor:
    """[B, T, C] the chance that prediction i of the block after each wanted place [B, T] is
    accepted and is the text's token: 0 or 1 at temperature 0, above it min(1, q / p); 0 elsewhere.
    count: C."""

    def chance(drafter: Tensor, goal: Tensor, target: Callable[[], Tensor]) -> Tensor:
        if not lesson.temperature:
            return (drafter.argmax(-1) == goal).to(drafter.dtype)
        return drawn_chance(drafter, target(), goal, lesson.temperature)

    none = lesson.hidden[-1].new_zeros(*wanted.shape, count)
    return _measured(lesson, wanted, states, first, logits, chance, none)


def _measured(
    lesson: Lesson,
    wanted: Tensor,
    states: States,
    first: int,
    logits: Logits,
    measure: Measure,
    values: Tensor,
) -> Tensor:
    """`values` [B, T, C], with the measure written to every prediction for which the text has a
    token."""
    length = wanted.shape[1]
    for start in range(0, length, _PLACES):
        places = torch.arange(start, min(start + _PLACES, length), device=wanted.device)
        if not wanted[:, places].any():
            continue
        ahead, inside = _goals(lesson, places.expand(len(wanted), -1), first, values.shape[2])
        inside = inside & wanted[:, places, None]
        block_states = states(places.expand(len(wanted), -1))
        each = (x.split(_CHUNK) for x in inside.any(-1).nonzero(as_tuple=True))
        for row, block in zip(*each, strict=True):
            token = ahead[row, block]
            goal = lesson.tokens[row[:, None], token]

            def target(row: Tensor = row, token: Tensor = token) -> Tensor:
                return lesson.head(lesson.hidden[-1][row[:, None], token - 1])

            new = measure(logits(block_states[row, block]), goal, target)
            at = row, start + block
            values[at] = torch.where(inside[row, block], new.to(values.dtype), values[at])
    return values


def _goals(lesson: Lesson, places: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """[B, R, C] places of the tokens that blocks after the places [B, R] predict, and whether they
    are in the same record."""
    ahead = places[..., None] + first + torch.arange(count, device=places.device)
    inside = ahead < lesson.tokens.shape[1]
    ahead = ahead.clamp(max=lesson.tokens.shape[1] - 1)
    owner = lesson.records.gather(1, places)[..., None]
    record = lesson.records.gather(1, ahead.flatten(1)).view(ahead.shape)
    return ahead, inside & (record == owner) & (owner >= 0)
