"""Writes a checkpoint, a folder or another GGUF file, as a GGUF file in one format of blocks.

What is written is read again before it gets its name, and compared: a configuration or a tokenizer
that the format can't hold is refused, not changed. Keys and names: llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretoken.errors import ForetokenError, unknown
from foretoken.models.gguf import blocks, check
from foretoken.models.gguf.names import FAMILIES
from foretoken.models.gguf.parts import SUFFIX, number
from foretoken.models.gguf.reader import GGUFFile, Strings, check_installed
from foretoken.models.native.backends import quantise
from foretoken.models.native.backends.blocks import VALUES
from foretoken.progress import track_late

FORMATS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K": 14}
"""What matrices can be written in -> llama.cpp's number of it, as `general.file_type`."""

_VERSION = 2  # of the formats of blocks
_OTHERWISE = "Q5_0"  # in which llama.cpp has rows that Q4_K's blocks don't divide
_NOT_COPIED = ("general.alignment", "general.file_type", "general.quantization_version")


class Source(Protocol):
    """What is to be written. metadata: by key; shapes: of the tensors, by their names in the
    file."""

    architecture: str
    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    def tensor(self, name: str) -> Tensor:
        """In float32."""
        ...

    def check(self, file: GGUFFile) -> None:
        """Raise `ForetokenError` where a written file says anything else."""
        ...


def write(source: Source, out: Path, kind: str) -> dict[str, str]:
    """Write `out`, a new file. kind: one of `FORMATS`, for matrices.

    Returns the format of each tensor. Raises `ForetokenError` for what can't be written so.
    """
    check_installed(out)
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    if not str(out).endswith(SUFFIX) or out.exists():
        raise ForetokenError(f"{out} must be a new file whose name ends in {SUFFIX}.")
    if number(out.name):
        raise ForetokenError(f"{out} is the name of a part of a model; give another one.")
    kinds = {name: _kind_of(shape, kind) for name, shape in source.shapes.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(out.name + ".unfinished")
    try:
        _write(unfinished, source, kinds, kind)
        source.check(GGUFFile(unfinished))
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return kinds


def _kind_of(shape: tuple[int, ...], kind: str) -> str:
    """The format of a tensor: norms and biases stay what they are, and rows that don't divide into
    blocks take the next best."""
    if len(shape) != 2:
        return "F32"
    if kind not in VALUES or not shape[1] % VALUES[kind]:
        return kind
    return _OTHERWISE if not shape[1] % VALUES[_OTHERWISE] else "F16"


class FileSource:
    """Another GGUF file, of which all but its blocks stays as it is."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        check.language_model(self._file)
        self.architecture = self._file.architecture
        if self.architecture not in FAMILIES:
            raise ForetokenError(
                f"{path} is a {self.architecture} model, and {', '.join(FAMILIES)} can be written "
                "in other blocks; use llama-quantize."
            )
        self.shapes = {name: stored.shape for name, stored in self._file.tensors.items()}
        self.metadata = {
            key: self._file.strings(key) if isinstance(value, Strings) else value
            for key, value in self._file.metadata.items()
            if key not in _NOT_COPIED and not key.startswith("split.")
        }

    def tensor(self, name: str) -> Tensor:
        """In float32."""
        return blocks.read(self._file.tensors[name], narrow=False).float()

    def check(self, file: GGUFFile) -> None:
        """It is the same metadata."""


def _write(out: Path, made: Source, kinds: Mapping[str, str], kind: str) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

    with closing(GGUFWriter(out, made.architecture)) as writer:
        pairs = {**made.metadata, "general.file_type": FORMATS[kind]}
        for key, value in {**pairs, "general.quantization_version": _VERSION}.items():
            if key != "general.architecture":  # which the writer has written
                _add(writer, key, value)
        for name, shape in made.shapes.items():
            of = GGMLQuantizationType[kinds[name]]
            values, size = GGML_QUANT_SIZES[of]
            count = prod(shape) // values * size
            writer.add_tensor_info(name, shape, np.dtype(np.float32), count, of)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        with track_late(f"Writing {out.stem}", len(made.shapes)) as advance:
            for name in made.shapes:
                writer.write_tensor_data(_bytes(made.tensor(name), kinds[name]))
                advance()


def _bytes(tensor: Tensor, kind: str) -> NDArray[Any]:
    if kind in ("F32", "F16"):
        dtype = torch.float32 if kind == "F32" else torch.float16
        narrow = tensor.to(dtype)
        if kind == "F16" and not narrow.isfinite().all():
            most = float(tensor.abs().max())
            raise ForetokenError(
                f"A matrix has numbers as large as {most:.3g}, which F16 can't hold; give --format "
                "F32."
            )
        numbers: NDArray[Any] = narrow.contiguous().numpy()
        return numbers
    data: NDArray[Any] = quantise.quantised(tensor, kind).data.numpy()
    return data


def _add(writer: Any, key: str, value: Any) -> None:
    """A pair of metadata, by its type in Python."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        large = value >= 2**32
        add = writer.add_int32 if value < 0 else writer.add_uint64 if large else writer.add_uint32
        add(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:  # an array, which can't be empty
        writer.add_array(key, value)
