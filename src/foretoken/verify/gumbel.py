"""Coupled sampling: drafter and target share the noise of each position, so they tend to agree.

Both take the token that wins a race of exponential clocks, the rates being its own distribution
(this is the Gumbel trick); the clocks belong to (sequence, position, token), so the emitted
text is a function of the target and the seed alone, whatever the drafter. A drafted token is
accepted iff it is the target's own. Over the noise the two agree with probability Σ_x 1 / Σ_y
max(p_y/p_x, q_y/q_x) ≥ (1 - TV) / (1 + TV). Source: Daliri, Musco, Suresh 2025, "Coupling without
communication and drafter-invariant speculative decoding", sections 3 and 4.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import (
    FIRST_FACTOR,
    GOLDEN,
    SECOND_FACTOR,
    Draws,
    KeyedDraws,
    Purpose,
    mix,
    place_key,
)
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.paths import longest_match


class GumbelDraws(KeyedDraws):
    """Target and drafter take the winner of one race: token x arrives after E_x / distribution(x).

    E_x are exponential numbers of (sequence, absolute position, token), so the winner has the
    distribution (Gumbel's trick; Maddison, Tarlow, Minka 2014), and two similar distributions
    mostly have one winner. The next places of a race are draws without replacement; independent
    siblings would repeat.
    """

    def pick(self, distribution: Tensor, depths: Tensor) -> Tensor:
        places = place_key(self._keys, self._starts + depths)[..., None]
        noise = uniform_by_token(places, distribution.shape[-1]).to(distribution.dtype)  # [B, M, V]
        least, most = 2.0**-60, 1 - torch.finfo(noise.dtype).eps / 2
        clocks = noise.clamp_(max=most).neg_().log1p_().neg_().clamp_(min=least)
        arrivals = torch.div(distribution, clocks, out=clocks)
        return arrivals.max(-1).indices  # argmax takes twice as long

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        return self.pick(distribution[:, None], torch.full_like(self._starts, depth))[:, 0]

    def inner(self, part: int, starts: Seq[int] | None = None) -> KeyedDraws:
        """A part that makes no steps of its own races by the same clocks: numbers of its own would
        only keep it from agreeing with the target."""
        return self if starts is None else super().inner(part, starts)


def uniform_by_token(places: Tensor, vocab: int) -> Tensor:
    """[..., 1] places -> [..., V] float64 numbers in [0, 1), one for each token.

    Both halves of the key are well mixed already, so a multiplication with one fold on each side
    does; it is in place, since a whole vocabulary of numbers is most of the cost of a draw.
    """
    x = places ^ _token_keys(vocab, places.device)
    x.mul_(FIRST_FACTOR)
    x.bitwise_xor_((x >> 32).bitwise_and_((1 << 32) - 1))
    x.mul_(SECOND_FACTOR)
    return x.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)


@lru_cache(maxsize=8)
def _token_keys(vocab: int, device: torch.device) -> Tensor:
    """[V] one well-mixed int64 for each token."""
    token = torch.arange(vocab, device=device)
    return mix(mix((token * 8 + int(Purpose.TOKEN)) * GOLDEN))


@dataclass(frozen=True)
class Gumbel(Verifier):
    """Accept the longest path along which every node is the target's own sample."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    draws: ClassVar[type[GumbelDraws]] = GumbelDraws
    source: ClassVar[str] = "Daliri, Musco, Suresh 2025, §3–4"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}
    compares: ClassVar[bool] = True

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return longest_match(trees, scores, draws.pick)
