"""One batch of training: texts, the frozen target's states along them, and each token's weight.

A row has one or more records, each a prompt with its answer. Training is teacher forced: at every
place the drafter reads the true text before it. Where the text is what the target writes at
temperature 0, or a sample of it under a rule that keeps plain decoding's tokens, accepted drafts
are pieces of this text, so one pass shows what would have been accepted while it was written
(`Estimate`).

Legend: B rows, T places of a row, D width, V vocabulary, N drafted places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

Append = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Embeddings [B, X, D] of tokens appended to the text, their positions [B, X], and which of the
T + X tokens each attends to [B, X, T + X] -> their normed last states [B, X, D]. Gradients pass.
"""

KeysAndValues = Callable[[int], tuple[Tensor, Tensor]]
"""A layer of the target, from 0 -> its keys and values of the text, each [B, K, T, W]."""


_SHARE = 64
"""Of a GPU's memory, the part that one tensor of a training's intermediate numbers may take."""


def numbers_at_once(device: torch.device, few: int) -> int:
    """How many float32 numbers are computed at a time: `few` on a CPU, whose caches hold them; on a
    GPU, where each launch costs time, at least as many as a share of its memory holds."""
    if device.type != "cuda":
        return few
    return max(few, torch.cuda.get_device_properties(device).total_memory // (4 * _SHARE))


@dataclass(frozen=True)
class Lesson:
    """One batch, and what the frozen target computes of it.

    tokens, positions, records: [B, T] ids, places within the record, and the number of the record
    in its row (-1 is padding). A token attends to the tokens of its record up to itself. weight:
    [B, T] each token's share in the loss, 0 where it isn't predicted. max_nodes: [B, T] the most
    nodes of a draft whose root is that token, -1 where serving never has a root. hidden: layer ->
    [B, T, D], layers counted as in `Wants`. head: normed last states [..., D] -> logits [..., V].
    embed: ids -> [..., D]. append: the target's pass over tokens after the rows, see `Append`.
    head, embed, append and kv are the target's and are not trained, but for head_parameters, the
    head's weights where the target learns too. temperature: the one that the text was written at.
    """

    tokens: Tensor
    positions: Tensor
    records: Tensor
    weight: Tensor
    max_nodes: Tensor
    hidden: Mapping[int, Tensor]
    head: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor], Tensor]
    append: Append
    kv: KeysAndValues
    temperature: float = 0.0
    head_parameters: tuple[Tensor, ...] = ()

    def sees(self, places: Tensor) -> Tensor:
        """[B, Q, T] bool: which tokens those at the places [B, Q] or [Q] attend to."""
        records = self.records.gather(1, places.expand(len(self.records), -1))
        same = records[..., None] == self.records[:, None]
        return same & (self._places <= places[..., None])

    def mask(self, at: slice) -> Tensor:
        """[B, Q, T] `sees` of a stretch of places: a `Mask` for attention along the text."""
        return self.sees(self._places[at])

    def places_at_once(self, few: int, logits: int) -> int:
        """For how many places logits exist at once, where each has so many distributions: `few`
        unless a GPU has room for more."""
        device = self.tokens.device
        if device.type != "cuda":
            return few
        return max(few, numbers_at_once(device, 0) // (logits * self._vocab_size))

    @property
    def _places(self) -> Tensor:
        return torch.arange(self.records.shape[1], device=self.records.device)

    @cached_property
    def _vocab_size(self) -> int:
        return int(self.head(self.embed(self.tokens[:1, 0])).shape[-1])

    def places_to_draft(self, most: int) -> Tensor:
        """[B, S] the places t from which a drafter of `most` tokens has something to learn: one of
        the tokens t + 2 … t + 1 + most has a weight. Rows with fewer of them are filled with
        others."""
        counts = torch.stack([self.weight.roll(-2 - i, 1) > 0 for i in range(most)]).any(0)
        longest = int(counts.sum(1).max())
        return counts.int().argsort(dim=1, descending=True, stable=True)[:, :longest]


def chain_acceptance(chances: Tensor, max_nodes: Tensor, most: int) -> Tensor:
    """[B, T, most] the chance that more than n tokens of a chain are accepted; chances: [B, T] of
    the drafted token after each place."""
    return drawn_acceptance(torch.stack([chances.roll(-n, 1) for n in range(most)], 2), max_nodes)


def drawn_acceptance(chances: Tensor, max_nodes: Tensor) -> Tensor:
    """[B, T, N] the chance that more than n tokens of a chain are accepted; chances: [B, T, N] of
    each of its tokens, where those before it are."""
    places = torch.arange(chances.shape[2], device=max_nodes.device)
    within: Tensor = places < max_nodes[..., None]
    return chances.cumprod(-1) * within


@dataclass
class Estimate:
    """How many steps serving a text would take. tokens: of the text. accepted[n]: in how many of
    these steps more than n drafted places are accepted, a sum of chances."""

    tokens: float = 0.0
    steps: float = 0.0
    accepted: list[float] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step, the target's own token included."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def rates(self) -> list[float]:
        """For each drafted place the share of steps that accepted it."""
        return [count / self.steps for count in self.accepted] if self.steps else []

    def add(self, other: Estimate) -> None:
        """Add another's counts."""
        self.tokens += other.tokens
        self.steps += other.steps
        longest = max(len(self.accepted), len(other.accepted))
        pairs = (_padded(self.accepted, longest), _padded(other.accepted, longest))
        self.accepted = [a + b for a, b in zip(*pairs, strict=True)]


def _padded(counts: Seq[float], length: int) -> list[float]:
    return [*counts, *[0.0] * (length - len(counts))]


def estimate(max_nodes: Tensor, acceptance: Tensor) -> Estimate:
    """What serving would accept: `acceptance` [B, T, N] is the chance that a step whose root stands
    at place t accepts more than n drafted places (0 or 1 where that is certain).

    Walks from each text's first root: a step that accepts n places leads to the root n + 1 later.
    """
    roots = (max_nodes >= 0).cpu()
    more = (acceptance.double() * (max_nodes >= 0)[..., None]).cpu()
    certain = torch.ones_like(more[..., :1])
    exactly = torch.cat((certain, more), 2) - torch.cat((more, 0 * certain), 2)  # [B, T, N + 1]
    batch, length, depth = exactly.shape
    visits = torch.zeros(batch, length + depth, dtype=torch.float64)
    first = roots.clone()
    first[:, 1:] &= ~roots[:, :-1]
    visits[:, :length] = first.double()
    for place in range(length):
        visits[:, place] *= roots[:, place]
        moves = visits[:, place, None] * exactly[:, place]
        visits[:, place + 1 : place + 1 + depth] += moves
    visits = visits[:, :length]
    accepted = (visits[..., None] * more).sum((0, 1))
    return Estimate(float(roots.sum()), float(visits.sum()), accepted.tolist())
