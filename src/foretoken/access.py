"""What a drafter may use of the target: levels of access, declared in `Wants`, given by `Access`.

Legend: B sequences, S slots of a pass, V vocabulary, D width, T tokens, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, ResumePoint

LEVELS = {
    "a": "logits for appended tokens",
    "b": "its own attention mask and positions for the appended tokens (token trees)",
    "c": "the last hidden state, the embedding and the head",
    "d": "chosen intermediate hidden states, and input embeddings for extra tokens",
    "e": "running any subset of the sub-layers, or a prefix, and continuing from there",
    "f": "the target's key/value cache",
}
"""The six kinds of access to a target that drafters may need."""


def check_levels(who: str, wanted: Iterable[str], offered: frozenset[str]) -> None:
    """Raise `ForetokenError` where `who` wants a level of access that isn't offered."""
    missing = "; ".join(f"({level}) {LEVELS[level]}" for level in wanted if level not in offered)
    if missing:
        raise ForetokenError(
            f"{who} needs {missing}, which this target can't give; use a decoder-only model that "
            "runs natively (model_impl='native'), or another method."
        )


@dataclass(frozen=True)
class Wants:
    """What a drafter needs of the target: access levels, and layers whose output it reads.

    `hidden` counts layer outputs from 0 (the embedding's output) to L; -1 is the normed last state.
    `last`: of how many of a prompt's tokens, the last ones, it needs these; None for all, so that
    no part of a prompt can be left out because the target has it of another text.
    """

    levels: str = "a"
    hidden: tuple[int, ...] = ()
    last: int | None = None


@dataclass(slots=True)
class Pass:
    """What one pass of the target returns: logits [B, S, V], raw (None in prefill); hidden:
    requested layer -> states [B, S, D]."""

    logits: Tensor | None
    hidden: dict[int, Tensor] = field(default_factory=dict)


class Access(Protocol):
    """What a drafter may read and run of a target, limited by its levels; given to `Drafter.bind`.

    tokenizer: the target's, if it was given one. source: the folder or the loaded transformers
    model that its weights are from, None where that isn't known. trust_remote_code: whether code
    that comes with a checkpoint may run. budget: the `CacheBudget` that a drafter's caches join.
    amateur: the `CausalLM` whose logits a contrastive target takes from its own, else None. A
    drafter that drafts with it hands its logits over, in a tree's `amateur_logits`, and spares the
    target that model's pass. opening: what every text of an encoder–decoder begins with, else
    nothing; sequences then have a `source`. encoder: what reads it, and hands its states to a draft
    model with the same one; else None.

    A *draft pass* is a drafter's pass through the target. It writes its keys and values after each
    committed length, where the next pass over that sequence overwrites them.
    """

    levels: frozenset[str]
    vocab_size: int
    width: int
    layers: int
    kv_heads: int
    head_dim: int
    device: torch.device
    dtype: torch.dtype
    slots: int
    max_length: int
    backend: str
    tokenizer: Any
    source: Any
    trust_remote_code: bool
    budget: Any
    amateur: Any
    opening: tuple[int, ...]
    encoder: Any

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., T] -> [..., T, D] (level c)."""

    def norm(self, states: Tensor) -> Tensor:
        """The final norm, which stands between the last layer's states and `head` (level e)."""

    def head(self, states: Tensor) -> Tensor:
        """Normed last states [..., D] -> logits [..., V] (level c)."""

    def draft_states(
        self, sequences: Seq[Sequence], tokens: Tensor, ahead: int, sublayers: Iterable[int]
    ) -> Tensor:
        """Run these of the 2L sub-layers over alternative tokens [B, M] for one place: a draft pass
        (level e). Returns the states [B, M, D].

        Sub-layer 2i is the attention of layer i and 2i + 1 its feed-forward. Each alternative sees
        the text before the root, the `ahead` tokens of earlier draft passes, and itself.
        """

    def rerun_states(
        self, sequences: Seq[Sequence], count: int, sublayers: Iterable[int]
    ) -> Tensor:
        """Run these sub-layers again over the T = `count` tokens before each root, which see the
        text before them and each other: a draft pass (level e). Returns the states [B, T, D]."""

    def draft_logits(self, sequences: Seq[Sequence], trees: DraftTree) -> Tensor:
        """[B, S, V] logits at each root and its tree: a draft pass (level d)."""

    def substitute_logits(
        self, lm: Any, sequences: Seq[Sequence], tokens: Tensor, ahead: int
    ) -> Tensor:
        """[B, M, V] logits of another model of the target's shape, over alternative tokens [B, M]
        for one place, as in `draft_states`, and the target's cache (level f)."""

    def resume_point(self, layers: int, tokens: Tensor, states: Tensor) -> ResumePoint:
        """Hand the states of draft passes over to the scoring pass, in a tree's `resume` (level e).

        tokens [B, K], states [B, K, D]: the root and the nodes after it, one a draft pass, after
        the first `layers` layers. The scoring pass resumes from them if its trees consist of these
        tokens, and runs all layers otherwise.
        """

    def extra_tokens(self, embeddings: Tensor) -> int:
        """Register K extra tokens with these embeddings [K, D], which trees name in `extras`; the
        number of the first of them (level d)."""

    def kv(self, sequence: Sequence, layer: int) -> tuple[Tensor, Tensor]:
        """Read-only keys and values [kv_heads, committed length, head_dim] (level f)."""
