"""What a drafter may use of the target: levels of access, declared in `Wants`, given by `Access`.

Legend: B sequences, S slots of a pass, V vocabulary, D width, T tokens, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree

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

    tokenizer: the target's, if the engine was given one. source: the folder or the loaded
    transformers model that its weights are from, None where that isn't known. scratches: passes
    made by `scratch` and its like so far, each of which overwrites the one before. hidden: layers
    whose states a scoring pass must bring, as `Wants` counts them. cycle: after how many layers
    their weights begin anew.
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
    scratches: int
    hidden: tuple[int, ...]
    cycle: int

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., T] -> [..., T, D] (level c)."""
        ...

    def head(self, states: Tensor) -> Tensor:
        """Normed last states [..., D] -> logits [..., V] (level c)."""
        ...

    def scratch(self, sequences: Seq[Sequence], tokens: Seq[Seq[int]]) -> Any:
        """A pass of plain tokens after the committed length, where scoring will overwrite it."""
        ...

    def scratch_next(self, sequences: Seq[Sequence], tokens: Tensor, ahead: int) -> Any:
        """The same for alternatives [B, M] of one place, after the `ahead` scratch tokens before
        it, which each sees; alternatives don't see each other."""
        ...

    def scratch_again(self, sequences: Seq[Sequence], count: int) -> Any:
        """The same for the `count` tokens before each last one, at their own positions and blind to
        their committed run."""
        ...

    def scratch_first(self, sequence: Sequence, place: int) -> None:
        """Bring a scratch cell to the front, right after the committed length."""
        ...

    def scratch_tree(self, sequences: Seq[Sequence], trees: DraftTree) -> Any:
        """The same for each sequence's root and a tree below it (level b, where it's no chain)."""
        ...

    def extra_tokens(self, embeddings: Tensor) -> int:
        """The number of the first of new tokens, which passes read as these [K, D] embeddings;
        trees name them in `extras` (level d)."""
        ...

    def run(self, states: Tensor, feed: Any, sublayers: Iterable[int]) -> Tensor:
        """Run the named ones of the 2L sub-layers on [B, T, D], in order (level e).

        2i is the attention of layer i and 2i + 1 its feed-forward; a prefix can be continued.
        """
        ...

    def run_beside(self, states: Tensor, feeds: Seq[Any], firsts: Seq[int], count: int) -> Tensor:
        """Run `count` layers on tokens [R, 1, D], each from a layer of its own on, with its own
        feed; layers that share their weights run as one product (level e)."""
        ...

    def norm(self, states: Tensor) -> Tensor:
        """The final norm, which stands between the last layer's states and `head` (level e)."""
        ...

    def score_by(self, run: Callable[[Seq[Sequence], Any], Pass]) -> None:
        """Scoring passes are from now on run by `run` (level e), which gives what `whole` gives."""
        ...

    def whole(self, sequences: Seq[Sequence], feed: Any) -> Pass:
        """A scoring pass as the model runs it."""
        ...

    def kv(self, sequence: Sequence, layer: int) -> tuple[Tensor, Tensor]:
        """Read-only keys and values [kv_heads, committed length, head_dim] (level f)."""
        ...
