"""The encoder–decoders: shapes of T5 v1.1, batches, states and losses.

Legend: B pairs, S source tokens, T written tokens, D width, V vocabulary.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from prepare import EOS_ID, LENGTH, PAD_ID
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, T5Config
from transformers import T5ForConditionalGeneration as T5


class Shape(NamedTuple):
    """Layers of encoder and decoder, width, units of a feed-forward, heads of 64."""

    encoder: int
    decoder: int
    width: int = 256
    feed: int = 640
    heads: int = 4


BASE, STUDENT = Shape(6, 6), Shape(2, 2, 128, 320, 2)
SHALLOW = 1  # decoder layers, beside the target's encoder
BLOCK = 2  # decoder layers of a block drafter, beside the target's encoder
IGNORED = -100


class Batch(NamedTuple):
    """source, seen: [B, S] ids and which are no padding. before, goal: [B, T] what the decoder
    reads, and what it is to write (`IGNORED` where nothing is)."""

    source: Tensor
    seen: Tensor
    before: Tensor
    goal: Tensor


def tokenizer_of(work: Path, task: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / task / "tokenizer")
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def new(shape: Shape, vocab: int) -> T5:
    config = T5Config(
        vocab_size=vocab,
        d_model=shape.width,
        d_kv=64,
        d_ff=shape.feed,
        num_layers=shape.encoder,
        num_decoder_layers=shape.decoder,
        num_heads=shape.heads,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=PAD_ID,
        n_positions=LENGTH,
    )
    return T5(config).train()


def with_decoder(base: T5, layers: int) -> T5:
    """A model with the base's encoder, embedding and head, all frozen, and a decoder of `layers`,
    which begins as the base's first and last ones."""
    config = copy.deepcopy(base.config)
    config.num_decoder_layers = layers
    model = T5(config).train()
    weights = model.state_dict()
    count = base.config.num_decoder_layers
    places = [0] if layers == 1 else [round(i * (count - 1) / (layers - 1)) for i in range(layers)]
    kept = {n: w for n, w in base.state_dict().items() if not n.startswith("decoder.block.")}
    for at, place in enumerate(places):
        old, now = f"decoder.block.{place}.", f"decoder.block.{at}."
        kept |= {
            n.replace(old, now, 1): w for n, w in base.state_dict().items() if n.startswith(old)
        }
    model.load_state_dict(weights | kept)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("decoder.")
    return model


def collate(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> Batch:
    """Padded to multiples of eight."""
    given = {"padding": True, "truncation": True, "pad_to_multiple_of": 8, "return_tensors": "pt"}
    sides = [tokenizer([pair[side] for pair in pairs], **given) for side in (0, 1)]
    source, written = sides
    ids, real = written["input_ids"], written["attention_mask"].bool()
    before = F.pad(ids[:, :-1], (1, 0), value=PAD_ID)
    return Batch(
        source["input_ids"], source["attention_mask"], before, ids.masked_fill(~real, IGNORED)
    )


def encoded(model: T5, batch: Batch) -> Tensor:
    """[B, S, D] the encoder's states."""
    states: Tensor = model.encoder(batch.source, batch.seen).last_hidden_state
    return states


def decoded(
    model: T5, batch: Batch, read: Tensor, tokens: Tensor, mask: Tensor | None = None
) -> Tensor:
    """[B, T, D] the decoder's normed states at these tokens. mask: [B, T, T] bool, which of them
    each one sees; by default those up to itself."""
    additive: Any = None
    if mask is not None:
        additive = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
        additive = additive[:, None]
    out = model.decoder(
        input_ids=tokens,
        attention_mask=additive,
        encoder_hidden_states=read,
        encoder_attention_mask=batch.seen,
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state
    return states


def logits_of(model: T5, states: Tensor) -> Tensor:
    """[..., D] -> [..., V] float32."""
    if model.config.scale_decoder_outputs:
        states = states * model.config.d_model**-0.5
    logits: Tensor = model.lm_head(states).float()
    return logits


def loss_of(model: T5, batch: Batch) -> Tensor:
    """The mean loss of what is to be written."""
    states = decoded(model, batch, encoded(model, batch), batch.before)
    chosen = batch.goal != IGNORED
    return F.cross_entropy(logits_of(model, states[chosen]), batch.goal[chosen])


def save(model: T5, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """A Hugging Face folder, in float32."""
    model.generation_config = GenerationConfig(
        decoder_start_token_id=PAD_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
