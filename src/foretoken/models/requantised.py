"""A copy of a model whose matrices have fewer bits, to draft for it on its own cache."""

from __future__ import annotations

from typing import Any

import torch

from foretoken.access import Access
from foretoken.errors import ForetokenError, unknown
from foretoken.models.model import eos_ids
from foretoken.models.native import backends, check, transformer
from foretoken.models.native.backends import blocks, quantise
from foretoken.models.native.backends.blocks import Blocks
from foretoken.models.native.build import build_native
from foretoken.models.native.transformer import Transformer
from foretoken.models.prune import opened
from foretoken.models.reduced_vocabulary import first_and_ends


def requantised(
    source: Any, backend: str, access: Access, vocab_size: int | None = None
) -> Transformer:
    """The copy, for `access`' target. source: a folder, GGUF file, hub id, bundled name or loaded
    transformers model; backend: one of `quantise.BACKENDS`; vocab_size: how many
    tokens its head knows, None for all (see `first_and_ends`).

    Where that backend can't run fast, which needs float32 on a CPU and the compiled loops, the copy
    has the same numbers and costs what the target does. Raises `ForetokenError` for a family that
    isn't served natively.
    """
    if backend not in quantise.BACKENDS:
        raise unknown("draft_backend", backend, quantise.BACKENDS)
    config, stored = opened(source, "substitute")
    if reason := transformer.unsupported(config):
        raise ForetokenError(f"The model can't be copied: {reason}; use method 'sps' with a model.")
    quantiser = quantise.BACKENDS[backend]
    fast = quantiser.supports(access.dtype, access.device) and blocks.has_loops()

    def read(name: str) -> Any:
        tensor = quantiser.stored(stored(name).cpu())
        if isinstance(tensor, Blocks) and not fast:
            return tensor(torch.arange(len(tensor)))
        return tensor

    fitted = check.fitted(read, check.tensors(config, check.shape_of(config)))
    name, ids = backend if fast else "plain", None
    if vocab_size is not None:
        ids = first_and_ends(vocab_size, config.vocab_size, eos_ids(config))
    return build_native(config, fitted, access.dtype, access.device, name, head_ids=ids)


assert set(quantise.BACKENDS) <= set(backends.NAMES)
