"""What a model is built of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.feed import chain_feed
from foretoken.models.seq2seq.beginning import Beginning
from foretoken.models.seq2seq.build import build_seq2seq, sinusoids
from seq2seq_models import CPU, EOS, NAMES, SOURCES, VOCAB, native_of, theirs, tiny


def test_sinusoids_are_marians() -> None:
    table = tiny("marian").model.decoder.embed_positions.weight
    assert torch.equal(sinusoids(*table.shape).double(), table)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_counted(name: str) -> None:
    """Each weight once, and of a pass the decoder's matrices, without what it makes of a source."""
    model: Any = tiny(name)
    native = native_of(model)
    fixed = {id(p) for n, p in model.named_parameters() if name == "marian" and "positions" in n}
    bias = 0 if name.startswith("t5") else VOCAB
    counted = sum(p.numel() for p in model.parameters() if id(p) not in fixed)
    assert native.parameters == counted + bias and native.eos_ids == {EOS}
    decoder = model.get_decoder()
    once = ("EncDecAttention.k", "EncDecAttention.v", "encoder_attn.k", "encoder_attn.v")
    read = sum(
        p.numel()
        for n, p in decoder.named_parameters()
        if p.ndim == 2
        and "embed" not in n
        and "relative" not in n
        and not any(x in n for x in once)
    )
    assert native.bytes_read == 8 * (read + model.lm_head.weight.numel())


def build(backend: str = "plain", changed: Any = None) -> Any:
    model = tiny("t5")
    weights = {**model.state_dict(), **(changed or {})}
    start = Beginning((0,))
    return build_seq2seq(model.config, weights.__getitem__, model.dtype, CPU, backend, start)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_tables_that_differ_are_refused(side: str) -> None:
    name = f"{side}.embed_tokens.weight"
    with pytest.raises(ForetokenError, match=f"embeddings differ .*{side}"):
        build(changed={name: tiny("t5").shared.weight + 1})


def test_the_table_under_any_of_its_names() -> None:
    model = tiny("t5")
    weights = model.state_dict()
    for name in ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        del weights[name]
    start = Beginning((0,))
    native = build_seq2seq(model.config, weights.__getitem__, model.dtype, CPU, "plain", start)
    assert torch.equal(native.embed(torch.tensor([7])), model.shared.weight[7:8])
    del weights["lm_head.weight"]
    with pytest.raises(KeyError, match=r"shared\.weight"):
        build_seq2seq(model.config, weights.__getitem__, model.dtype, CPU, "plain", start)


@pytest.mark.parametrize("backend", ["compiled+plain", "q4", "blocks"])
def test_backends_of_decoder_only_models_are_refused(backend: str) -> None:
    with pytest.raises(ForetokenError, match=f"'{backend.replace('+', '.')}' isn't one of"):
        build(backend)


def test_a_t5_whose_states_float16_cannot_hold() -> None:
    """Trained ones have such: what feed-forwards add stays in float32, as do the matrices that make
    it, as in transformers."""
    model = copy.deepcopy(tiny("t5-v1.1")).float()
    for name, weight in model.named_parameters():
        if name.endswith("wo.weight"):
            weight.data.mul_(1e5)
    found = logits(model, torch.float16).float()
    halved = copy.deepcopy(model).half()
    for name, module in halved.named_modules():
        if name.endswith(".wo"):  # which transformers leaves in float32 where it loads float16
            module.weight.data = model.get_submodule(name).weight.data
    for row, text in enumerate(TEXTS):
        expected = theirs(halved, SOURCES[row], text)[-1].float()
        assert torch.allclose(found[row, 0], expected, atol=0.01 * float(expected.abs().max()))


TEXTS = ([0, 5, 9], [0, 7])


def logits(model: Any, dtype: torch.dtype) -> torch.Tensor:
    """[B, 1, V] of the native model in this dtype, after texts to sources of different lengths."""
    weights, start = model.state_dict(), Beginning((0,))
    native = build_seq2seq(model.config, weights.__getitem__, dtype, CPU, "plain", start)
    cache = native.new_cache(2, 48)
    slots = [cache.acquire(row) for row in range(2)]
    native.read(SOURCES[:2], slots, cache)
    out = native.forward(chain_feed(cache, slots, TEXTS), cache)
    assert out.logits is not None
    return out.logits


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ForetokenError, match=r"'shared.weight' has the shape \[3, 16\]"):
        build(changed={"shared.weight": torch.zeros(3, 16)})


def test_an_unknown_activation_is_refused() -> None:
    config = copy.deepcopy(tiny("bart").config)
    config.activation_function = "tanh"
    with pytest.raises(ForetokenError, match="activation is 'tanh'"):
        build_seq2seq(
            config, dict[str, Any]().__getitem__, torch.float64, CPU, "plain", Beginning((0,))
        )


@pytest.mark.parametrize("name", ["t5", "t5-v1.1", "bart"])
def test_what_is_counted_in_half_precision(name: str) -> None:
    """The same weights, and a quarter of the bytes that they have in float64; in float16 the last
    matrices of T5's feed-forwards have a half of them."""
    model: Any = tiny(name)
    weights, start = model.state_dict().__getitem__, Beginning((0,))
    last = [w.numel() for n, w in model.get_decoder().named_parameters() if n.endswith("wo.weight")]
    whole = native_of(model)
    for dtype, more in ((torch.float16, 2), (torch.bfloat16, 0)):
        half = build_seq2seq(model.config, weights, dtype, CPU, "plain", start)
        assert half.bytes_read == whole.bytes_read // 4 + more * sum(last)
        assert half.parameters == whole.parameters
