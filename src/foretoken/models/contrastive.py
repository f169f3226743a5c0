"""Contrastive decoding as a target: the logits of an expert less those of a weaker amateur.

The distribution is the softmax, over the tokens x with p_e(x) >= alpha · max p_e, of

    (1 + beta) · log p_e(x) - beta · log p_a(x).

Source: Li et al. 2023 (Contrastive Decoding) for the plausible set; O'Brien and Lewis 2023 for the
weights and the defaults alpha = 0.1, beta = 0.5; Yuan et al. 2023 (Speculative Contrastive
Decoding) for drafting in front of it. The combination is made of logits, -inf outside the set, so
rules, drafters and sampling parameters treat this target like any other, and exact rules stay
exact.

    LLM(Contrastive("expert", "amateur"), tokenizer="expert")

The amateur may draft as well (`{"method": "sps", "model": "amateur"}`), as in Speculative
Contrastive Decoding. It then keeps a second cache; letting the draft's pass serve as the
amateur's too would be faster and is not done.

Legend: B rows, T tokens of a pass, V vocabulary, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.load import load_model, wrapped
from foretoken.models.model import CausalLM, Output

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
        amateur = self.amateur.forward(feed, cache.amateur)
        if expert.logits is None or amateur.logits is None:
            return expert
        return Output(self._combined(expert.logits, amateur.logits), expert.hidden)

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
    """The expert's cache, whose slots and lengths count, and the amateur's, which follows it."""

    def __init__(self, expert: KVCache, amateur: KVCache) -> None:
        self.expert, self.amateur = expert, amateur
        vars(self).update(vars(expert))  # the same objects
        self.max_length = min(expert.max_length, amateur.max_length)
        self.positions = min(expert.positions, amateur.positions)

    def _both(self) -> tuple[KVCache, KVCache]:
        self.amateur.lengths[:] = self.lengths
        return self.expert, self.amateur

    def keep_windows(self) -> None:
        for cache in self._both():
            cache.keep_windows()

    def keeps(self, slot: int, length: int) -> bool:
        return all(cache.keeps(slot, length) for cache in self._both())

    def acquire(self, owner: int) -> int:
        [slot, _] = [cache.acquire(owner) for cache in self._both()]
        return slot

    def release(self, owner: int) -> None:
        for cache in self._both():
            cache.release(owner)

    def copy(self, source: int, target: int, length: int) -> None:
        for cache in self._both():
            cache.copy(source, target, length)

    def reserve(self, slots: Seq[int], counts: Seq[int]) -> None:
        for cache in self._both():
            cache.reserve(slots, counts)

    def keep(self, slots: Seq[int], paths: Seq[Seq[int]]) -> None:
        for cache in self._both():
            cache.keep(slots, paths)


def _log_distribution(logits: Tensor) -> Tensor:
    """Log-probabilities; half precision is too coarse to take differences of."""
    return (logits.float() if logits.dtype.itemsize < 4 else logits).log_softmax(-1)


def _check_same(what: str, expert: object, amateur: object) -> None:
    if expert != amateur:
        raise ForetokenError(
            f"The expert's {what} is {expert} and the amateur's {amateur}; contrastive decoding "
            "compares two models token by token, so they must agree."
        )
