"""Pruned copies of a model: their shape, and what is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from foretoken import ForetokenError
from foretoken.models.prune import _kept, opened, prune
from foretoken.models.target import ModelTarget
from foretoken.testing import logits_after, native, tiny_transformers
from foretoken.testing.checks import PROMPTS
from foretoken.testing.models import Pair
from partial_target import LAYERS
from stored_models import original


def test_pruned_whole_is_the_model(deep: Pair) -> None:
    """All heads and columns kept is the target itself; a share of them has that shape."""
    target = ModelTarget(deep.target, 1, 64)
    text = PROMPTS[0]
    whole = prune(deep.transformers, 1.0, 1.0, target)
    assert torch.equal(logits_after(whole, text), logits_after(deep.target, text))
    small = prune(deep.transformers, 0.5, 0.25, target)
    # Of a layer's 32·32 weights of q and o and 32·16 of k and v half, of 3·32·64 a quarter.
    gone = LAYERS * ((2 * 32 * 32 + 2 * 32 * 16) // 2 + 3 * 32 * 64 * 3 // 4)
    assert small.parameters == deep.target.parameters - gone
    # Heads are counted to the nearest number, and one column stays at least.
    least = prune(deep.transformers, 0.75, 0.001, target)
    assert least.parameters == deep.target.parameters - LAYERS * 3 * 32 * 63
    assert not torch.allclose(logits_after(small, text), logits_after(deep.target, text))


def test_what_is_pruned_is_what_weighs_least(deep: Pair) -> None:
    """Columns and heads without weight go first, so that leaving them out changes nothing."""
    import copy

    model = copy.deepcopy(deep.transformers)
    with torch.no_grad():
        for layer in model.model.layers:
            for rows in (layer.mlp.gate_proj, layer.mlp.up_proj):
                rows.weight[::2] = 0
            layer.mlp.down_proj.weight[:, ::2] = 0
            attention = layer.self_attn
            attention.q_proj.weight[:16] = 0  # the two query heads of the first key/value head
            attention.o_proj.weight[:, :16] = 0
            attention.k_proj.weight[:8] = 0
            attention.v_proj.weight[:8] = 0
    target = ModelTarget(native(model), 1, 64)
    small = prune(model, 0.5, 0.5, target)
    expected = logits_after(target.model, PROMPTS[0])
    assert torch.allclose(logits_after(small, PROMPTS[0]), expected, atol=1e-10)


def test_biases_of_outputs_stay(deep: Pair) -> None:
    """They are of the states, of which none is left out."""
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        mlp_bias=True,
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.2 * torch.randn_like(weight))
    target = ModelTarget(native(model), 1, 64)
    whole = prune(model, 1.0, 1.0, target)
    assert torch.equal(logits_after(whole, [3, 9]), logits_after(target.model, [3, 9]))


def test_keys_and_values_count_for_a_head() -> None:
    """Here for the second one, whose queries are smaller."""
    ones = torch.ones
    read = torch.cat((0 * ones(4, 3), 2 * ones(4, 3)))
    stored = {"q": torch.cat((1.1 * ones(8, 3), ones(8, 3))), "o": ones(3, 16), "k": read}
    given = {f"at.self_attn.{name}": weight for name, weight in {**stored, "v": read}.items()}
    given |= {"at.mlp.gate": ones(2, 3), "at.mlp.up": ones(2, 3), "at.mlp.down": ones(3, 2)}
    weights = {f"{name}_proj.weight": weight for name, weight in given.items()}
    small: Any = SimpleNamespace(num_key_value_heads=1, intermediate_size=1)
    kept = _kept(weights.__getitem__, "at", small, groups=2, width=4)
    assert kept.query.tolist() == [*range(8, 16)] and kept.value.tolist() == [4, 5, 6, 7]


def test_outputs_count_too() -> None:
    """Those of heads and those of columns: here of the second ones."""
    ones = torch.ones
    out, down = torch.cat((ones(3, 8), 2 * ones(3, 8)), 1), torch.tensor([[1.0, 2.0]] * 3)
    given = {"self_attn.q": ones(16, 3), "self_attn.o": out, "mlp.down": down}
    given |= {f"self_attn.{name}": ones(8, 3) for name in "kv"}
    given |= {f"mlp.{name}": ones(2, 3) for name in ("gate", "up")}
    weights = {f"at.{name}_proj.weight": weight for name, weight in given.items()}
    small: Any = SimpleNamespace(num_key_value_heads=1, intermediate_size=1)
    kept = _kept(weights.__getitem__, "at", small, groups=2, width=4)
    assert kept.query.tolist() == [*range(8, 16)] and kept.columns.tolist() == [1]


def test_heads_keep_their_width() -> None:
    """Also in a family whose configurations don't name it."""
    model = original("qwen2", head_dim=16).double()
    del model.config.head_dim
    target = ModelTarget(native(model), 1, 64)
    small = prune(model, 0.5, 1.0, target)
    # Of a layer's 64·64 weights of q and o and 64·32 of k and v half, and of the biases.
    gone = 2 * ((2 * 64 * 64 + 2 * 64 * 32) // 2 + (64 + 2 * 32) // 2)
    assert small.parameters == target.model.parameters - gone


def test_adapters_beside_the_weights_are_refused() -> None:
    """They would be left out."""
    peft = pytest.importorskip("peft")
    model = tiny_transformers(61)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ForetokenError, match=r"adapters beside its weights; merge them"):
        opened(model, "pruned")
