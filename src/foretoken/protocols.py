"""What passes between the parts of the loop, and what each part must offer.

The root of a tree is a sequence's last token; it is not yet in the cache, which holds
`len(tokens) - 1` positions. A pass scores the root (slot 0) and N draft nodes (slots 1 … N).

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, D width, T tokens, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from foretoken.access import Access, Pass, Wants
from foretoken.control.cost_model import CostModel
from foretoken.draws import Draws, KeyedDraws
from foretoken.sampling.fold import Folded
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind


@dataclass(slots=True)
class Scores:
    """What the target predicts at the root and at every node.

    logits [B, S, V] raw; bad [B, S] places without a distribution; hidden maps an asked-for layer
    to [B, S, D]. distribution: the probabilities [B, S, V], or the `Folded` ones that make them
    when asked."""

    logits: Tensor
    distribution: Tensor | Folded
    bad: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)

    @property
    def probs(self) -> Tensor:
        """[B, S, V] folded by each sequence's parameters."""
        given = self.distribution
        return given if isinstance(given, Tensor) else given.probs

    @property
    def certain(self) -> Tensor | None:
        """[B, S] the tokens with all the mass, where it is known that every distribution has
        one."""
        return None if isinstance(self.distribution, Tensor) else self.distribution.certain

    @property
    def best(self) -> Tensor:
        """[B, S] the likeliest tokens."""
        return self.probs.argmax(-1) if self.certain is None else self.certain


class Verdict(NamedTuple):
    """path [B, P] slots of the accepted nodes, valid up to lengths [B]; token [B] one more token.

    The slot that the extra token was sampled at is the last accepted one, or the root. Approximate
    rules count in strayed [B] the accepted tokens that the lossless rule would have refused.
    """

    path: Tensor
    lengths: Tensor
    token: Tensor
    strayed: Tensor | None = None


@dataclass(slots=True)
class Step:
    """What one step did to one sequence, for `observe`, the statistics and the stream.

    tokens: emitted, the extra token last. path: accepted slots. drafted: nodes offered. row: this
    sequence's row in `tree` and `scores`. failed: the place had no distribution (NaN). strayed:
    accepted tokens that the lossless rule would have refused. read: tokens of the prompt that went
    into the cache, whose states are the row's first ones; 0 but in prefill, which emits nothing.
    """

    tokens: list[int]
    path: list[int]
    drafted: int
    row: int
    tree: DraftTree
    scores: Scores
    failed: bool = False
    strayed: int = 0
    read: int = 0


class Scorer(Protocol):
    """What a step needs of a target: it scores trees and keeps what was accepted."""

    device: torch.device

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        """One pass over root and nodes of every tree."""

    def commit(self, sequences: Seq[Sequence], paths: Seq[Seq[int]]) -> None:
        """Keep root and accepted slots in the cache, forget the rest of the pass."""


class Target(Scorer, Protocol):
    """The model whose text is wanted. model: the `CausalLM` that makes the passes. tokenizer: the
    model's, if there is one. nodes: the most of a sequence's tree."""

    model: Any
    tokenizer: Any
    vocab_size: int
    max_length: int
    levels: frozenset[str]
    nodes: int

    @property
    def free(self) -> int:
        """Cache slots that no sequence owns."""

    def bind(self, drafter: Drafter) -> None:
        """Give a drafter access; passes bring the states that it wants from now on."""

    def begin(self, sequence: Sequence) -> None:
        """Take a cache slot."""

    def holds(self, sequence: Sequence) -> bool:
        """Whether the sequence has a cache slot."""

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """Copy the prompt's cache to another sample of the same request."""

    def pending(self, sequence: Sequence) -> int:
        """Tokens before the root that are not yet in the cache."""

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        """Put up to `chunk` pending tokens of each sequence into the cache."""

    def end(self, sequence: Sequence) -> None:
        """Give the slot back."""


class Shared(Protocol):
    """What a drafter has learned and keeps across requests."""

    def reset(self) -> None:
        """Forget it. The benchmark does so before every answer, unless told to stay warm."""

    def save(self, path: str | Path) -> None: ...

    def load(self, path: str | Path) -> None:
        """Replace it. Raises `ForetokenError` for a damaged file or one of another target."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses what the target will write. Only `draft` must do anything.

    kinds: the kinds of node that it makes when it samples; at temperature 0, where all
    distributions are point masses, it may always call them chosen. trees: whether it makes anything
    but chains. Both are checked against the verifier at load. shared: what it keeps across
    requests, if anything; it is there from `bind` on. follows: whether it finds all it needs in the
    text when it is asked, so that it need not observe the steps that others drafted for. chose: of
    a drafter that chooses among others, whose draft each sequence of the last step took. parts: the
    drafters that it is made of. small_models: the `CausalLM`s whose passes it runs to draft; they
    are there from `bind` on. pass_per_token: whether a pass of the one small model for each drafted
    token is all that drafting costs."""

    wants: Wants
    kinds: frozenset[Kind]
    trees: bool
    shared: Shared | None
    follows: bool
    chose: Seq[str]
    pass_per_token: bool

    @property
    def parts(self) -> Seq[Drafter]: ...

    @property
    def small_models(self) -> Seq[Any]: ...

    def bind(self, access: Access) -> None:
        """Once, before the first sequence: what the drafter may use of the target."""
        return

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        """Once, after `bind`: a drafter that decides by costs has its parts measured, by name."""
        return

    def begin(self, sequence: Sequence) -> None:
        return

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        """A tree for each sequence, of at most `budgets[b]` nodes (more are cut off)."""

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Learn what the target predicted; the sequences already end with the emitted tokens."""
        return

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        return

    def end(self, sequences: Seq[Sequence]) -> None:
        return


class BaseDrafter(Drafter):
    """Does nothing at every optional verb of `Drafter`, and has a default for what it declares."""

    wants: Wants = Wants()
    kinds: frozenset[Kind] = frozenset({Kind.CHOSEN})
    trees: bool = False
    shared: Shared | None = None
    follows: bool = False
    chose: Seq[str] = ()
    pass_per_token: bool = False

    @property
    def parts(self) -> Seq[Drafter]:
        return ()

    @property
    def small_models(self) -> Seq[Any]:
        return ()


class Verifier(Protocol):
    """A pure acceptance rule. Exact rules read only `scores.probs`,
    and `scores.certain` in place of it where that is there.

    exact: keeps the target's distribution. trees: takes more than chains. sampling: serves
    temperatures above 0. kinds: the kinds of node that it takes. source: paper and equation. draws:
    the class of its random numbers (`gumbel` has its own). reads_logits: whether it
    reads `scores.logits`, which know nothing of penalties and other edits. A rule derives from this
    class, which gives the last two their defaults."""

    exact: ClassVar[bool]
    trees: ClassVar[bool]
    sampling: ClassVar[bool]
    kinds: ClassVar[frozenset[Kind]]
    source: ClassVar[str]
    draws: ClassVar[type[KeyedDraws]] = KeyedDraws
    reads_logits: ClassVar[bool] = False

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict: ...
