"""Contrastive decoding as a target: the logits of an expert less those of a weaker amateur.

The distribution is the softmax, over the tokens x with p_e(x) >= alpha · max p_e, of

    (1 + beta) · log p_e(x) - beta · log p_a(x).

Source: Li et al. 2023 (Contrastive Decoding) for the plausible set; O'Brien and Lewis 2023 for the
weights and the defaults alpha = 0.1, beta = 0.5; Yuan et al. 2024 (Speculative Contrastive
Decoding) for drafting in front of it. The combination is made of logits, -inf outside the set, so
rules, drafters and sampling parameters treat this target like any other, and exact rules stay
exact.

    LLM(Contrastive("expert", "amateur"), tokenizer="expert")

The amateur may draft as well (`{"method": "sps", "model": "amateur"}`), as in Speculative
Contrastive Decoding. A tree then comes with its logits, and a pass over the tree is the expert's
alone: the amateur makes one pass for each drafted token, and one a step for the bonus token. These
write to the drafter's cache; where a step comes without logits, the amateur first reads into this
one what it has missed.

Legend: B rows, T tokens of a pass, V vocabulary, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed, chain_feed
from foretoken.models.load import load_model, wrapped
from foretoken.models.model import CausalLM, Output
from foretoken.models.warm import Text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHUNK = 512  # tokens of a pass in which the amateur catches up, all rows together


class Contrastive:
    """A `CausalLM` of two models of one vocabulary, each with its own keys and values."""

    backend = "contrastive"
    source = None

    def __init__(
        self,
        expert: str | Path | PreTrainedModel | CausalLM,
        amateur: str | Path | PreTrainedModel | CausalLM,
        *,
        alpha: float = 0.1,
        beta: float = 0.5,
    ) -> None:
        """Each model as `LLM` takes it: folder, hub id, bundled name, or a loaded model.

        alpha: share of the likeliest token's probability that makes a token plausible, in [0, 1].
        beta: how much of the amateur is taken away, at least 0.
        """
        if not (0 <= alpha <= 1 and beta >= 0):
            raise ForetokenError(
                f"alpha is {alpha} and beta {beta}; alpha must be in [0, 1] and beta at least 0."
            )
        self.expert, self.amateur = (
            load_model(model) if isinstance(model, (str, Path)) else wrapped(model)
            for model in (expert, amateur)
        )
        self.alpha, self.beta = alpha, beta
        _check_same("vocabulary", self.expert.vocab_size, self.amateur.vocab_size)
        _check_same("device", self.expert.device, self.amateur.device)
        self.vocab_size, self.width = self.expert.vocab_size, self.expert.width
        self.max_length = min(self.expert.max_length, self.amateur.max_length)
        self.layers = self.expert.layers
        self.kv_heads, self.head_dim = self.expert.kv_heads, self.expert.head_dim
        self.parameters = self.expert.parameters + self.amateur.parameters
        self.bytes_read = self.expert.bytes_read + self.amateur.bytes_read
        self.dtype, self.device = self.expert.dtype, self.expert.device
        self.eos_ids = self.expert.eos_ids
        # States, embedding and head (c) are the expert's; what would have to enter or leave both
        # models in the middle (d to f) can't be offered.
        self.levels = self.expert.levels & (self.amateur.levels | {"c"}) & frozenset("abc")

    def new_cache(
        self, slots: int, max_length: int, *, spare: int = 0, budget: CacheBudget | None = None
    ) -> PairedCache:
        return PairedCache(
            *(
                model.new_cache(slots, max_length, spare=spare, budget=budget)
                for model in (self.expert, self.amateur)
            )
        )

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        assert isinstance(cache, PairedCache)
        expert = self.expert.forward(feed, cache.expert, hidden)
        amateur = self._amateur_logits(feed, cache)
        if expert.logits is None or amateur is None:
            return expert
        return Output(self._combined(expert.logits, amateur), expert.hidden)

    def _amateur_logits(self, feed: Feed, cache: PairedCache) -> Tensor | None:
        """[B, T, V] those that the feed comes with, or the amateur's pass."""
        cache.handed_over(feed)
        if feed.amateur_logits is not None:
            return feed.amateur_logits
        while unread := cache.unread(feed.slots):
            missed = chain_feed(cache.amateur, [*unread], [*unread.values()], logits=False)
            self.amateur.forward(missed, cache.amateur)
            cache.read(unread)
        return self.amateur.forward(feed, cache.amateur).logits

    def _combined(self, expert: Tensor, amateur: Tensor) -> Tensor:
        """[B, T, V] logits of both -> logits of the contrastive distribution, in float32 at
        least."""
        expert, amateur = _log_distribution(expert), _log_distribution(amateur)
        # An amateur's zero would weigh infinitely: it counts as the smallest number there is.
        amateur = amateur.clamp(min=math.log(torch.finfo(amateur.dtype).tiny))
        logits = (1 + self.beta) * expert - self.beta * amateur
        if self.alpha == 0:
            return logits
        floor = expert.amax(-1, keepdim=True) + math.log(self.alpha)
        return logits.masked_fill(expert < floor, -torch.inf)

    def embed(self, tokens: Tensor) -> Tensor:
        """The expert's, [B, T] -> [B, T, D]."""
        return self.expert.embed(tokens)

    def head(self, states: Tensor) -> Tensor:
        """The expert's logits, [B, T, D] -> [B, T, V]: what a head drafts from."""
        return self.expert.head(states)


