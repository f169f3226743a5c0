"""A draft model with another tokenizer than its target: it reads the text in its own tokens.

The text is cut where words start and each group is tokenized by itself, so that new tokens can
change those of the last group only (the look-back of string-level methods: Timor et al. 2025,
section 3). What the model has read is thus a function of the text, however the text came about.

Legend: B sequences, V the target's vocabulary, W the model's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.models.budget import CacheBudget
from foretoken.models.drafting.draft_model import DraftModel, as_causal_lm
from foretoken.models.drafting.vocabulary import Vocabulary, shared
from foretoken.models.load import check_tokenizer, load_tokenizer
from foretoken.models.warm import common_length
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence

_LONGER = 2  # own tokens that are stored for each of the target's, if the model's context allows


@dataclass(slots=True)
class _Reading:
    """How far a sequence is read. text: the sequence in own tokens. read: how many of the target's
    tokens are tokenized for good; settled: how many own tokens stand for them. full: whether the
    text has become longer than the budget has memory for; from then on it isn't read."""

    text: Sequence
    read: int = 0
    settled: int = 0
    full: bool = False


class _Texts:
    """The target as the model must fit it: its texts in own tokens."""

    def __init__(self, vocab_size: int, access: Access) -> None:
        self.vocab_size, self.max_length = vocab_size, _LONGER * access.max_length
        self.slots, self.device = access.slots, access.device
        self.dtype, self.backend = access.dtype, access.backend
        self.trust_remote_code, self.opening = access.trust_remote_code, access.opening
        self.encoder = None  # which reads sources in the target's tokens
        self.budget = CacheBudget(
            widest=access.budget.widest, longer=_LONGER, dtype=access.budget.dtype
        )
        access.budget.join(self.budget)


@dataclass(eq=False)
class ForeignOptions:
    """model, tokenizer: the draft model and its own tokenizer (a folder, hub id, or both loaded);
    target_tokenizer: None takes the one that the target was loaded with; max_cached_words: how many
    groups' tokens are remembered; draft_backend: see `as_causal_lm`."""

    model: Any = None
    tokenizer: Any = None
    target_tokenizer: Any = None
    max_cached_words: int = field(default=65_536, kw_only=True)
    draft_backend: str | None = field(default=None, kw_only=True)


