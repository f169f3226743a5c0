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

from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Entry

LEVELS = {
    "a": "logits for appended tokens",
    "b": "its own attention mask and positions for the appended tokens (token trees)",
    "c": "the last hidden state, the embedding and the head",
    "d": "chosen intermediate hidden states, and input embeddings for extra tokens",
    "e": "running any subset of the sub-layers, or a prefix, and continuing from there",
    "f": "the target's key/value cache",
}
"""The six kinds of access to a target that drafters may need."""


@dataclass(frozen=True)
class Wants:
    """What a drafter needs of the target: access levels, and layers whose output it reads.

    `hidden` counts layer outputs from 0 (the embedding's output) to L; -1 is the normed last state.
    """

    levels: str = "a"
    hidden: tuple[int, ...] = ()


@dataclass(slots=True)
class Pass:
    """One pass of the target: logits [B, S, V] raw (None in prefill); hidden maps an asked-for
    layer to [B, S, D]."""

    logits: Tensor | None
    hidden: dict[int, Tensor] = field(default_factory=dict)


class Access(Protocol):
    """A target's inside, as far as its levels reach; handed to `Drafter.bind`.

    tokenizer: the target's, if it was given one. source: the folder or the loaded transformers
    model that its weights are from, None where that isn't known.

    A draft pass writes its keys and values after each committed length, where the next pass over
    that sequence overwrites them.
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

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., T] -> [..., T, D] (level c)."""

    def norm(self, states: Tensor) -> Tensor:
        """The final norm, which stands between the last layer's states and `head` (level e)."""

    def head(self, states: Tensor) -> Tensor:
        """Normed last states [..., D] -> logits [..., V] (level c)."""

    def draft_states(
        self, sequences: Seq[Sequence], tokens: Tensor, ahead: int, sublayers: Iterable[int]
    ) -> Tensor:
        """[B, M, D] states of alternatives [B, M] for one place after the named ones of the 2L
        sub-layers: a draft pass (level e).

        2i is the attention of layer i and 2i + 1 its feed-forward. Each alternative sees the text
        before the root, the `ahead` tokens of the draft passes before this one, and itself.
        """

    def rerun_states(
        self, sequences: Seq[Sequence], count: int, sublayers: Iterable[int]
    ) -> Tensor:
        """[B, T, D] the same for the T = `count` tokens before each last one, at their own
        positions and blind to their committed run (level e)."""

    def draft_logits(self, sequences: Seq[Sequence], trees: DraftTree) -> Tensor:
        """[B, S, V] logits at each root and its tree: a draft pass (level d)."""

    def entry(self, layers: int, tokens: Tensor, states: Tensor) -> Entry:
        """What hands states of draft passes over to the scoring pass (level e).

        tokens [B, K], states [B, K, D]: the root and the nodes after it, one a draft pass, as they
        come out of the first `layers` layers. A scoring pass resumes from them where they are those
        of its trees, and runs all layers otherwise.
        """

    def extra_tokens(self, embeddings: Tensor) -> int:
        """The number of the first of new tokens, which passes read as these [K, D] embeddings;
        trees name them in `extras` (level d)."""

    def kv(self, sequence: Sequence, layer: int) -> tuple[Tensor, Tensor]:
        """Read-only keys and values [kv_heads, committed length, head_dim] (level f)."""
