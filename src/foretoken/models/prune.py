"""Structured pruning: a smaller copy of a model, without some heads and feed-forward columns.

Each layer keeps those whose weights have the largest norm: a key/value head together with the
query heads that read it (rows of q, k and v, columns of o), a column of the feed-forward layer with
its gate (rows of gate and up, a column of down). Nothing is trained afterwards.

Legend: K key/value heads, G query heads of each, W head width, F feed-forward columns.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.errors import ForetokenError
from foretoken.models.load import find, read_config, weights
from foretoken.models.model import CausalLM
from foretoken.models.native import check, transformer
from foretoken.models.native.backends import NAMES
from foretoken.models.native.build import build_native

_ROWS = re.compile(r"model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)_proj\.(weight|bias)")


class Kept(NamedTuple):
    """Indices that a layer keeps: rows of q, rows of k and v, feed-forward columns."""

    query: Tensor
    value: Tensor
    columns: Tensor


def prune(source: Any, heads: float, columns: float, access: Access) -> CausalLM:
    """The copy, with these shares of key/value heads and feed-forward columns, at least one each.

    source: a folder, GGUF file, hub id, bundled name or loaded transformers model of a family that
    is served natively. It runs where and as `access`' target does.
    """
    config, stored = opened(source, "pruned")
    if reason := transformer.unsupported(config):
        raise ForetokenError(f"The model can't be pruned: {reason}; use method 'sps' with a model.")
    small, shape = copy.deepcopy(config), check.shape_of(config)
    stored = check.fitted(stored, check.tensors(config, shape))
    groups, width = shape.heads // shape.kv_heads, shape.head_dim
    small.head_dim = width
    small.num_key_value_heads = max(1, round(heads * shape.kv_heads))
    small.num_attention_heads = groups * small.num_key_value_heads
    small.intermediate_size = max(1, round(columns * config.intermediate_size))
    pruned = _pruned(stored, small, groups, width)
    backend = access.backend if access.backend in NAMES else "auto"
    return build_native(small, pruned, access.dtype, access.device, backend)


def opened(source: Any, method: str) -> tuple[Any, check.Weights]:
    """Configuration and tensors of a checkpoint or of a loaded transformers model. Raises
    `ForetokenError`, for a method, where there is none."""
    if isinstance(source, (str, Path)):
        folder = find(source)
        return read_config(folder), weights(folder)
    if not isinstance(source, torch.nn.Module):
        raise ForetokenError(
            "It isn't known where the target's weights are from; name the checkpoint, e.g. "
            f'{{"method": "{method}", "checkpoint": "folder-or-hub-id"}}.'
        )
    held = source.state_dict()
    if any(".lora_" in name for name in held):
        raise ForetokenError(
            "The loaded model has adapters beside its weights; merge them (PEFT's "
            f"merge_and_unload) before method {method!r} makes a model of its weights."
        )
    return source.config, held.__getitem__


def _pruned(stored: check.Weights, small: Any, groups: int, width: int) -> check.Weights:
    """The stored weights, cut to the small configuration."""

    @cache
    def kept(layer: int) -> Kept:
        return _kept(stored, f"model.layers.{layer}", small, groups, width)

    def get(name: str) -> Tensor:
        tensor = stored(name)
        match = _ROWS.fullmatch(name)
        if match is None:
            return tensor
        stays, (_, matrix, part) = kept(int(match[1])), match.groups()
        if matrix in ("o", "down"):
            inside = stays.query if matrix == "o" else stays.columns
            return tensor if part == "bias" else tensor[:, inside]
        rows = {"q": stays.query, "k": stays.value, "v": stays.value}.get(matrix, stays.columns)
        return tensor[rows]

    return get


def _kept(stored: check.Weights, at: str, small: Any, groups: int, width: int) -> Kept:
    """What a layer keeps, by the sums of the squares of the weights."""

    def norms(name: str, dim: int) -> Tensor:
        return stored(f"{at}.{name}_proj.weight").float().square().sum(dim)

    query = norms("self_attn.q", 1) + norms("self_attn.o", 0)  # [K·G·W]
    value = norms("self_attn.k", 1) + norms("self_attn.v", 1)  # [K·W]
    heads = query.view(-1, groups * width).sum(1) + value.view(-1, width).sum(1)
    columns = norms("mlp.gate", 1) + norms("mlp.up", 1) + norms("mlp.down", 0)  # [F]
    staying = _largest(heads, small.num_key_value_heads)
    return Kept(
        _spans(staying, groups * width),
        _spans(staying, width),
        _largest(columns, small.intermediate_size),
    )


def _largest(norms: Tensor, count: int) -> Tensor:
    """Indices of the largest, in order."""
    return norms.topk(count).indices.sort().values


def _spans(blocks: Tensor, size: int) -> Tensor:
    """The rows of blocks of `size` rows."""
    return (blocks[:, None] * size + torch.arange(size, device=blocks.device)).flatten()