class PairedCache(KVCache):
    """The expert's cache, whose slots and lengths count, and the amateur's, which follows it, less
    the last tokens of a text whose logits were handed over."""

    def __init__(self, expert: KVCache, amateur: KVCache) -> None:
        self.expert, self.amateur = expert, amateur
        for cache in (expert, amateur):
            cache.stand_together()
        vars(self).update(vars(expert))  # the same objects
        self.max_length = min(expert.max_length, amateur.max_length)
        self.positions = min(expert.positions, amateur.positions)
        self._unread: list[list[int]] = [[] for _ in self.lengths]  # by the amateur, of each slot
        self._passed: dict[int, list[int]] = {}  # slot -> the last pass's tokens, if handed over

    def _both(self) -> tuple[KVCache, KVCache]:
        for slot, (length, unread) in enumerate(zip(self.lengths, self._unread, strict=True)):
            self.amateur.lengths[slot] = length - len(unread)
        return self.expert, self.amateur

    def handed_over(self, feed: Feed) -> None:
        """Note, of every pass, which tokens the amateur doesn't read in it."""
        handed = feed.amateur_logits is not None
        self._passed = dict(zip(feed.slots, feed.tokens.tolist(), strict=True)) if handed else {}

    def unread(self, slots: Seq[int]) -> dict[int, list[int]]:
        """Slot -> the next tokens for the amateur to read, `_CHUNK` of all slots together."""
        self._both()
        behind = [slot for slot in slots if self._unread[slot]]
        return {slot: self._unread[slot][: max(1, _CHUNK // len(behind))] for slot in behind}

    def read(self, tokens: Mapping[int, Seq[int]]) -> None:
        """The amateur has read these."""
        for slot, run in tokens.items():
            del self._unread[slot][: len(run)]
        self._both()

    def keep_windows(self) -> None:
        for cache in self._both():
            cache.keep_windows()

    def keeps(self, slot: int, length: int) -> bool:
        return all(cache.keeps(slot, length) for cache in self._both())

    def acquire(self, owner: int, text: Text | None = None, most: int = 0) -> int:
        """A slot of zeros: the two may have read unlike parts of a text, so none is shared."""
        [slot, _] = [cache.acquire(owner) for cache in self._both()]
        return slot

    def release(self, owner: int, warm: bool = False) -> None:
        """Free the owner's slot; nothing is kept."""
        caches = self._both()
        if self.owns(owner):  # the last active slot moves into the hole
            hole, last = self.slot(owner), len(self.lengths) - self.free - 1
            self._unread[hole], self._unread[last] = self._unread[last], []
        for cache in caches:
            cache.release(owner)

    def copy(self, source: int, target: int, length: int) -> None:
        expert, amateur = self._both()
        expert.copy(source, target, length)
        read = min(length, amateur.lengths[source])
        amateur.copy(source, target, read)
        self._unread[target] = self._unread[source][: length - read]

    def reserve(self, slots: Seq[int], counts: Seq[int]) -> None:
        for cache in self._both():
            cache.reserve(slots, counts)

    def keep(self, slots: Seq[int], paths: Seq[Seq[int]]) -> None:
        expert, amateur = self._both()
        if not self._passed:
            amateur.keep(slots, paths)
        for slot, path in zip(slots, paths, strict=True):
            if passed := self._passed.get(slot):
                self._unread[slot] += [passed[node] for node in (0, *path)]
        expert.keep(slots, paths)


def _log_distribution(logits: Tensor) -> Tensor:
    """Log-probabilities; half precision is too coarse to take differences of."""
    return (logits.float() if logits.dtype.itemsize < 4 else logits).log_softmax(-1)


def _check_same(what: str, expert: object, amateur: object) -> None:
    if expert != amateur:
        raise ForetokenError(
            f"The expert's {what} is {expert} and the amateur's {amateur}; contrastive decoding "
            "compares two models token by token, so they must agree."
        )
