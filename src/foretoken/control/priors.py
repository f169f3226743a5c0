"""What is believed of a drafter's drafts before any was verified.

The rates of known methods are those of two targets (SmolLM2-135M-Instruct, Qwen2.5-Coder-1.5B) over
eight tasks, each answer by itself; copies are right half as often where the text is sampled, a
small model's drafts as often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SIZES = (1, 2, 4, 8)
"""Copies of at most so many nodes are counted apart; longer ones and computed drafts come last."""


@dataclass(frozen=True)
class Prior:
    """first: the acceptance rate of a draft's first node, by the draft's size. deeper: of a node
    whose parent was accepted, at least. weight: how many tested nodes that counts as. again: of the
    errors after an error, the share that is left after a right draft. sampled: what is believed
    where the text is sampled, if that is something else."""

    first: tuple[float, ...]
    deeper: float = 0.0
    weight: float = 4.0
    again: float = 0.5
    sampled: Prior | None = None


UNKNOWN = Prior((0.5,) * len(SIZES) + (0.6,), weight=1.0)
_KNOWN: Mapping[str, Prior] = MappingProxyType(
    {
        "suffix": Prior(
            (0.25, 0.52, 0.7, 0.82, 0.88),
            0.75,
            sampled=Prior((0.15, 0.31, 0.45, 0.55, 0.7), 0.45, again=0.85),
        ),
        "pld": Prior(
            (0.1, 0.1, 0.1, 0.35, 0.55),
            0.75,
            sampled=Prior((0.04, 0.04, 0.1, 0.15, 0.16), 0.5),
        ),
        "sps": Prior((0.75,) * (len(SIZES) + 1)),
    }
)


def prior_of(name: str) -> Prior:
    """Of the part of this name."""
    return _KNOWN.get(name, UNKNOWN)
