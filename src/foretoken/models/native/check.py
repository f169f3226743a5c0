"""A checkpoint against its configuration: what is not as it must be is refused before it is used.

`numbers` looks at the configuration alone, `tensors` lists each tensor that it calls for with its
shape, `fitted` gives access to weights that agree with that list.

Legend: D width, H query heads, K key/value heads, W head width, F feed-forward, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.context import context
from foretoken.models.native import block
from foretoken.models.native.backends.blocks import Blocks
from foretoken.models.native.layer import Shape

Weights = Callable[[str], Tensor]
"""Name of a tensor -> the tensor as stored; KeyError where there is none."""

Stored = Callable[[str], Tensor | Blocks]
"""The same where matrices may be blocks of a GGUF file."""

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CYCLE = "layer_cycle"
"""In a config.json: after how many layers their weights repeat (Hooper et al. 2023)."""

LARGEST = 2**31 - 1
MOST_LAYERS = 10_000
_REMEDY = "correct the configuration, or fetch the checkpoint again"
_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
_COUNTS_OR_NONE = ("num_key_value_heads", "head_dim", "sliding_window", CYCLE)
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes of weights, by the names that safetensors has for them."""


def shape_of(config: Any) -> Shape:
    """The numbers that the forward needs. Raises `ForetokenError` where they make no model."""
    numbers(config)
    heads = config.num_attention_heads
    return Shape(
        width=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        max_length=context(config),
        embedding_scale=block.embedding_scale(config),
        logit_cap=block.cap(config, block.family(config).logit_cap),
    )


def numbers(config: Any) -> None:
    """Raises `ForetokenError` for a number that is none, not positive, or fits no other."""
    for name in (*_COUNTS, *_COUNTS_OR_NONE):
        most = MOST_LAYERS if name == "num_hidden_layers" else LARGEST
        count(name, getattr(config, name, None), most, none=name in _COUNTS_OR_NONE)
    eps, heads = config.rms_norm_eps, config.num_attention_heads
    if type(eps) not in (int, float) or not 0 <= eps < math.inf:
        raise _wrong("rms_norm_eps", eps, "a number from 0 on")
    family = block.family(config)
    for field in filter(None, (family.scale, family.score_cap, family.logit_cap)):
        _positive(field, getattr(config, field, None), none=field != family.scale)
    groups = getattr(config, "num_key_value_heads", None) or heads
    if heads % groups:
        raise _wrong("num_attention_heads", heads, f"a multiple of num_key_value_heads, {groups}")
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if width < 2 or width % 2:
        raise _wrong("head_dim", width, "even, as rotary positions turn pairs")
    kinds = block.types(config)
    if kinds is not None and len(kinds) != config.num_hidden_layers:
        many = config.num_hidden_layers
        raise _wrong("layer_types", f"a list of {len(kinds)}", f"one for each of {many} layers")
    window = getattr(config, "sliding_window", None)
    if kinds is not None and "sliding_attention" in kinds and window is None:
        raise _wrong("sliding_window", None, "a number, as layer_types lists sliding attention")


def of_layers(config: Any) -> list[Any]:
    """A configuration; or where its layers' numbers differ, as Gemma 4's do, one for each layer,
    as the whole one then doesn't say these numbers."""
    return list(config.per_layer_config) if getattr(config, "is_heterogeneous", False) else [config]


def count(name: str, given: Any, most: int = LARGEST, *, none: bool = False) -> None:
    """Raises `ForetokenError` for what is no whole number from 1 on; `none`: and not None."""
    if given is None and none:
        return
    if type(given) is not int or not 1 <= given <= most:
        raise _wrong(name, given, f"a whole number from 1 to {most}")


def _positive(name: str, given: Any, *, none: bool) -> None:
    if given is None and none:
        return
    if type(given) not in (int, float) or not 0 < given < math.inf:
        raise _wrong(name, given, "a number above 0")


def _wrong(name: str, given: Any, expected: str) -> ForetokenError:
    return ForetokenError(
        f"{name} of the model's configuration is {given!r:.80} and must be {expected}; {_REMEDY}."
    )


def tensors(config: Any, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Each tensor that may be read, with its shape; the head need not be there where it is tied."""
    expected = {
        EMBEDDING: (shape.vocab_size, shape.width),
        "model.norm.weight": (shape.width,),
        HEAD: (shape.vocab_size, shape.width),
    }
    for i in range(config.num_hidden_layers):
        for name, size in layer(config, shape).items():
            expected[f"model.layers.{i}.{name}"] = size
    return expected


def layer(config: Any, shape: Shape) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, as transformers' model of this family has them."""
    width, feed, head = shape.width, config.intermediate_size, shape.head_dim
    query, key = shape.heads * head, shape.kv_heads * head
    attention = {"q": (query, width), "k": (key, width), "v": (key, width), "o": (width, query)}
    mlp = {"gate": (feed, width), "up": (feed, width), "down": (width, feed)}
    products: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}_proj": size for name, size in attention.items()},
        **{f"mlp.{name}_proj": size for name, size in mlp.items()},
    }
    expected: dict[str, tuple[int, ...]] = {f"{n}.weight": size for n, size in products.items()}
    biased, family = block.biased(config), block.family(config)
    expected |= {f"{n}.bias": size[:1] for n, size in products.items() if n.startswith(biased)}
    expected |= {f"{norm}.weight": (width,) for norm in family.norms if norm}
    expected |= {f"{norm}.weight": (head,) for norm in block.head_norms(config) if norm}
    return expected


_Matrix = TypeVar("_Matrix", bound=Tensor | Blocks)


def fitted(
    stored: Callable[[str], _Matrix], expected: dict[str, tuple[int, ...]]
) -> Callable[[str], _Matrix]:
    """Access to those of the stored tensors that are expected; each is checked when it is read."""

    def get(name: str) -> _Matrix:
        size = expected[name]
        tensor = stored(name)
        agrees(name, tuple(tensor.shape), size)
        if isinstance(tensor, Tensor) and tensor.dtype not in FLOATS.values():
            raise _wrong_dtype(name, str(tensor.dtype).removeprefix("torch."))
        return tensor

    return get


def agrees(name: str, given: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises `ForetokenError` where a tensor has another shape than the configuration's."""
    if given != expected:
        raise ForetokenError(
            f"Tensor {name!r} has the shape {list(given)}, and the model's configuration calls for "
            f"{list(expected)}; {_REMEDY}."
        )


def check_dtype(name: str, given: str) -> None:
    """Raises `ForetokenError` where a file holds something else than floating-point numbers."""
    if given not in FLOATS:
        raise _wrong_dtype(name, given)


def _wrong_dtype(name: str, given: str) -> ForetokenError:
    return ForetokenError(
        f"Tensor {name!r} is stored as {given}, and weights are float64, float32, float16 or "
        "bfloat16; fetch the checkpoint again, or use one that isn't quantised."
    )
