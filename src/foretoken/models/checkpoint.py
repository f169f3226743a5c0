"""The weights in a folder: which files hold them, what each tensor is, and the tensors themselves.

Files are chosen as transformers chooses them. Their headers are read when the folder is opened, so
that shapes and dtypes can be compared with a configuration before any weight is in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.files import read_json
from foretoken.models.native.check import FLOATS
from foretoken.models.reads import Place

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BASE = "model."
"""What names of a model's tensors begin with, and those of its base model alone do not."""


_LAYER = re.compile(r"(?:model\.|transformer\.)?(?:layers|h)\.(\d+)\.")


class Header(NamedTuple):
    """What a file says of a tensor. dtype as safetensors names it: "F32", "BF16" …"""

    shape: tuple[int, ...]
    dtype: str
    file: Path


class Checkpoint:
    """The tensors of a folder's safetensors files, sharded or not, each read when asked for."""

    def __init__(self, folder: Path) -> None:
        """Raises `ForetokenError` where there are none, or a file is missing or damaged."""
        self.folder, self.headers = folder, dict[str, Header]()
        self._places: dict[Path, dict[str, Place]] = {}
        for file in _files(folder):
            for name, header in _headers(file):
                if name in self.headers:
                    raise ForetokenError(
                        f"Tensor {name!r} is in {self.headers[name].file.name} and in {file.name} "
                        f"of {folder}; remove the file that does not belong to the checkpoint."
                    )
                self.headers[name] = header
        self._check_names()

    def __call__(self, name: str) -> Tensor:
        """The tensor of this name; KeyError where there is none."""
        stored = self.name_of(name)
        # Opened each time, as a handle keeps every page that was read through it in memory.
        with safe_open(self.headers[stored].file, framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(stored)
        return tensor

    def place(self, name: str) -> Place:
        """Where a tensor's bytes lie; KeyError where there is none."""
        stored = self.name_of(name)
        file = self.headers[stored].file
        if file not in self._places:
            self._places[file] = _places(file)
        return self._places[file][stored]

    def decoded(self, name: str, data: memoryview) -> Tensor:
        """The tensor of this name, which stands in its bytes."""
        header = self.header(name)
        return torch.frombuffer(data, dtype=FLOATS[header.dtype]).view(header.shape)

    def header(self, name: str) -> Header:
        """What its file says of a tensor; KeyError where there is none."""
        return self.headers[self.name_of(name)]

    def name_of(self, name: str) -> str:
        """The name in the files, where "model." may be left out or put before: so transformers
        reads them. KeyError with `name` where the tensor isn't there."""
        for stored in (name, _twin(name)):
            if stored in self.headers:
                return stored
        raise KeyError(name)

    def _check_names(self) -> None:
        for name in self.headers:
            if (twin := _twin(name)) in self.headers:
                raise ForetokenError(
                    f"{self.folder} holds tensors {name!r} and {twin!r}, which stand for the same "
                    "weights; fetch the checkpoint again."
                )


def check_layers(names: Iterable[str], count: int) -> None:
    """Raises `ForetokenError` where some of these tensors belong to layers after the first
    `count`, which transformers would leave out with a warning."""
    matches = (_LAYER.match(name) for name in names)
    last = max((int(match[1]) for match in matches if match), default=0)
    if last >= count:
        raise ForetokenError(
            f"The files hold weights of layer {last}, and num_hidden_layers of the model's "
            f"configuration is {count}, which ends at layer {count - 1}; correct config.json, or "
            "fetch the checkpoint again."
        )


def has_safetensors(folder: Path) -> bool:
    """Whether transformers would read safetensors files in this folder."""
    return (folder / WHOLE).is_file() or (folder / INDEX).is_file()


def _twin(name: str) -> str:
    return name.removeprefix(BASE) if name.startswith(BASE) else BASE + name


def _files(folder: Path) -> list[Path]:
    """Those that transformers would read, or the only one that there is."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if (folder / INDEX).is_file():
        return _shards(folder)
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise ForetokenError(
            f"{folder} holds no *.safetensors weights; save the model with "
            "save_pretrained(..., safe_serialization=True)."
        )
    if len(files) > 1:
        raise ForetokenError(
            f"{folder} holds {len(files)} *.safetensors files and no {INDEX} that says which of "
            "them are the model; fetch the checkpoint again."
        )
    return files


def _shards(folder: Path) -> list[Path]:
    """The files that an index names."""
    listed = read_json(folder / INDEX, "an index of weights").get("weight_map")
    wrong = f"{folder / INDEX} can't be read as an index of weights"
    if not isinstance(listed, Mapping) or not listed:
        raise ForetokenError(f"{wrong}: it has no 'weight_map'; fetch it again.")
    for name in listed.values():
        if not isinstance(name, str) or PurePath(name).name != name or not 0 < len(name) < 256:
            raise ForetokenError(
                f"{wrong}: {shown(name)} is not the name of a file in the folder; fetch it again."
            )
    for name in sorted(set(listed.values())):
        if not (folder / name).is_file():
            raise ForetokenError(
                f"Shard {name} of {folder} is missing; fetch the checkpoint again."
            )
    return [folder / name for name in sorted(set(listed.values()))]


def _headers(file: Path) -> Iterator[tuple[str, Header]]:
    try:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (a handle is no mapping)
                part = handle.get_slice(name)
                yield name, Header(tuple(part.get_shape()), str(part.get_dtype()), file)
    except (SafetensorError, OSError) as error:
        raise ForetokenError(
            f"{file} is truncated or not a safetensors file; fetch it again."
        ) from error


def _places(file: Path) -> dict[str, Place]:
    """Of a file whose header was read: its length in eight bytes, the header in JSON, the bytes of
    the tensors, whose offsets count from there (safetensors' description of its format)."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    offsets = {name: given["data_offsets"] for name, given in header.items()}
    return {name: Place(file, 8 + size + a, b - a) for name, (a, b) in offsets.items()}
