"""Loads an encoder–decoder from a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from foretoken.errors import ForetokenError
from foretoken.models import gguf
from foretoken.models.checkpoint import Checkpoint, warn_of_unread
from foretoken.models.native import check
from foretoken.models.native.backends import pages
from foretoken.models.seq2seq.beginning import read_beginning
from foretoken.models.seq2seq.build import build_seq2seq, tensors
from foretoken.models.seq2seq.family import FAMILIES, SIDES, Shape, lengthen, unsupported
from foretoken.models.seq2seq.model import Seq2Seq
from foretoken.progress import each_once, track_late

_LAYER = re.compile(r"(?:model\.)?(encoder|decoder)\.(?:layers|block)\.(\d+)\.")
_UNREAD = (
    "coder.embed_positions.weight",  # Marian's, which follow from the configuration
    "EncDecAttention.relative_attention_bias.weight",
    "coder.version",
)
"""How names end of tensors that old files have and no model reads, as transformers knows too."""


def load(
    folder: Path,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    model_impl: str = "auto",
    max_model_len: int | None = None,
) -> Seq2Seq:
    """max_model_len: the longest text, where that is more than the model's own (see `lengthen`).
    Raises `ForetokenError` for anything missing or not servable."""
    reason = unsupported(config)
    if gguf.is_named(folder):
        reason = "it is a GGUF file"
    elif model_impl == "transformers":
        reason = "transformers' code doesn't take the positions of a token tree"
    if reason:
        raise ForetokenError(
            f"{folder} is an encoder-decoder and can't be served: {reason}; use a folder of T5, "
            "BART, mBART or Marian with model_impl='auto', or a decoder-only model."
        )
    lengthen(config, max_model_len)
    beginning, stored = read_beginning(folder, config), Checkpoint(folder)
    try:
        _check_headers(stored, config)
        with pages.reusing(), track_late(f"Loading {folder.name}", len(stored.headers)) as advance:
            read = each_once(stored, advance)
            return build_seq2seq(config, read, dtype, device, backend, beginning, folder)
    except KeyError as error:
        raise ForetokenError(
            f"{folder} has no tensor {error.args[0]!r}, which its configuration calls for; the "
            "checkpoint is incomplete: fetch it again."
        ) from error


def _check_headers(stored: Checkpoint, config: Any) -> None:
    """Raises `ForetokenError` where files hold other shapes, or more layers, than a config calls
    for. Says where they hold other tensors, as a classifier's."""
    shape = FAMILIES[config.model_type].shape(config)
    expected = tensors(config, shape)
    for name, size in expected.items():
        if name in stored.headers:
            header = stored.header(name)
            check.agrees(name, header.shape, size)
            check.check_dtype(name, header.dtype)
    _check_layers(stored.headers, shape, stored.folder)
    told = {n: header for n, header in stored.headers.items() if not n.endswith(_UNREAD)}
    warn_of_unread(told, expected)


def _check_layers(names: Iterable[str], shape: Shape, folder: Path) -> None:
    last = dict.fromkeys(SIDES, -1)
    for match in filter(None, map(_LAYER.match, names)):
        last[match[1]] = max(last[match[1]], int(match[2]))
    for side in SIDES:
        if last[side] >= shape.side(side).layers:
            raise ForetokenError(
                f"{folder} holds weights of {side} layer {last[side]}, and its configuration ends "
                f"at layer {shape.side(side).layers - 1}; correct config.json, or fetch the "
                "checkpoint again."
            )
