"""The encoder–decoders: shapes of T5 v1.1, batches, states and losses.

Legend: B pairs, S source tokens, T written tokens, D width, V vocabulary.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from prepare import EOS_ID, LENGTH, PAD_ID
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerFast, T5Config
from transformers import T5ForConditionalGeneration as T5
from transformers.activations import NewGELUActivation
from transformers.models.t5.modeling_t5 import T5LayerNorm


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


MULTIPLE = 16
"""Lengths are padded to multiples of it, so that few shapes occur."""
Arrays = tuple[Any, Any]
"""int16 [B, S] and [B, T]: ids of sources and of what is to be written, padded."""


class Batch(NamedTuple):
    """source: [B, S] ids. seen: [B, 1, 1, S] what is added to attention's scores: 0, or `UNSEEN`
    for padding. before, goal: [B, T] what the decoder reads, and what it is to write (`IGNORED`
    where nothing is). places: [N] where something is, in the flattened goal; known beforehand, as
    asking a GPU for it would wait for all that it was given."""

    source: Tensor
    seen: Tensor
    before: Tensor
    goal: Tensor
    places: Tensor


UNSEEN = -1e9
"""What leaves no attention; far from where bfloat16 ends, as kernels multiply scores."""


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
    return in_fewer_kernels(T5(config).train())


def base_of(folder: Path, device: torch.device) -> T5:
    """A frozen model of a Hugging Face folder."""
    model = in_fewer_kernels(T5.from_pretrained(folder, dtype=torch.float32))
    return model.eval().requires_grad_(False).to(device)


def in_fewer_kernels(model: T5) -> T5:
    """The same functions and weights: norms and activations are one kernel each, where
    transformers has six and eight. Small models wait for launches."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, T5LayerNorm):
                norm = nn.RMSNorm(len(child.weight), eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
            elif isinstance(child, NewGELUActivation):
                setattr(parent, name, nn.GELU(approximate="tanh"))
    return model


def with_decoder(base: T5, layers: int) -> T5:
    """A model with the base's encoder, embedding and head, all frozen, and a decoder of `layers`,
    which begins as the base's first and last ones."""
    config = copy.deepcopy(base.config)
    config.num_decoder_layers = layers
    model = in_fewer_kernels(T5(config).train())
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


def ids_of(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[Any]:
    """int16 ids of each, with its end."""
    plain = tokenizer.backend_tokenizer
    found = (encoding.ids for encoding in plain.encode_batch_fast(texts))
    return [np.array([*ids[: LENGTH - 1], EOS_ID][: len(ids)], np.int16) for ids in found]


def padded(texts: list[Any]) -> Any:
    """int16 [B, a multiple of `MULTIPLE`]."""
    longest = max(map(len, texts))
    ids = np.full((len(texts), -(-longest // MULTIPLE) * MULTIPLE), PAD_ID, np.int16)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    return ids


def batch_of(source: Any, written: Any, device: torch.device | str = "cpu") -> Batch:
    """Of padded ids. Nothing here waits for a GPU."""

    def there(array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        if torch.device(device).type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True).long()

    places, read, ids = there(np.flatnonzero(written != PAD_ID)), there(source), there(written)
    seen = torch.zeros(read.shape, device=device).masked_fill_(read == PAD_ID, UNSEEN)
    goal = ids.masked_fill(ids == PAD_ID, IGNORED)
    before = F.pad(ids[:, :-1], (1, 0), value=PAD_ID)
    return Batch(read, seen[:, None, None], before, goal, places)


def collate(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> Batch:
    """Of texts."""
    source, written = (padded(ids_of(tokenizer, [pair[i] for pair in pairs])) for i in (0, 1))
    return batch_of(source, written)


def encoded(model: T5, batch: Batch) -> Tensor:
    """[B, S, D] the encoder's states."""
    states: Tensor = model.encoder(batch.source, batch.seen).last_hidden_state
    return states


def decoded(
    model: T5, batch: Batch, read: Tensor, tokens: Tensor, mask: Tensor | None = None
) -> Tensor:
    """[B, T, D] the decoder's normed states at these tokens. mask: [B or 1, T, T] bool, which of
    them each one sees; by default those up to itself."""
    if mask is None:
        length = tokens.shape[1]
        mask = torch.ones(1, length, length, dtype=torch.bool, device=tokens.device).tril()
    additive = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, UNSEEN)
    out = model.decoder(
        input_ids=tokens,
        attention_mask=additive[:, None],
        encoder_hidden_states=read,
        encoder_attention_mask=batch.seen,
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state
    return states


def at_places(values: Tensor, places: Tensor) -> Tensor:
    """Of [B, T, ...], those at flat places [N]."""
    return values.flatten(0, 1).index_select(0, places)


def logits_of(model: T5, states: Tensor) -> Tensor:
    """[..., D] -> [..., V] float32."""
    if model.config.scale_decoder_outputs:
        states = states * model.config.d_model**-0.5
    logits: Tensor = model.lm_head(states).float()
    return logits


def loss_of(model: T5, batch: Batch) -> Tensor:
    """The mean loss of what is to be written."""
    states = decoded(model, batch, encoded(model, batch), batch.before)
    logits = logits_of(model, at_places(states, batch.places))
    return F.cross_entropy(logits, at_places(batch.goal, batch.places))


def save(model: T5, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """A Hugging Face folder, in float32."""
    model.generation_config = GenerationConfig(
        decoder_start_token_id=PAD_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
