"""A language model as a drafter: its cache, which follows the text, and the passes of drafting.

It drafts a chain (`root_logits`, then `next_logits` for each further token) or a tree (`level` for
each of its levels), or it is itself the target of a `foretoken.step` loop whose text becomes the
draft (it has the methods of `Target`). The accepted part of a chain stays in the cache;
the nodes of a tree are discarded, and the accepted ones are run again with the next draft's first
pass, which costs less than moving them would.

Models of one tokenizer may have embeddings with different numbers of unused rows after the tokens.
Logits get the target's width: a token that the model lacks has no mass, one that the target lacks
is left out.

Legend: B sequences, M nodes of a level, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.access import Pass
from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.feed import Feed, chain_feed, frontier_feed, token_feed, tree_feed
from foretoken.models.load import find, load_model, wrapped
from foretoken.models.model import CausalLM
from foretoken.models.native import backends
from foretoken.models.seq2seq.cache import SourcedCache
from foretoken.models.seq2seq.model import Seq2Seq
from foretoken.models.warm import Text
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree
from foretoken.trees.grow import Frontier

UNUSED = 256
"""Rows by which embeddings of one tokenizer may differ, as some are padded for speed."""

_log = logging.getLogger(__name__)

_CHUNK = 512  # tokens that a pass catches up, all rows together
_MISSING = 16  # rows that lack more catch up by themselves, so that the others need no padding
_SPARE = 64  # cache places after the context, for drafts that reach over its end


class Surroundings(Protocol):
    """The target that a draft model must fit, as `Access` describes it.

    vocab_size: of the tokens that it drafts. max_length: of the texts that it reads. slots:
    sequences at a time. trust_remote_code: whether code that comes with a draft model may run.
    budget: that the model's cache joins. opening: what every text of an encoder–decoder begins
    with, else nothing. encoder: the target's, where it has one.
    """

    vocab_size: int
    max_length: int
    slots: int
    device: torch.device
    dtype: torch.dtype
    backend: str
    trust_remote_code: bool
    budget: CacheBudget
    opening: tuple[int, ...]
    encoder: Any


class DraftModel:
    """`model` (a folder, hub id, bundled name or loaded model) as a drafter for `access`' target.

    nodes: the most nodes of a tree that it drafts or scores. backend, vocab_size: see
    `as_causal_lm`.
    """

    def __init__(
        self,
        model: Any,
        access: Surroundings,
        nodes: int = _SPARE,
        backend: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Raises `ForetokenError` where the vocabularies differ by more than unused rows, and where
        one of the two is an encoder–decoder and the other is not."""
        self.lm = as_causal_lm(model, access, backend, vocab_size)
        if abs(self.lm.vocab_size - access.vocab_size) > UNUSED:
            raise ForetokenError(
                f"The draft model's vocabulary has {self.lm.vocab_size} tokens and the target's "
                f"{access.vocab_size}; use a drafter with the target's tokenizer, or method 'tli' "
                "or 'slem'."
            )
        self.vocab_size, self.device = access.vocab_size, self.lm.device
        self.levels = self.lm.levels & frozenset("ab")
        self.max_length = min(self.lm.max_length, access.max_length) + 1
        self._cache = self.lm.new_cache(
            access.slots, self.max_length, spare=max(nodes, _SPARE), budget=access.budget
        )
        self._chunk = min(_CHUNK, access.budget.widest)  # for so much windows have memory
        self._depths: list[int] = []  # of the nodes that a growing tree has run, the root first

    def replace(self, lm: CausalLM) -> None:
        """Run another model of the same shape from now on; the cache of running texts stays."""
        self.lm = lm
        self._cache.forget()

    def begin(self, sequence: Sequence) -> None:
        """Take a cache slot, with what is known of the prompt."""
        self._cache.acquire(sequence.id, Text.of(sequence), sequence.reusable)

    def holds(self, sequence: Sequence) -> bool:
        return self._cache.owns(sequence.id)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """Copy what is cached of the prompt."""
        source, target = self._cache.slot(sequence.id), self._cache.slot(copy.id)
        if isinstance(self._cache, SourcedCache):
            self._cache.copy_source(source, target)
        length = min(self._cache.lengths[source], max(0, copy.prompt_length - 1))
        if self._cache.keeps(source, length):  # else the copy reads its prompt
            self._cache.copy(source, target, length)

    def end(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id, warm=sequence.salt is not None)

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted before the context ends: none after a source that doesn't
        fit into it."""
        left = self.max_length - len(sequence.tokens)
        return max(0, left) if self._legible(sequence) else 0

    def _legible(self, sequence: Sequence) -> bool:
        """Whether its source fits into the cache, if it has one."""
        cache = self._cache
        return not isinstance(cache, SourcedCache) or (
            len(sequence.source) <= cache.sources.max_length
        )

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """After a target's step: read a chunk of the prompts too, in one pass, or keep what is
        accepted of the drafts whose nodes `step.path` are (its first ones, if they were this
        model's)."""
        reading = []
        for sequence, step in zip(sequences, steps, strict=True):
            if step.tokens:
                self.keep(sequence, len(sequence.tokens) - len(step.tokens) + len(step.path))
            else:
                reading.append(sequence)
        self._read(reading)

    def keep(self, sequence: Sequence, tokens: int) -> None:
        """Forget all but the first `tokens`."""
        slot = self._cache.slot(sequence.id)
        self._cache.lengths[slot] = max(0, min(self._cache.lengths[slot], tokens))

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text; runs what of it is not in the cache yet."""
        slots, missing = self._following(sequences)
        logits = self._run(chain_feed(self._cache, slots, missing))
        self._keep(slots, missing)
        return logits

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of each chain."""
        slots = self._slots(sequences)
        logits = self._run(token_feed(self._cache, slots, tokens))
        for slot in slots:
            self._cache.lengths[slot] += 1
        return logits

    def block(self, sequences: Seq[Sequence], embeddings: Tensor) -> Tensor:
        """[B, K + 1, V] logits after each text and each of the K extra tokens after it, which are
        read as these embeddings [K, D] and not kept; runs what of the text is not in the cache."""
        slots, missing = self._following(sequences)
        many = len(embeddings)
        feed = chain_feed(self._cache, slots, [[*tokens, *[0] * many] for tokens in missing])
        roots = torch.tensor([len(tokens) - 1 for tokens in missing], device=self.device)[:, None]
        number = torch.arange(feed.tokens.shape[1], device=self.device) - roots - 1  # [B, T]
        place = number.clamp(0, max(0, many - 1))
        feed.replaced = (number >= 0) & (number < many), embeddings[place]
        feed.last, feed.logits = None, False
        states = self._forward(feed, (-1,)).hidden[-1]
        ahead = roots + torch.arange(many + 1, device=self.device)
        self._keep(slots, missing)
        states = states.gather(1, ahead[..., None].expand(-1, -1, states.shape[-1]))
        return self._fitted(self.lm.head(states))

    def level(self, sequences: Seq[Sequence], frontier: Frontier) -> Tensor:
        """[B, M, V] logits after the nodes of a growing tree's frontier, in one pass."""
        if not frontier.depth:
            self._depths = [0]
            return self.root_logits(sequences)
        self._depths += [frontier.depth] * frontier.slots.shape[1]
        slots = self._slots(sequences)
        return self._run(
            frontier_feed(self._cache, slots, frontier.tokens, frontier.sees, self._depths)
        )

    def pending(self, sequence: Sequence) -> int:
        """Tokens before the root that are not yet in the cache."""
        return len(sequence.tokens) - 1 - self._cache.lengths[self._cache.slot(sequence.id)]

    def prefill(self, sequences: Seq[Sequence], chunk: int) -> Pass:
        """Put up to `chunk` pending tokens of each sequence into the cache."""
        self._read(sequences, chunk)
        return Pass(None)

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        """One pass over root and nodes of every tree, and before them over pending tokens.

        Every row has as many tokens before the root as the row with most pending ones, so that
        roots stand in one column.
        """
        shortest = min(len(s.tokens) for s in sequences) - 1
        self._catch_up(sequences, min(_MISSING, shortest))
        lead = max(self.pending(s) for s in sequences)
        slots = self._slots(sequences)
        roots = [len(s.tokens) - 1 for s in sequences]
        for slot, root in zip(slots, roots, strict=True):
            self._cache.lengths[slot] = root - lead
        tails = [s.tokens[-1 - lead :] for s in sequences]
        feed = tree_feed(self._cache, slots, [tail[0] for tail in tails], _led(trees, tails))
        logits = self._run(feed)[:, lead:]
        for slot, root in zip(slots, roots, strict=True):
            self._cache.lengths[slot] = root
        return Pass(logits)

    def commit(self, sequences: Seq[Sequence], paths: Seq[Seq[int]]) -> None:
        """Keep root and accepted slots in the cache, forget the rest of the pass."""
        self._cache.keep(self._slots(sequences), paths)

    def _following(self, sequences: Seq[Sequence]) -> tuple[list[int], list[list[int]]]:
        """Slots, and the few last tokens of each text that are not in the cache."""
        slots = self._slots(sequences)
        self._catch_up(sequences, _MISSING)
        lengths = self._cache.lengths
        return slots, [s.tokens[lengths[slot] :] for s, slot in zip(sequences, slots, strict=True)]

    def _keep(self, slots: Seq[int], tokens: Seq[Seq[int]]) -> None:
        """Count these tokens as cached."""
        for slot, run in zip(slots, tokens, strict=True):
            self._cache.lengths[slot] += len(run)

    def _slots(self, sequences: Seq[Sequence]) -> list[int]:
        return [self._cache.slot(s.id) for s in sequences]

    def _run(self, feed: Feed) -> Tensor:
        logits = self._forward(feed).logits
        assert logits is not None
        return self._fitted(logits)

    def _forward(self, feed: Feed, hidden: tuple[int, ...] = ()) -> Pass:
        """A pass. A token that only the target has is read as the last one of the model's own."""
        if self.lm.vocab_size < self.vocab_size:
            feed.tokens = feed.tokens.clamp(max=self.lm.vocab_size - 1)
        return self.lm.forward(feed, self._cache, hidden)

    def _fitted(self, logits: Tensor) -> Tensor:
        """[..., V] of the target's tokens, from logits of the model's own."""
        missing = self.vocab_size - logits.shape[-1]  # where negative, padding cuts
        return F.pad(logits, (0, missing), value=-torch.inf) if missing else logits

    def _catch_up(self, sequences: Seq[Sequence], gap: int) -> None:
        """Run tokens until at most `gap` before each root are pending, after their sources."""
        self._read_sources(sequences)
        while late := [s for s in sequences if self.pending(s) > gap]:
            if not self._read(late):
                return

    def _read(self, sequences: Seq[Sequence], chunk: int | None = None) -> bool:
        """Run pending tokens before the roots in one pass: up to `chunk` of each sequence, by
        default an equal share of `_chunk`. Returns whether there were any."""
        sequences = [s for s in sequences if self._legible(s)]
        self._read_sources(sequences)
        share = chunk or max(1, self._chunk // max(1, len(sequences)))
        slots, tokens = [], []
        for sequence in sequences:
            slot = self._cache.slot(sequence.id)
            start = self._cache.lengths[slot]
            # A drafter of shorter context stops at its end.
            end = min(start + share, len(sequence.tokens) - 1, self.max_length - 1)
            if end > start:
                slots.append(slot)
                tokens.append(sequence.tokens[start:end])
        if slots:
            self._forward(chain_feed(self._cache, slots, tokens, logits=False))
            self._keep(slots, tokens)
        return bool(slots)

    def _read_sources(self, sequences: Seq[Sequence]) -> None:
        """Read those that are not read yet, if there are any: first after the target, which may
        have an encoder in common with this model."""
        if isinstance(self.lm, Seq2Seq) and isinstance(self._cache, SourcedCache):
            read = self._cache.source_lengths(self._slots(sequences))
            both = zip(sequences, read, strict=True)
            unread = [s for s, length in both if not length and self._legible(s)]
            if unread:
                self.lm.read([s.source for s in unread], self._slots(unread), self._cache)


def as_causal_lm(
    model: Any, access: Surroundings, backend: str | None = None, vocab_size: int | None = None
) -> CausalLM:
    """A folder or name is loaded like the target, or with the backend that is named; a transformers
    model is wrapped; ours is used. Where the target's backend is one that `auto` takes, the model
    gets what `auto` takes for it: a GGUF file's blocks as they lie, whatever the target is.
    vocab_size: how many tokens its head knows, None for all (see `load_model`)."""
    if not isinstance(model, (str, Path)):
        if vocab_size is not None:
            raise ForetokenError(
                f"draft_vocab_size is {vocab_size}, and the draft model is loaded already; give "
                "its folder or GGUF file instead."
            )
        if backend is not None:
            raise ForetokenError(
                f"draft_backend is {backend!r}, and the draft model is loaded already; load it "
                "with that backend, or give its folder."
            )
        return _of_its_kind(wrapped(model), access)
    if backend is None:
        backend = access.backend if backends.known(access.backend) else "auto"
    automatic = backend in backends.AUTOMATIC and access.dtype == torch.float32
    on_cpu = torch.device(access.device).type == "cpu"
    lm = load_model(
        model,
        dtype="auto" if automatic and on_cpu else access.dtype,
        device=access.device,
        backend="auto" if automatic else backend,
        trust_remote_code=access.trust_remote_code,
        draft_vocab_size=vocab_size,
    )
    return _of_its_kind(lm, access)


def _of_its_kind(lm: CausalLM, access: Surroundings) -> CausalLM:
    """The draft model, with the target's encoder where its own is the same. Raises
    `ForetokenError` where it reads a source and the target doesn't, or the other way round, and
    where their texts begin differently."""
    opening = lm.opening if isinstance(lm, Seq2Seq) else ()
    if opening == access.opening:
        return _sharing(lm, access)
    if opening and access.opening:
        raise ForetokenError(
            f"The draft model's texts begin with the tokens {list(opening)} and the target's with "
            f"{list(access.opening)}; use a draft model of the target's family and tokenizer."
        )
    kinds = ("an encoder–decoder", "a decoder-only model")
    drafting, wanted = kinds if opening else kinds[::-1]
    raise ForetokenError(
        f"The draft model is {drafting} and the target is {wanted}, so they don't read the same; "
        f"draft with {wanted}, or by a method without a draft model, such as 'pld'."
    )


def _sharing(lm: CausalLM, access: Surroundings) -> CausalLM:
    """The model, reading by the target's encoder if its own makes the same states."""
    if not isinstance(lm, Seq2Seq) or access.encoder is None:
        return lm
    if not lm.encoder.origin.makes(access.encoder.origin):
        return lm
    _log.info("The draft model's encoder is the target's, which reads each source for both.")
    return lm.reading_by(access.encoder.lend())


def is_of(lm: CausalLM, model: Any) -> bool:
    """Whether `model`, as it was named for drafting, is this one: itself, or what it was loaded
    from."""
    source = find(model) if isinstance(model, (str, Path)) else model
    return source is lm or bool(source == lm.source)


def _led(trees: DraftTree, tails: Seq[Seq[int]]) -> DraftTree:
    """The trees, put after chains of the tokens [B][lead + 1] without the first of each."""
    lead = len(tails[0]) - 1
    if not lead:
        return trees
    chain = torch.tensor([tail[1:] for tail in tails], device=trees.tokens.device)
    parents = None
    if not trees.is_chain:
        steps = torch.arange(lead, device=chain.device).expand(len(tails), -1)
        parents = torch.cat((steps, trees.parent_slots + lead), 1)
    return DraftTree(
        torch.cat((chain, trees.tokens), 1), [lead + n for n in trees.counts], parents=parents
    )
