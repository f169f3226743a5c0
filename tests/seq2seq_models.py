"""Tiny encoder–decoders of transformers in float64, and the native models with their weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

import torch

from foretoken.models.feed import chain_feed
from foretoken.models.seq2seq.beginning import beginning
from foretoken.models.seq2seq.build import build_seq2seq
from foretoken.models.seq2seq.model import Seq2Seq

VOCAB, PAD, EOS = 61, 0, 1
CPU = torch.device("cpu")
NAMES = ("t5", "t5-v1.1", "bart", "mbart", "marian")
UNTIED = ("t5-v1.1", "bart", "marian")

SOURCES = (
    [5, 9, 2, 5, 9, 2, 7, EOS],
    [40, 3, 3, 17, 40, 3, 22, 8, 31, 12, 6, EOS],
    [11, EOS],
    [50, 51, 52, 53, 50, 51, EOS],
    [33, 20, 33, EOS],
    [14, 15, 16, 14, 15, 16, 14, 15, 16, 14, EOS],
    [29, 28, 27, 26, EOS],
    [8, 44, 8, 44, 8, 44, EOS],
)

_T5: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": PAD,
}
_BART: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 64,
    "decoder_start_token_id": EOS,
    "bos_token_id": 2,
    "forced_eos_token_id": None,
}


@cache
def tiny(name: str) -> Any:
    """One of `NAMES` with random weights, norms and biases among them. Half of them have a head of
    their own: with the embeddings' transpose, random models repeat their last token."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = _make(name)
        if name in UNTIED:
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn_like(weight) * _noise(name, key, weight))
            for bias in _biases(model):
                bias.add_(torch.randn_like(bias) * 0.1)
    return model.eval()


_RELATIVE = {"relative": 3.0, "shared": 0.2, "lm_head": 1.0, "": 0.8}
_AFTER = {"embed_positions": 1.0, "shared": 1.0, "lm_head": 1.0, "_attn.": 0.2, "": 0.5}
NOISE = {
    "t5": _RELATIVE,
    "t5-v1.1": _RELATIVE,
    "bart": _AFTER,
    "mbart": _AFTER,
    "marian": {**_AFTER, "_attn.": 0.25, "": 0.15},
}
"""Of the matrices whose names hold a text, the first that fits: so that the texts to different
sources differ, and go on to differ."""


def _noise(name: str, key: str, weight: torch.Tensor) -> float:
    if weight.ndim == 1:
        return 0.1
    return next(noise for part, noise in NOISE[name].items() if part in key)


def _biases(model: Any) -> list[torch.Tensor]:
    """Buffers that are added to the logits."""
    return [buffer for name, buffer in model.named_buffers() if name == "final_logits_bias"]


def _make(name: str) -> Any:
    import transformers as tf

    ids = {"vocab_size": VOCAB, "pad_token_id": PAD, "eos_token_id": EOS}
    if name == "t5":
        return tf.T5ForConditionalGeneration(tf.T5Config(**ids, **_T5)).double()
    if name == "t5-v1.1":
        gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
        return tf.T5ForConditionalGeneration(tf.T5Config(**ids, **_T5, **gated)).double()
    if name == "bart":
        model = tf.BartForConditionalGeneration(tf.BartConfig(**ids, **_BART)).double()
        model.generation_config.forced_bos_token_id = 2
        return model
    if name == "mbart":
        config = tf.MBartConfig(**ids, **_BART, scale_embedding=True)
        return tf.MBartForConditionalGeneration(config).double()
    config = tf.MarianConfig(**ids, **_BART, scale_embedding=True, activation_function="swish")
    model = tf.MarianMTModel(config).double()
    model.generation_config.bad_words_ids = [[PAD]]
    return model


def native_of(model: Any, backend: str = "plain") -> Seq2Seq:
    """The native model with the weights of one of transformers."""
    weights = model.state_dict()
    begun = beginning(model.generation_config.to_dict(), model.config)
    return build_seq2seq(model.config, weights.__getitem__, model.dtype, CPU, backend, begun)


def related(model: Any, noise: float = 0.02) -> Any:
    """A copy with noise on its matrices."""
    other, random = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.ndim > 1 and weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=random, dtype=weight.dtype) * noise)
    return other


@torch.no_grad()
def theirs(model: Any, source: Seq[int], text: Seq[int]) -> torch.Tensor:
    """[T, V] transformers' logits after each token of a decoder's text, in one uncached pass."""
    logits: torch.Tensor = model(
        input_ids=torch.tensor([list(source)]),
        decoder_input_ids=torch.tensor([list(text)]),
        use_cache=False,
    ).logits[0]
    return logits


def begun(native: Seq2Seq, sources: Seq[Seq[int]], texts: Seq[Seq[int]]) -> tuple[Any, list[int]]:
    """A cache with these sources and texts read, and its slots, which aren't in order."""
    cache = native.new_cache(len(sources), 48, spare=16)
    slots = [cache.acquire(row) for row in range(len(sources))][::-1]
    native.read(sources, slots, cache)
    native.forward(chain_feed(cache, slots, texts, logits=False), cache)
    for slot, text in zip(slots, texts, strict=True):
        cache.lengths[slot] += len(text)
    return cache, slots


def written(model: Any, source: Seq[int], tokens: int) -> list[int]:
    """What transformers writes greedily after the model's opening, end-of-text token included."""
    opening = len(beginning(model.generation_config.to_dict(), model.config).opening)
    ids = model.generate(
        torch.tensor([list(source)]),
        do_sample=False,
        num_beams=1,
        max_new_tokens=tokens + opening - 1,
        use_cache=False,  # which lacks layers where a T5's decoder has more than its encoder
    )[0].tolist()
    return list(ids[opening:])
