"""An encoder–decoder as a `CausalLM`: the decoder writes, given what the encoder read.

The source is read once (`read`): the encoder's pass, and the keys and values that each decoder
layer makes of it. Then a pass is the decoder's alone. A draft node's position is its depth after
the text, so paths of a tree are scored as if each stood alone; transformers' own decoders count
places instead, which is why their forward isn't used.

Legend: B rows, T tokens, S tokens of the longest source, V vocabulary, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from pathlib import Path

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import Feed, chain_feed
from foretoken.models.model import Output
from foretoken.models.native.attention import write
from foretoken.models.native.layer import Embedding, Linear
from foretoken.models.native.transformer import at_places
from foretoken.models.seq2seq.beginning import Beginning
from foretoken.models.seq2seq.cache import SourcedCache
from foretoken.models.seq2seq.encoder import Encoder, Reader
from foretoken.models.seq2seq.family import Shape
from foretoken.models.seq2seq.stack import Stack


class Seq2Seq:
    """Access levels a to c. opening: the decoder's first tokens, after which a text is written."""

    levels = frozenset("abc")

    def __init__(
        self,
        shape: Shape,
        embedding: Embedding,
        encoder: Encoder,
        source_kv: list[Linear],
        decoder: Stack,
        lm_head: Linear,
        logits_bias: Tensor | None,
        beginning: Beginning,
        runs: tuple[torch.dtype, torch.device, str],
        sizes: tuple[int, int],
        eos_ids: Iterable[int] = (),
        source: Path | None = None,
    ) -> None:
        """source_kv: of each decoder layer, from the encoder's states. logits_bias: [V]. runs: in
        which dtype, where, by which backend. sizes: parameters, and the bytes that a pass reads.
        source: the checkpoint's folder, where it is from one."""
        self.shape, self.opening = shape, beginning.opening
        self.vocab_size, self.max_length, self.width = (
            shape.vocab_size,
            shape.max_length,
            shape.width,
        )
        self.layers, self.kv_heads = shape.decoder.layers, shape.decoder.heads
        self.head_dim = shape.decoder.head_dim
        self.dtype, self.device, self.backend = runs
        self.parameters, self.bytes_read = sizes
        self.eos_ids, self.source = frozenset(eos_ids), source
        self.encoder: Reader = encoder
        self._embedding, self._decoder = embedding, decoder
        self._source_kv, self._lm_head, self._logits_bias = source_kv, lm_head, logits_bias

    def reading_by(self, encoder: Reader) -> Seq2Seq:
        """The same model with this encoder in place of its own."""
        model = copy.copy(self)
        model.encoder = encoder
        return model

    def new_cache(
        self, slots: int, max_length: int, *, spare: int = 0, budget: CacheBudget | None = None
    ) -> SourcedCache:
        return SourcedCache(
            alike(self.layers, self.kv_heads, self.head_dim),
            slots,
            max_length,
            self.dtype,
            self.device,
            spare=spare,
            positions=self.max_length,
            budget=budget,
        )

    def read(self, sources: Seq[Seq[int]], slots: list[int], cache: SourcedCache) -> None:
        """The encoder's pass over whole sources, of different lengths; each decoder layer's keys
        and values of them stay in their slots. Raises `ForetokenError` for an empty source."""
        if not all(sources):
            raise _no_source()
        feed = chain_feed(cache.sources, slots, sources, logits=False)
        lengths = [len(source) for source in sources]
        states = self.encoder.read(feed, sources)
        for kv, layer in zip(self._source_kv, cache.sources.layer, strict=True):
            new = kv(states).view(*states.shape[:2], 2, self.kv_heads, self.head_dim)
            write(layer, new, feed)
        for slot, length in zip(slots, lengths, strict=True):
            cache.sources.lengths[slot] = length

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        """One pass of the decoder; of hidden states it gives the normed last ones, -1. Raises
        `ForetokenError` where a row's source wasn't read, and for other hidden states."""
        if not isinstance(cache, SourcedCache) or not all(cache.source_lengths(feed.slots)):
            raise _no_source()
        if set(hidden) - {-1}:
            raise ForetokenError(
                "An encoder–decoder gives no hidden states but the last; use a decoder-only model."
            )
        states = self._decoder.decode(self.embed(feed.tokens), feed, cache)
        if not feed.logits and not hidden:
            return Output(None)
        states = self._decoder.leave(states)
        kept = dict.fromkeys(hidden, states)
        if not feed.logits:
            return Output(None, kept)
        if feed.last is not None:
            states = at_places(states, feed.last)
        return Output(self.head(states), kept)

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., T] -> [..., T, D]."""
        return self._embedding(tokens) * self.shape.embedding_scale

    def head(self, states: Tensor) -> Tensor:
        """Normed states [..., D] -> logits [..., V]."""
        logits = self._lm_head(states * self.shape.output_scale)
        return logits if self._logits_bias is None else logits + self._logits_bias


def _no_source() -> ForetokenError:
    return ForetokenError(
        "An encoder–decoder writes to a source, and there is none; give it by LLM.generate, or use "
        "a decoder-only model here."
    )