class ForeignModel:
    """A model with a tokenizer of its own as a drafter in own tokens. nodes: those of a draft at
    most."""

    def __init__(self, options: ForeignOptions, access: Access, nodes: int) -> None:
        """Raises `ForetokenError` where a tokenizer is missing, and for an encoder–decoder."""
        check_range(0, sys.maxsize, max_cached_words=options.max_cached_words)
        if access.opening:
            raise ForetokenError(
                "A draft model with a tokenizer of its own doesn't read an encoder–decoder's "
                "source; use 'sps' with a model of the target's tokenizer, or 'pld'."
            )
        model, tokenizer = options.model, options.tokenizer
        lm = as_causal_lm(model, access, options.draft_backend)
        self.own = Vocabulary(
            _tokenizer(tokenizer, model, access, "draft model", "tokenizer"), lm.vocab_size
        )
        of_target = options.target_tokenizer or access.tokenizer
        self.theirs = Vocabulary(
            _tokenizer(of_target, None, access, "target", "target_tokenizer"), access.vocab_size
        )
        self._model = DraftModel(lm, _Texts(lm.vocab_size, access), nodes + 1)
        self._budget = access.budget
        self.lm, self.device = self._model.lm, self._model.device
        self._tokens_of = lru_cache(options.max_cached_words)(self._tokenized)

    def begin(self, sequence: Sequence) -> None:
        """Take a cache slot."""
        own = Sequence.start(self.own.beginning, sequence.params)
        reading = sequence.state[self] = _Reading(own, settled=len(own.tokens))
        self._read(sequence, reading)
        own.prompt_length, own.salt = len(own.tokens), sequence.salt
        own.reusable = max(0, own.prompt_length - 1) if sequence.reusable else 0
        self._model.begin(own)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """Copy what is cached of the prompt."""
        source, target = sequence.state[self].text, copy.state[self].text
        self._model.fork(source, target)
        self._model.keep(target, common_length(source.tokens, target.tokens))

    def end(self, sequence: Sequence) -> None:
        reading: _Reading | None = sequence.state.pop(self, None)
        if reading is not None:
            reading.text.salt = sequence.salt
            self._model.end(reading.text)

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Read a chunk of the prompts too; later text is read when it is needed."""
        reading = [(s, step) for s, step in zip(sequences, steps, strict=True) if not step.tokens]
        texts = [sequence.state[self].text for sequence, _ in reading]
        self._model.follow(texts, [step for _, step in reading])

    def room(self, sequence: Sequence) -> int:
        """How many own tokens may be drafted after the text so far."""
        reading = sequence.state[self]
        self._read(sequence, reading)
        return self._model.room(reading.text) if reading.text.tokens and not reading.full else 0

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, W] logits after each text, up to where `room` has read it."""
        return self._model.root_logits([s.state[self].text for s in sequences])

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, W] logits after one more own token [B] of each chain."""
        return self._model.next_logits([s.state[self].text for s in sequences], tokens)

    def unfinished(self, sequence: Sequence) -> list[int]:
        """The target's last tokens, which may still be tokenized together with those to come."""
        return sequence.tokens[sequence.state[self].read :]

    def _read(self, sequence: Sequence, reading: _Reading) -> None:
        """Bring the own tokens up to date; the cache keeps what they begin with as before. It costs
        the groups since the last one that was settled, and not the text."""
        if reading.full:
            return
        own, groups = reading.text, list(self.theirs.groups(sequence.tokens[reading.read :]))
        first, new = reading.settled, list[int]()
        for group in groups:
            reading.settled = first + len(new)
            fresh = not reading.read or sequence.tokens[reading.read - 1] in self.theirs.special
            new += self._tokens_of(tuple(group), fresh)
            reading.read += len(group)
        reading.read -= len(groups[-1])
        length = first + len(new)
        if self._model.holds(own):
            alike = first + common_length(own.tokens[first:], new)
            self._model.keep(own, min(alike, length - 1))
        most = _LONGER * self._budget.stretch(sequence.id, -(-length // _LONGER))
        own.tokens[first:], reading.full = new, length > most
        del own.tokens[most:]

    def _tokenized(self, group: tuple[int, ...], fresh: bool) -> list[int]:
        """The own tokens of a group, which may stand where a text begins."""
        name = self.theirs.special.get(group[0])
        if name is not None:
            there = name == "<bos>" and self.own.beginning
            return [self.own.ids[name]] if name in self.own.ids and not there else []
        text = self.theirs.text(group)
        return self.own.starting(text) if fresh else self.own.continuing(text)


class SharedTokensModel(ForeignModel):
    """A `ForeignModel` with distributions over the target's vocabulary, where only shared tokens
    have mass."""

    def __init__(self, options: ForeignOptions, access: Access, nodes: int) -> None:
        """Raises `ForetokenError` where the vocabularies have no token in common."""
        super().__init__(options, access, nodes)
        pairs = shared(self.own, self.theirs)
        if not pairs:
            raise ForetokenError(
                "The draft model's vocabulary and the target's have no token in common; use "
                "method 'slem', which exchanges text."
            )
        self._ours, self._shared = torch.tensor(pairs, device=self.device).T
        self._own_ids = torch.zeros(self.theirs.size, dtype=torch.int64, device=self.device)
        self._own_ids[self._shared] = self._ours

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text."""
        return self._spread(super().root_logits(sequences))

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of the target's."""
        return self._spread(super().next_logits(sequences, self._own_ids[tokens]))

    def _spread(self, logits: Tensor) -> Tensor:
        wide = logits.new_full((*logits.shape[:-1], self.theirs.size), -torch.inf)
        wide[..., self._shared] = logits[..., self._ours]
        return wide


def _tokenizer(chosen: Any, model: Any, access: Access, whose: str, option: str) -> Any:
    """A loaded tokenizer, or the one in a folder; by default that of the model's folder."""
    source = model if chosen is None else chosen
    if isinstance(source, (str, Path)):
        try:
            return load_tokenizer(source, access.trust_remote_code)
        except ForetokenError as error:
            raise ForetokenError(f"{option} of the {whose}: {error}") from error
    if chosen is None:
        raise ForetokenError(
            f"There is no tokenizer of the {whose}, whose text must be read; name it as {option}."
        )
    return check_tokenizer(chosen, option)
