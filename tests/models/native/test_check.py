"""A checkpoint against its configuration: shapes, dtypes and numbers, of all layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.native import check
from foretoken.models.native.build import build_native
from stored_models import FAMILIES, original

CPU = torch.device("cpu")


def built(config: Any, weights: dict[str, torch.Tensor]) -> Any:
    return build_native(config, weights.__getitem__, torch.float32, CPU, "auto")


@pytest.mark.parametrize(
    ("family", "more"),
    [*((family, {}) for family in FAMILIES), ("llama", {"attention_bias": True, "mlp_bias": True}),
     ("qwen3", {"attention_bias": True}), ("llama", {"num_hidden_layers": 12, "head_dim": 16})],
)  # fmt: skip
def test_what_is_called_for_is_what_transformers_has(family: str, more: dict[str, Any]) -> None:
    """Every name with its shape, none left out."""
    model = original(family, **more)
    expected = check.tensors(model.config, check.shape_of(model.config))
    assert expected == {name: tuple(x.shape) for name, x in model.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_of_another_shape_is_refused(family: str) -> None:
    """Each of them, of each layer: grown, cut, flat. A row more of layer 1's queries once wrote
    past the end of a buffer."""
    model = original(family)
    weights = model.state_dict()
    built(model.config, weights)
    for name, tensor in weights.items():
        for other in (torch.cat((tensor, tensor[:1])), tensor[:-1], tensor.flatten()[None]):
            with pytest.raises(ForetokenError, match=r"shape .* calls for") as caught:
                built(model.config, {**weights, name: other})
            assert repr(name) in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_weights_are_floating_point(dtype: torch.dtype) -> None:
    model = original("llama")
    name = "model.layers.1.mlp.down_proj.weight"
    weights = {**model.state_dict(), name: torch.zeros(64, 96).to(dtype)}
    with pytest.raises(ForetokenError, match=rf"down_proj.* is stored as {str(dtype)[6:]}"):
        built(model.config, weights)
    for fine in (torch.float16, torch.float64, torch.bfloat16):
        built(model.config, {**weights, name: weights[name].to(fine)})


COUNTS = (*check._COUNTS, *check._COUNTS_OR_NONE)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("given", [-1, 0, 1.0, True, "4", 2**31, [4]])
def test_counts_are_positive_whole_numbers(name: str, given: Any) -> None:
    """A number of heads below zero once ended the process."""
    config = copy.copy(original("llama").config)
    vars(config)[name] = given
    with pytest.raises(ForetokenError, match=f"^{name} of the model's configuration is ") as caught:
        check.shape_of(config)
    assert "must be a whole number from 1 to" in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "match"),
    [({"num_key_value_heads": 3}, "multiple of num_key_value_heads, 3"),
     ({"num_hidden_layers": 10_001}, "from 1 to 10000"),
     ({"head_dim": 31}, "must be even"),
     ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
     ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
     ({"rms_norm_eps": "x"}, "rms_norm_eps"),
     ({"layer_types": ["full_attention"]}, "one for each of 2 layers"),
     ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
     ({"intermediate_size": None}, "intermediate_size")],
)  # fmt: skip
def test_numbers_that_make_no_model(numbers: dict[str, Any], match: str) -> None:
    config = original("llama").config
    vars(config).update(numbers)
    with pytest.raises(ForetokenError, match=match):
        check.shape_of(config)


@pytest.mark.parametrize(
    "name", ["query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"]
)
@pytest.mark.parametrize("given", [0, -1.0, float("nan"), float("inf"), "x", True])
def test_scales_and_caps_are_positive_numbers(name: str, given: Any) -> None:
    config = original("gemma2").config
    vars(config)[name] = given
    with pytest.raises(ForetokenError, match=f"{name} .* must be a number above 0"):
        check.shape_of(config)
    vars(config)[name] = None
    if name == "query_pre_attn_scalar":
        with pytest.raises(ForetokenError, match=f"{name} .* must be a number above 0"):
            check.shape_of(config)
    else:
        check.shape_of(config)


def test_what_may_be_left_out() -> None:
    """Key/value heads and the width of a head follow from the rest."""
    config = original("qwen2").config
    vars(config).update(num_key_value_heads=None, head_dim=None, sliding_window=None)
    shape = check.shape_of(config)
    assert (shape.kv_heads, shape.head_dim) == (4, 16)
