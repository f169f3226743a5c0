"""Tiny float64 targets with a related draft model, and a tokenizer that needs no files.

Legend: B rows, T tokens of a pass, L cache length, V vocabulary, P period of a table.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache, KVShape
from foretoken.models.feed import Feed, chain_feed
from foretoken.models.model import CausalLM, Output
from foretoken.models.native import attention
from foretoken.models.native.build import build_native

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pair:
    """A target, a smaller or noisier model of the same vocabulary, and the target in transformers
    (None where it has no such form)."""

    target: CausalLM
    draft: CausalLM
    transformers: Any = None


def tiny_transformers(
    vocab_size: int = 97,
    *,
    layers: int = 2,
    width: int = 32,
    seed: int = 0,
    scale: float = 0.2,
    max_length: int = 256,
    eos_token_id: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Any:
    """A Llama of transformers with random weights; at this `scale` its greedy text is varied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=None,
    )
    with torch.random.fork_rng([]):
        model: Any = LlamaForCausalLM(config)
    return _perturbed(model.to(dtype).eval(), scale, seed, keep=False)


def related(model: Any, noise: float = 0.02, seed: int = 1) -> Any:
    """A copy of a transformers model with noise on its matrices: they agree now and then."""
    return _perturbed(copy.deepcopy(model), noise, seed, keep=True)


def _perturbed(model: Any, scale: float, seed: int, keep: bool) -> Any:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=random, dtype=torch.float64) * scale
                weight.copy_(weight * float(keep) + noise)
    return model


def native(model: Any) -> CausalLM:
    """The native model with the weights of a transformers model, plainly executed."""
    weights: dict[str, Tensor] = model.state_dict()
    return build_native(model.config, weights.__getitem__, model.dtype, _CPU, "plain")


def tiny_pair(vocab_size: int = 97, *, noise: float = 0.02, **options: Any) -> Pair:
    """Native target and draft model; `options` as for `tiny_transformers`."""
    model = tiny_transformers(vocab_size, **options)
    return Pair(native(model), native(related(model, noise)), model)


def table_pair(vocab_size: int = 3, *, seed: int = 0, noise: float = 0.7) -> Pair:
    """Table models of a tiny vocabulary, for exact enumeration."""
    target = TableModel.random(vocab_size, seed)
    return Pair(target, target.noisy(noise, seed + 1))


def logits_after(model: CausalLM, tokens: Seq[int]) -> Tensor:
    """[V] the model's logits after `tokens`, by one pass over all of them into a new cache."""
    cache = model.new_cache(1, len(tokens) + 1)
    feed = chain_feed(cache, [cache.acquire(0)], [list(tokens)])
    with torch.inference_mode():
        out = model.forward(feed, cache)
    assert out.logits is not None
    return out.logits[0, -1]


class TableModel:
    """A `CausalLM` whose distribution is a known function of the tokens that a place sees.

    logits = Σ table[position mod P, token] over the last `window` positions (all by default). The
    token ids themselves lie in the cache, so a wrong mask, position or commit changes the
    distribution."""

    width, layers, parameters, bytes_read = 1, 1, 0, 0
    kv_heads, head_dim = 1, 1
    dtype, device = torch.float64, _CPU
    levels = frozenset("ab")
    backend = "table"
    source = None
    eos_ids: frozenset[int] = frozenset()

    def __init__(self, table: Tensor, window: int | None = None, max_length: int = 64) -> None:
        """table: [P, V, V] float64."""
        self.table, self.window = table, window
        self.vocab_size, self.max_length = table.shape[-1], max_length

    @classmethod
    def random(
        cls, vocab_size: int = 3, seed: int = 0, *, scale: float = 0.9, window: int | None = None
    ) -> TableModel:
        """Random entries, five position classes."""
        random = torch.Generator().manual_seed(seed)
        shape = (5, vocab_size, vocab_size)
        return cls(scale * torch.randn(shape, generator=random, dtype=torch.float64), window)

    @classmethod
    def markov(cls, probabilities: Tensor) -> TableModel:
        """The next token's distribution is the row [V] of `probabilities` [V, V] of the last
        token."""
        return cls(probabilities.double().log()[None], window=1)

    def noisy(self, noise: float, seed: int = 1) -> TableModel:
        """A related model."""
        random = torch.Generator().manual_seed(seed)
        added = torch.randn(self.table.shape, generator=random, dtype=torch.float64)
        return TableModel(self.table + noise * added, self.window, self.max_length)

    def new_cache(
        self, slots: int, max_length: int, *, spare: int = 0, budget: CacheBudget | None = None
    ) -> KVCache:
        shapes = [KVShape(1, 1, 1, self.window)]
        return KVCache(
            shapes, slots, max_length, self.dtype, self.device, spare=spare, budget=budget
        )

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        ids = feed.tokens[..., None, None, None].to(self.dtype)
        attention.write(cache.layer[0], ids.expand(-1, -1, 2, -1, -1), feed)
        if not feed.logits:
            return Output(None)
        slots, _ = feed.cells()
        cached = cache.layer[0].keys[slots[:, 0], 0, : feed.length, 0].long()  # [B, L]
        terms = self.table[feed.key_positions() % self.table.shape[0], cached]  # [B, L, V]
        logits = _sum_seen(feed.visible(self.window), terms)  # [B, T, V]
        if feed.last is not None:
            rows = torch.arange(len(feed.last))
            logits = logits[rows, torch.tensor(feed.last)][:, None]
        return Output(logits)

    def embed(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError("A table has no embedding (level c).")

    def head(self, states: Tensor) -> Tensor:
        raise NotImplementedError("A table has no head (level c).")


def _sum_seen(seen: Tensor, terms: Tensor) -> Tensor:
    """Σ over the L places seen: [B, T, L] bool, [B, L, V] -> [B, T, V]; -inf may occur."""
    return terms[:, None].masked_fill(~seen[..., None], 0).sum(2)


class ByteTokenizer:
    """A byte a token, as much of transformers' interface as is used here; no files.

    Printable ASCII comes first (id 0 is the space), then the newline, then all other bytes; the
    last id is end-of-text. A vocabulary below 257 leaves the last bytes out.
    """

    chat_template = "{role}: {content}"

    def __init__(self, vocab_size: int = 257) -> None:
        order = [*range(32, 127), 10]
        order += [byte for byte in range(256) if byte not in order]
        self.vocab_size, self.eos_token_id = vocab_size, vocab_size - 1
        self.eos_token = "<eos>"
        self._bytes = order[: vocab_size - 1]
        self._ids = {byte: i for i, byte in enumerate(self._bytes)}

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.encode(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [self._ids[byte] for byte in text.encode()]

    def decode(
        self,
        token_ids: Seq[int] | int,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        end = b"" if skip_special_tokens else self.eos_token.encode()
        pieces = [end if i == self.eos_token_id else bytes([self._bytes[i]]) for i in ids]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, ids: Seq[int]) -> list[str]:
        return [self.decode([i]) for i in ids]

    def apply_chat_template(
        self,
        conversation: Seq[dict[str, str]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> Any:
        text = "".join(f"{turn['role']}: {turn['content']}\n" for turn in conversation)
        text += "assistant: " if add_generation_prompt else ""
        return self.encode(text) if tokenize else text
