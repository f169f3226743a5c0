"""The loop's data (scores, verdicts, steps) and protocols (target, drafter, acceptance rule).

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
from foretoken.errors import ForetokenError
from foretoken.sampling.edits import Errors
from foretoken.sampling.fold import Folded
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind


@dataclass(slots=True)
class Scores:
    """What the target predicts at the root and at every node.

    logits: [B, S, V], raw. distribution: the probabilities [B, S, V], or `Folded` ones, which are
    computed when they are read. bad: [B, S], places without a distribution. hidden: requested
    layer -> states [B, S, D]."""

    logits: Tensor
    distribution: Tensor | Folded
    bad: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)

    @property
    def probs(self) -> Tensor:
        """[B, S, V] folded by each sequence's parameters."""
        probs = self.distribution
        return probs if isinstance(probs, Tensor) else probs.probs

    @property
    def certain(self) -> Tensor | None:
        """[B, S] the tokens with probability 1, where every distribution is known to have one;
        else None."""
        return None if isinstance(self.distribution, Tensor) else self.distribution.certain

    @property
    def errors(self) -> Errors:
        """Why there is no distribution, at the places where a user's processor raised."""
        return {} if isinstance(self.distribution, Tensor) else self.distribution.errors

    @property
    def best(self) -> Tensor:
        """[B, S] the likeliest tokens."""
        return self.probs.argmax(-1) if self.certain is None else self.certain


class Verdict(NamedTuple):
    """What a rule decided: which nodes are accepted, and the bonus token.

    path: [B, P] slots of the accepted nodes, of which the first lengths [B] count. token: [B] the
    bonus token, sampled at the last accepted slot, or at the root. strayed: [B] how many accepted
    tokens the lossless rule would have rejected, counted by approximate rules.
    """

    path: Tensor
    lengths: Tensor
    token: Tensor
    strayed: Tensor | None = None


@dataclass(slots=True)
class Step:
    """What one step did to one sequence, for `observe`, the statistics and the stream.

    tokens: emitted, the bonus token last. path: accepted slots. drafted: nodes of the draft. row:
    this sequence's row in `tree` and `scores`. error: why there is no distribution (NaN) after the
    accepted path, where the bonus token then means nothing. strayed: accepted tokens that the
    lossless rule would have rejected. read: in prefill, which emits nothing, the prompt tokens
    read, whose states are the row's first ones; else 0. source: how many of these, the first ones,
    are an encoder–decoder's source, which is no part of the text and has no states.
    """

    tokens: list[int]
    path: list[int]
    drafted: int
    row: int
    tree: DraftTree
    scores: Scores
    error: ForetokenError | None = None
    strayed: int = 0
    read: int = 0
    source: int = 0


class Scorer(Protocol):
    """What a step needs of a target: it scores trees and keeps what was accepted."""

    device: torch.device

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        """One pass over root and nodes of every tree."""

    def commit(self, sequences: Seq[Sequence], paths: Seq[Seq[int]]) -> None:
        """Keep root and accepted slots in the cache, forget the rest of the pass."""


class Target(Scorer, Protocol):
    """The model whose text is wanted. model: the `CausalLM` that makes the passes. tokenizer: the
    model's, if there is one. levels: of access, see `access.LEVELS`. nodes: the largest tree of a
    sequence. budget: a `CacheBudget`, of all caches. opening: what every text of an encoder–decoder
    begins with, whose prompt is the source that it reads; nothing where texts go on from prompts.
    """

    model: Any
    tokenizer: Any
    vocab_size: int
    max_length: int
    levels: frozenset[str]
    nodes: int
    budget: Any
    opening: tuple[int, ...]

    @property
    def free(self) -> int:
        """Cache slots that no sequence owns."""

    def bind(self, drafter: Drafter) -> None:
        """Give a drafter access; from now on passes return the states that it wants."""

    def begin(self, sequence: Sequence) -> None:
        """Take a cache slot."""

    def holds(self, sequence: Sequence) -> bool:
        """Whether a cache slot has all of the sequence's prompt that a copy needs."""

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """Copy the prompt's keys and values to another sample of the same request."""

    def pending(self, sequence: Sequence) -> int:
        """Tokens before the root that are not yet in the cache."""

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        """Put up to `chunk` pending tokens of each sequence into the cache, with logits [B, T, V]
        at all of them where a sequence's parameters ask for `prompt_logprobs`."""

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

    wants: the access that it needs. kinds: the kinds of node that it makes when it samples; at
    temperature 0, where all distributions are point masses, it may always call them chosen. trees:
    whether it makes anything but chains. These are checked before the first step. shared: what it
    keeps across requests, from `bind` on, or None. follows: whether the text alone is enough for it
    to draft, so that it need not observe the steps that others drafted for. chose: for each
    sequence of the last step, the name of the part that drafted, if it chooses among parts. parts:
    the drafters that it wraps. small_models: the `CausalLM`s whose passes it runs to draft, from
    `bind` on. pass_per_token: whether one pass of its one small model for each drafted token is all
    that drafting costs. coupled: whether its chosen tokens follow from the noise of the places that
    they are for, so that only a rule that `compares` is exact. nodes: the most nodes that it drafts
    for a sequence, from `bind` on; the target makes room for as many."""

    wants: Wants
    kinds: frozenset[Kind]
    trees: bool
    shared: Shared | None
    follows: bool
    chose: Seq[str]
    pass_per_token: bool
    coupled: bool

    @property
    def parts(self) -> Seq[Drafter]: ...

    @property
    def nodes(self) -> int: ...

    @property
    def small_models(self) -> Seq[Any]: ...

    def bind(self, access: Access) -> None:
        """Once, before the first sequence: what the drafter may use of the target."""
        return

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        """Once, after `bind`: a drafter that decides by costs calls `measure` with its parts, by
        name."""
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
    """A drafter's defaults: optional methods do nothing, and every declared field has a value."""

    wants: Wants = Wants()
    kinds: frozenset[Kind] = frozenset({Kind.CHOSEN})
    trees: bool = False
    shared: Shared | None = None
    follows: bool = False
    chose: Seq[str] = ()
    pass_per_token: bool = False
    coupled: bool = False

    @property
    def parts(self) -> Seq[Drafter]:
        return ()

    @property
    def nodes(self) -> int:
        return 64

    @property
    def small_models(self) -> Seq[Any]:
        return ()


class Verifier(Protocol):
    """An acceptance rule: a pure function of trees, scores and draws. Exact rules read only
    `scores.probs`, or `scores.certain` where it is not None.

    exact: whether it keeps the target's distribution. trees: whether it takes more than chains.
    sampling: whether it serves temperatures above 0. kinds: the kinds of node that it takes.
    source: paper and equation. draws: the class of its random numbers (`gumbel` has its own).
    reads_logits: whether it reads `scores.logits`, to which penalties and other edits have not been
    applied. compares: whether it accepts a token iff it is the target's own sample there.
    largest_vocab: of how many tokens a vocabulary may be, None for any. A rule derives from this
    class, which has defaults for the last four."""

    exact: ClassVar[bool]
    trees: ClassVar[bool]
    sampling: ClassVar[bool]
    kinds: ClassVar[frozenset[Kind]]
    source: ClassVar[str]
    draws: ClassVar[type[KeyedDraws]] = KeyedDraws
    reads_logits: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    largest_vocab: ClassVar[int | None] = None

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict: ...
