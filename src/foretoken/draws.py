"""Randomness, keyed by what is drawn and never by the order of calls.

Every uniform number is a hash of (request seed, sample index, absolute position, purpose, index).
So the text of a seed by plain decoding, and by chosen drafts, does not depend on the batch, the
other requests, the drafter or how the work was divided into steps, and two purposes never share a
number. The hash is the finaliser of splitmix64 (Steele, Lea, Flood 2014), applied once per field.

Legend: B sequences, M places to draw at in one call, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import IntEnum
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What a number is for; numbers of different purposes are independent."""

    TOKEN = 1  # the emitted token at an absolute position: plain decoding's own noise
    ACCEPT = 2  # an acceptance test at a slot of the step that starts at a position
    DRAFT = 3  # a drafter's draw at a depth of the step that starts at a position
    INNER = 4  # the key of a drafter's part that draws, or speculates, by itself


class Draws(Protocol):
    """The only way a verifier or drafter may be random, so a test can enumerate every outcome."""

    def accept(self, probability: Tensor, tests: Tensor | None = None) -> Tensor:
        """[B, M] probabilities -> [B, M] bool.

        `tests` [B, M] numbers them, 0 … M - 1 if left out: no two tests of a step that both count
        for a sequence may have the same number (e.g. a node's index), or they'd share their noise.
        """
        ...

    def pick(self, distribution: Tensor, depths: Tensor) -> Tensor:
        """[B, M, V] distributions (of any mass) of the token after slots at [B, M] depths -> [B,
        M]."""
        ...

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        """[B, V] proposal distributions at one depth of the draft -> [B] tokens."""
        ...

    def take(self, rows: Seq[int]) -> Draws:
        """The draws of some of the sequences."""
        ...

    def inner(self, part: int, starts: Seq[int] | None = None) -> Draws:
        """Draws of a drafter's part, independent of these and of other parts'.

        starts: the lengths [B] of the sequences in the part's own step, if it makes steps; no two
        of its steps may start at the same length.
        """
        ...


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


FIRST_FACTOR, SECOND_FACTOR = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
GOLDEN = _signed(0x9E3779B97F4A7C15)


T = TypeVar("T", Tensor, int)


def mix(x: T) -> T:
    """splitmix64's finaliser on wrapping int64; `>>` is arithmetic, so sign bits are masked. Of a
    Python integer, which doesn't wrap, the lowest 64 bits are those: none depends on higher ones.
    """
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST_FACTOR
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND_FACTOR
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _spread(x: Tensor | int) -> Tensor | int:
    """x times the golden-ratio constant, wrapping at 64 bits like the tensors do."""
    return x * GOLDEN if isinstance(x, Tensor) else _signed((x * GOLDEN) & ((1 << 64) - 1))


def uniforms(key: Tensor, position: Tensor, purpose: Purpose, index: Tensor | int = 0) -> Tensor:
    """Float64 numbers in [0, 1) for broadcastable int64 keys, positions and indices."""
    x = mix(place_key(key, position) + _spread(index * 8 + int(purpose)))
    return ((x >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53


def place_key(key: Tensor, position: Tensor) -> Tensor:
    """One well-mixed int64 for each key and position."""
    return mix(key + _spread(position + 1))


def inverse_cdf(distribution: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the running sum of `distribution` [..., V] passes `uniform` [...] of it.

    Never a token of probability zero: the first index whose running sum exceeds the threshold.
    """
    running = distribution.cumsum(-1, dtype=torch.float64)
    threshold = uniform[..., None] * running[..., -1:]
    found = torch.searchsorted(running, threshold, right=True)[..., 0]
    return found.clamp_(max=distribution.shape[-1] - 1)


def draft_index(depth: int, sibling: int) -> int:
    """The number of a draw for a draft among those of its step."""
    return depth + (sibling << 16)


class GreedyDraws:
    """All distributions are one-hot: nothing random is left, and no number is computed."""

    def accept(self, probability: Tensor, tests: Tensor | None = None) -> Tensor:
        return probability > 0.5

    def pick(self, distribution: Tensor, depths: Tensor) -> Tensor:
        return distribution.argmax(-1)

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        return distribution.argmax(-1)

    def take(self, rows: Seq[int]) -> Draws:
        return self

    def inner(self, part: int, starts: Seq[int] | None = None) -> Draws:
        return self


class KeyedDraws:
    """Draws of a step whose root stands at position `starts[b] - 1` of sequence b."""

    def __init__(self, keys: Seq[int], starts: Seq[int], device: torch.device) -> None:
        self._given = (list(keys), list(starts), device)
        self._keys = torch.tensor(keys, device=device)[:, None]
        self._starts = torch.tensor(starts, device=device)[:, None]

    def noise(self, purpose: Purpose, after: Tensor | int = 0, index: Tensor | int = 0) -> Tensor:
        """The uniform numbers [B, M] of one purpose, `after` positions from the step's start."""
        return uniforms(self._keys, self._starts + after, purpose, index)

    def accept(self, probability: Tensor, tests: Tensor | None = None) -> Tensor:
        if tests is None:
            tests = torch.arange(probability.shape[1], device=probability.device)
        return self.noise(Purpose.ACCEPT, index=tests) < probability

    def pick(self, distribution: Tensor, depths: Tensor) -> Tensor:
        return inverse_cdf(distribution, self.noise(Purpose.TOKEN, depths))

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        noise = self.noise(Purpose.DRAFT, 0, draft_index(depth, sibling))
        return inverse_cdf(distribution, noise[:, 0])

    def take(self, rows: Seq[int]) -> KeyedDraws:
        keys, starts, device = self._given
        return type(self)([keys[r] for r in rows], [starts[r] for r in rows], device)

    def inner(self, part: int, starts: Seq[int] | None = None) -> KeyedDraws:
        keys, outer_starts, device = self._given  # lists: on a GPU nothing need come back
        places = place_key(torch.tensor(keys), torch.tensor(outer_starts))
        keys = mix(places + _spread(part * 8 + int(Purpose.INNER))).tolist()
        return type(self)(keys, outer_starts if starts is None else starts, device)


def stream_key(seed: int, sample: int) -> int:
    """The int64 key of one sample of a request."""
    return _signed(mix(mix(seed % 2**63 + GOLDEN) + (sample + 1) * GOLDEN) % 2**64)
