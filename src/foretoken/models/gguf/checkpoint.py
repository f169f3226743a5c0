"""The tensors of a GGUF file under transformers' names, as `foretoken.models.checkpoint` has those
of a folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretoken.errors import shown
from foretoken.models.checkpoint import Header
from foretoken.models.gguf import blocks
from foretoken.models.gguf.names import FAMILIES, ROPE_FACTORS
from foretoken.models.gguf.reader import GGUFFile, Stored
from foretoken.models.native.backends.blocks import KINDS, Blocks
from foretoken.models.reads import Place

_NAMES = {dtype: name for name, dtype in blocks.FLOATS.items()}


class GGUFCheckpoint:
    """Each tensor is dequantised when it is asked for. `narrow`: to float16 where that is exact
    enough (see `blocks`), else to float32; what isn't quantised keeps its dtype. `whole`: matrices
    stay as they lie where there is a loop for their blocks."""

    def __init__(self, file: GGUFFile, narrow: bool, whole: bool = False) -> None:
        """Raises `ForetokenError` where it has a tensor that its architecture doesn't have, and for
        an architecture that isn't read here."""
        self._file, self._narrow, self._whole = file, narrow, whole
        if file.architecture not in FAMILIES:
            raise file.unserved(f"weights of {file.architecture} models are read by transformers")
        self._family = FAMILIES[file.architecture]
        self._stored: dict[str, str] = {}
        self.headers: dict[str, Header] = {}
        dtype = torch.float16 if narrow else torch.float32
        for stored, tensor in file.tensors.items():
            if stored == ROPE_FACTORS:  # which the configuration holds
                continue
            name = self._family.name_of(stored)
            if name is None:
                raise file.unserved(
                    f"tensor {shown(stored)} is none that a {file.architecture} model has here"
                )
            self._stored[name] = stored
            kind = _NAMES[blocks.FLOATS.get(tensor.kind.name, dtype)]
            self.headers[name] = Header(tensor.shape, kind, tensor.file)

    def __call__(self, name: str) -> Any:
        """The tensor of this name, or its `Blocks`; KeyError where there is none."""
        stored = self._stored[name]
        info = self._file.tensors[stored]
        if self._stays(info):
            lying = blocks.StoredBlocks(info)
            if not self._family.is_paired(stored):
                return lying
            return Blocks(self._halved(lying.data, stored), lying.kind, info.shape[1])
        return self._named(blocks.read(info, self._narrow), stored)

    def place(self, name: str) -> Place:
        """Where a tensor's bytes lie; KeyError where there is none."""
        info = self._file.tensors[self._stored[name]]
        return Place(info.file, info.start, info.size)

    def decoded(self, name: str, data: memoryview) -> Any:
        """The tensor of this name, or its `Blocks`, made of its bytes; blocks stand in them."""
        stored = self._stored[name]
        info = self._file.tensors[stored]
        if not self._stays(info):
            given = np.frombuffer(data, np.uint8)
            return self._named(blocks.decoded(given, info, self._narrow), stored)
        rows = torch.frombuffer(data, dtype=torch.uint8).view(info.shape[0], -1)
        rows = self._halved(rows, stored) if self._family.is_paired(stored) else rows
        return Blocks(rows, info.kind.name, info.shape[1])

    def _stays(self, info: Stored) -> bool:
        """Whether a tensor isn't dequantised."""
        return self._whole and info.kind.name in KINDS and len(info.shape) == 2

    def _named(self, tensor: Tensor, stored: str) -> Tensor:
        """A tensor of the file as transformers has it."""
        if shift := self._family.shift_of(stored):
            tensor = tensor - shift
        return self._halved(tensor, stored) if self._family.is_paired(stored) else tensor

    def header(self, name: str) -> Header:
        """What the file says of a tensor; KeyError where there is none."""
        return self.headers[name]

    def _halved(self, tensor: Tensor, stored: str) -> Tensor:
        """Each head's rows, which stand as (first, first of the second half, second …), in two
        halves."""
        key = "attention.head_count_kv" if "attn_k." in stored else "attention.head_count"
        metadata, prefix = self._file.metadata, f"{self._file.architecture}."
        heads = metadata.get(prefix + key, metadata.get(prefix + "attention.head_count"))
        if type(heads) is not int or heads < 1 or len(tensor) % (2 * heads):
            raise self._file.refusal(f"tensor {stored!r} has rows for no {shown(heads)} heads")
        pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)
