"""The 260 K-parameter stories model of llama2.c (Karpathy, MIT) as a checkpoint of transformers.

Tests that need its files are skipped without them: `stories260K.bin` (version 0: seven int32,
then float32 tensors; rotary pairs are neighbours) and `tok512.model` (sentencepiece).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretoken.bench.suites import data


def stories(folder: Path) -> Path:
    """Write model and tokenizer to `folder`."""
    texts = data.folder()
    if texts is None or not (source := texts / "weights" / "stories260k").is_dir():
        pytest.skip("FORETOKEN_DATA names no folder with the stories model")
    _model(source / "stories260K.bin").save_pretrained(folder)
    _tokenizer(source / "tok512.model").save_pretrained(folder)
    return folder


def _model(path: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    raw = path.read_bytes()
    width, ffn, layers, heads, kv_heads, vocab, length = struct.unpack("<7i", raw[:28])
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
    )
    values = torch.from_numpy(np.frombuffer(raw, "<f4", offset=28).copy())
    at, kv = 0, width * kv_heads // heads

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        at += int(np.prod(shape))
        return values[at - int(np.prod(shape)) : at].view(*shape)

    def halves(weight: torch.Tensor, n: int) -> torch.Tensor:
        """Rotary pairs (2i, 2i + 1) moved to (i, i + half)."""
        return weight.view(n, -1, 2, width).transpose(1, 2).reshape(weight.shape)

    state = {"model.embed_tokens.weight": take(vocab, width)}
    parts: list[tuple[str, tuple[int, ...], int]] = [
        ("input_layernorm", (width,), 0),
        ("self_attn.q_proj", (width, width), heads),
        ("self_attn.k_proj", (kv, width), kv_heads),
        ("self_attn.v_proj", (kv, width), 0),
        ("self_attn.o_proj", (width, width), 0),
        ("post_attention_layernorm", (width,), 0),
        ("mlp.gate_proj", (ffn, width), 0),
        ("mlp.down_proj", (width, ffn), 0),
        ("mlp.up_proj", (ffn, width), 0),
    ]
    for name, shape, pairs in parts:
        for layer, weight in enumerate(take(layers, *shape)):
            state[f"model.layers.{layer}.{name}.weight"] = (
                halves(weight, pairs) if pairs else weight
            )
    state["model.norm.weight"] = take(width)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model


def _tokenizer(path: Path) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = list(_pieces(path.read_bytes()))
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = [
        (piece[:i], piece[i:])
        for piece, _ in sorted(pieces[259:], key=lambda pair: -pair[1])
        for i in range(1, len(piece))
        if piece[:i] in ids and piece[i:] in ids
    ]
    inner = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def _pieces(raw: bytes) -> Iterator[tuple[str, float]]:
    """Piece and score of each id: field 1 of the file's message, whose fields 1 and 2 they are."""
    for number, message in _fields(raw):
        if number == 1:
            fields = dict(_fields(message))
            yield fields[1].decode(), struct.unpack("<f", fields.get(2, bytes(4)))[0]


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer's message: their numbers and contents."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (raw[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if raw[at - 1] < 128:
                return value

    while at < len(raw):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if key & 7 == 2 else 4
        at += size
        yield key >> 3, raw[at - size : at]
