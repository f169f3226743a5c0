"""A smaller language model drafts a chain by its own sampling.

Source: Leviathan et al. 2023; Chen et al. 2023. The proposal is the small model's law under the
request's own sampling parameters (temperature, truncation, penalties), as those papers' section on
sampling settings asks; the draft length is a rule of `length.py`.

Legend: B sequences, N = longest draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.length import LengthRule, schedule
from foretoken.models.backends import NAMES
from foretoken.models.feed import Feed, chain_feed, token_feed
from foretoken.models.load import load_model, wrapped
from foretoken.models.model import CausalLM
from foretoken.protocols import Access, BaseDrafter, Sequence, Step, Wants
from foretoken.sampling import best, fold
from foretoken.tree import DraftTree, Kind, empty

_CHUNK = 512  # prompt tokens a pass while catching up
_BEHIND = 8  # a row that lacks more than this catches up alone, so that the others need no padding


@dataclass(eq=False)
class SmallLM(BaseDrafter):
    """model: folder, hub id, bundled name or loaded model; num_speculative_tokens: draft length;
    num_assistant_tokens_schedule: when a draft ends before it, a name in `length.SCHEDULES` or a
    rule; assistant_confidence_threshold, draft_cost: the rule's own, where it has them."""

    model: Any = None
    num_speculative_tokens: int = 4
    num_assistant_tokens_schedule: str | LengthRule = "constant"
    assistant_confidence_threshold: float | None = None
    draft_cost: float | None = None

    wants = Wants("a")
    kinds = frozenset({Kind.INDEPENDENT})

    def __post_init__(self) -> None:
        if self.model is None:
            raise ForetokenError(
                "This method drafts with a small model; name it, e.g. "
                'speculative_config={"method": "sps", "model": "folder-or-hub-id"}.'
            )
        self.length: LengthRule = schedule(
            self.num_assistant_tokens_schedule,
            self.num_speculative_tokens,
            {
                "assistant_confidence_threshold": self.assistant_confidence_threshold,
                "draft_cost": self.draft_cost,
            },
        )

    def bind(self, access: Access) -> None:
        self.lm = as_causal_lm(self.model, access)
        if self.lm.vocab_size != access.vocab_size:
            raise ForetokenError(
                f"The draft model's vocabulary has {self.lm.vocab_size} tokens and the target's "
                f"{access.vocab_size}; use a drafter that was trained with the target's tokenizer."
            )
        room = min(self.lm.max_length, access.max_length) + 1
        self._cache = self.lm.new_cache(access.slots, room + 64)
        self._room = room

    def begin(self, sequence: Sequence) -> None:
        self._cache.acquire(sequence.id)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        counts = [
            max(0, min(self.length.limit(s), budget, self._room - len(s.tokens)))
            for s, budget in zip(sequences, budgets, strict=True)
        ]
        rows = [row for row, count in enumerate(counts) if count]
        if not rows:
            return empty(len(sequences), self.lm.device)
        some = len(rows) < len(sequences)
        tokens, laws, drafted = self._chain(
            [sequences[r] for r in rows] if some else sequences,
            [counts[r] for r in rows],
            draws.take(rows) if some else draws,
        )
        for row, count in zip(rows, drafted, strict=True):
            counts[row] = count
        if some:
            tokens = _spread(tokens, rows, len(counts))
            laws = None if laws is None else _spread(laws, rows, len(counts))
        kind = Kind.CHOSEN if laws is None else Kind.INDEPENDENT
        return DraftTree(tokens, counts, kind=kind, proposals=laws)

    def _chain(
        self, sequences: Seq[Sequence], counts: list[int], draws: Draws
    ) -> tuple[Tensor, Tensor | None, list[int]]:
        """([B, N] tokens, [B, N, V] the laws they were drawn from or None where all are greedy,
        how many of each row count), at most `counts`."""
        slots = [self._cache.slot(s.id) for s in sequences]
        greedy = all(s.params.greedy for s in sequences)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []

        def contexts() -> list[list[list[int]]]:
            so_far = torch.stack(tokens, 1).tolist() if tokens else [[] for _ in slots]
            return [[path] for path in so_far]

        feed = self._caught_up(sequences, slots)
        while True:
            out = self.lm.forward(feed, self._cache)
            self._advance(feed)
            assert out.logits is not None
            if greedy:
                tokens.append(best(out.logits, sequences, contexts)[:, 0])
            else:
                laws.append(fold(out.logits, sequences, contexts).probs[:, 0])
                tokens.append(draws.draft(laws[-1], len(tokens)))
            if self.length.looks and len(tokens) < max(counts):
                law = _looked_at(out.logits[:, 0], laws, sequences)
                counts = self._ended(sequences, law, counts, len(tokens))
            if len(tokens) >= max(counts):
                break
            feed = token_feed(self._cache, slots, tokens[-1])
        return torch.stack(tokens, 1), torch.stack(laws, 1) if laws else None, counts

    def _ended(
        self, sequences: Seq[Sequence], law: Tensor, counts: list[int], made: int
    ) -> list[int]:
        """`counts`, no more than `made` where the rule ends a draft: the level's one transfer."""
        ends = self.length.ends(sequences, law).tolist()
        return [min(c, made) if end else c for c, end in zip(counts, ends, strict=True)]

    def _caught_up(self, sequences: Seq[Sequence], slots: list[int]) -> Feed:
        """The feed of each row's last missing tokens; longer gaps (prompts) are closed first."""
        lengths = self._cache.lengths
        for sequence, slot in zip(sequences, slots, strict=True):
            while len(sequence.tokens) - lengths[slot] > _BEHIND:
                self._read(sequence, slot)
        missing = [s.tokens[lengths[slot] :] for s, slot in zip(sequences, slots, strict=True)]
        return chain_feed(self._cache, slots, missing)

    def _read(self, sequence: Sequence, slot: int) -> None:
        """One chunk of the missing tokens before the last, which the next draft starts from."""
        start = self._cache.lengths[slot]
        chunk = sequence.tokens[start : min(start + _CHUNK, len(sequence.tokens) - 1)]
        chunk = chunk[: max(0, self._room - 1 - start)]  # a drafter of shorter context stops here
        if chunk:
            feed = chain_feed(self._cache, [slot], [chunk], logits=False)
            self.lm.forward(feed, self._cache)
            self._cache.lengths[slot] += len(chunk)

    def _advance(self, feed: Feed) -> None:
        last = feed.last or [0] * len(feed.slots)
        for slot, place in zip(feed.slots, last, strict=True):
            self._cache.lengths[slot] += place + 1

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            slot = self._cache.slot(sequence.id)
            if not step.tokens:  # the target read a chunk of the prompt
                self._read(sequence, slot)
                continue
            # What was drafted and accepted stays; the extra token was never fed.
            held = min(self._cache.lengths[slot], len(sequence.tokens) - 1)
            self._cache.lengths[slot] = held
            self.length.observe(sequence, step.drafted, len(step.path))

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        source, target = self._cache.slot(sequence.id), self._cache.slot(copy.id)
        shared = min(self._cache.lengths[source], copy.prompt_length - 1)
        self._cache.copy(source, target, shared)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._cache.release(sequence.id)


def as_causal_lm(model: Any, access: Access) -> CausalLM:
    """A folder or name is loaded like the target; a transformers model is wrapped; ours is used."""
    if isinstance(model, (str, Path)):
        backend = access.backend if access.backend in NAMES else "auto"
        return load_model(model, dtype=access.dtype, device=access.device, backend=backend)
    return wrapped(model)


def _looked_at(logits: Tensor, laws: list[Tensor], sequences: Seq[Sequence]) -> Tensor:
    """[B, V] what a length rule sees: the law that was drawn from, at temperature 0 the softmax."""
    cold = [s.params.greedy for s in sequences]
    if not any(cold):
        return laws[-1]
    plain = logits.softmax(-1)
    if all(cold):
        return plain
    return torch.where(torch.tensor(cold, device=logits.device)[:, None], plain, laws[-1])


def _spread(x: Tensor, rows: list[int], batch: int) -> Tensor:
    """Put the rows of x back at their places in a batch, zeros elsewhere."""
    full = x.new_zeros(batch, *x.shape[1:])
    full[torch.tensor(rows, device=x.device)] = x
    return full
