"""Which of a target's sub-layers a drafter leaves out: given, in a file, or every second layer.

Sub-layer 2i is the attention of layer i and 2i + 1 its feed-forward. A file names the model that
it was searched for, by the signs of its embedding, which are the same in every dtype.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays


class Embedder(Protocol):
    """The part of `Access` and `CausalLM` that is read here."""

    vocab_size: int
    layers: int
    device: torch.device

    def embed(self, tokens: Tensor) -> Tensor: ...


_KIND = "layer set"
_TOKENS = 64  # whose embeddings tell a model from others


def every_second(layers: int) -> tuple[int, ...]:
    """Both sub-layers of every second layer, the first and the last kept (Xia et al. 2025)."""
    return tuple(s for layer in range(1, layers - 1, 2) for s in (2 * layer, 2 * layer + 1))


def skipped(given: str | Path | Seq[int] | None, model: Embedder) -> tuple[int, ...]:
    """The sub-layers to leave out. Raises `ForetokenError` for a set that is not this model's."""
    if given is None:
        return every_second(model.layers)
    if isinstance(given, (str, Path)):
        return load(given, model)
    return _checked(given, model)


def kept(left_out: Seq[int], layers: int) -> list[int]:
    """All 2L sub-layers but these."""
    return [s for s in range(2 * layers) if s not in left_out]


def save(path: str | Path, left_out: Seq[int], model: Embedder) -> None:
    """Write a set for this target."""
    write_arrays(path, _KIND, made_for(model), {"skipped": np.array(left_out, np.int32)})


def load(path: str | Path, model: Embedder) -> tuple[int, ...]:
    """A file's set. Raises `ForetokenError` for a damaged file or one of another model."""
    stored = read_arrays(path, _KIND, made_for(model), ("skipped",))["skipped"]
    return _checked(stored.tolist(), model)


def made_for(model: Embedder) -> dict[str, int | str]:
    """Numbers that identify a model."""
    tokens = torch.arange(min(_TOKENS, model.vocab_size), device=model.device)
    signs = (model.embed(tokens) > 0).cpu().numpy()
    fingerprint = hashlib.sha256(np.packbits(signs).tobytes()).hexdigest()[:16]
    return {"sublayers": 2 * model.layers, "model": fingerprint}


def _checked(left_out: Seq[int], model: Embedder) -> tuple[int, ...]:
    chosen = tuple(sorted(set(left_out)))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < 2 * model.layers:
        raise ForetokenError(
            f"skip names sub-layers {chosen[0]} to {chosen[-1]} and this target's are 0 to "
            f"{2 * model.layers - 1}; 2i is the attention of layer i, 2i + 1 its feed-forward."
        )
    return chosen
