"""From named weights to the native model: what is fused, counted and refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cyclic_models import CYCLES, LAYERS, cyclic
from foretoken.errors import ForetokenError
from foretoken.models.native.build import build_native
from foretoken.models.native.check import CYCLE
from foretoken.testing import tiny_transformers

CPU = torch.device("cpu")


def built(model: Any, backend: str = "plain", **changes: Tensor) -> Any:
    weights = {**model.state_dict(), **changes}
    return build_native(model.config, weights.__getitem__, model.dtype, CPU, backend)


def test_what_goes_through_one_product() -> None:
    """Queries, keys and values are one product, gate and up another, in that order."""
    model = tiny_transformers(layers=1)
    [layer], reference = built(model).stack, model.model.layers[0]
    x = torch.randn(1, 3, 32, dtype=torch.float64)
    attention, mlp = reference.self_attn, reference.mlp
    with torch.no_grad():
        qkv = torch.cat(
            [each(x) for each in (attention.q_proj, attention.k_proj, attention.v_proj)], 2
        )
        torch.testing.assert_close(layer.qkv(x), qkv)
        both = torch.cat((mlp.gate_proj(x), mlp.up_proj(x)), 2)
        torch.testing.assert_close(layer.gate_up(x), both)


def test_biases_are_added_where_the_configuration_has_them() -> None:
    """Then all of a product's layers must have one; biases that it doesn't know are not read."""
    model = tiny_transformers(layers=1)
    names = [f"model.layers.0.self_attn.{n}_proj.bias" for n in "qkvo"]
    sizes = (32, 16, 16, 32)
    biases = {n: torch.randn(size).double() for n, size in zip(names, sizes, strict=True)}
    x = torch.randn(1, 3, 32, dtype=torch.float64)
    plain, unread = built(model).stack[0].qkv(x), built(model, **biases).stack[0].qkv(x)
    assert torch.equal(plain, unread)
    model.config.attention_bias = True
    biased = built(model, **biases).stack[0].qkv(x)
    added = torch.cat([biases[name] for name in names[:3]])
    torch.testing.assert_close(biased - plain, added.expand(1, 3, -1))
    del biases[names[1]]
    with pytest.raises(KeyError, match=r"k_proj\.bias"):
        built(model, **biases)


def test_counts() -> None:
    """Parameters as transformers counts them; a pass reads every matrix but the embedding, those of
    layers that repeat each time."""
    model = tiny_transformers(layers=2)
    ours = built(model)
    assert ours.parameters == sum(p.numel() for p in model.parameters())
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and "embed" not in n]
    assert ours.bytes_read == 8 * sum(p.numel() for p in matrices)
    repeated = built(cyclic())
    whole = built(tiny_transformers(layers=LAYERS * CYCLES))
    assert repeated.bytes_read == whole.bytes_read and repeated.parameters < whole.parameters


def test_a_narrow_embedding_stays_narrow() -> None:
    """As it was stored: its rows are widened when they are taken."""
    model = tiny_transformers(layers=1, dtype=torch.float32)
    narrow = model.state_dict()["model.embed_tokens.weight"].bfloat16()
    ours = built(model, **{"model.embed_tokens.weight": narrow})
    assert ours.embedding.nbytes == narrow.nbytes
    tokens = torch.tensor([[3, 50]])
    assert ours.embed(tokens).dtype == torch.float32
    assert torch.equal(ours.embed(tokens), narrow[tokens].float())


def test_what_is_missing_is_named() -> None:
    """A tensor that isn't there is a KeyError with its name; an unknown backend is an error."""
    model = tiny_transformers(layers=1)
    weights = dict(model.state_dict())
    del weights["model.layers.0.mlp.down_proj.weight"]
    with pytest.raises(KeyError, match=r"mlp\.down_proj"):
        build_native(model.config, weights.__getitem__, torch.float64, CPU, "plain")
    with pytest.raises(ForetokenError, match="Did you mean 'plain'"):
        built(model, "plainn")


@pytest.mark.parametrize("part", ["mlp.down_proj", "self_attn.q_proj", "input_layernorm"])
def test_repeating_layers_must_agree(part: str) -> None:
    """A layer that differs from the one it repeats is named, with its part: a product or a norm."""
    model = cyclic()
    name = f"model.layers.{LAYERS + 1}.{part}.weight"
    changed = model.state_dict()[name] + 1
    with pytest.raises(ForetokenError, match=rf"{part}\.weight of layer {LAYERS + 1} .* {CYCLE}"):
        built(model, **{name: changed})
