"""The weights in a folder: which files hold them, what each tensor is, and the tensors themselves.

Files are chosen as transformers chooses them: safetensors by their usual names, else torch's own
(pickled); else it is the only safetensors file. Their headers are read when the folder is opened,
so that shapes and dtypes can be compared with a configuration before any weight is in memory.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foretoken.errors import ForetokenError, one_line, shown
from foretoken.files import read_json
from foretoken.models.native.check import FLOATS
from foretoken.models.reads import Place

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TORCH, _BIN, _INDEX = "pytorch_model", ".bin", ".index.json"
WEIGHTS, PICKLED = "*.safetensors", f"{_TORCH}*{_BIN}"
"""Patterns of weights, and of torch's own files of them."""
BASE = "model."
"""What names of a model's tensors begin with, and those of its base model alone do not."""

_log = logging.getLogger(__name__)
_NAMES = {dtype: name for name, dtype in FLOATS.items()}
_LAYER = re.compile(r"(?:model\.|transformer\.)?(?:layers|h)\.(\d+)\.")


class Header(NamedTuple):
    """What a file says of a tensor. dtype as safetensors names it: "F32", "BF16" …"""

    shape: tuple[int, ...]
    dtype: str
    file: Path


class Checkpoint:
    """The tensors of a folder's files, sharded or not, each read when asked for."""

    def __init__(self, folder: Path) -> None:
        """Raises `ForetokenError` where there are none, or a file is missing or damaged."""
        self.folder, self.headers = folder, dict[str, Header]()
        self.files = _files(folder)
        """Those that it is read from, an index among them."""
        self._places: dict[Path, dict[str, Place]] = {}
        self._pickled: dict[Path, dict[str, Tensor]] = {}
        for file in self.files:
            if file.name.endswith(_INDEX):
                continue
            if file.suffix == _BIN:
                self._pickled[file] = _unpickled(file)
            for name, header in _headers(file, self._pickled.get(file)):
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
        if pickled := self._pickled.get(self.headers[stored].file):
            return pickled[stored]
        # Opened each time, as a handle keeps every page that was read through it in memory.
        with safe_open(self.headers[stored].file, framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(stored)
        return tensor

    def place(self, name: str) -> Place:
        """Where a tensor's bytes lie; KeyError where there is none. Raises `ForetokenError` for
        pickled ones, which can't be read by places."""
        stored = self.name_of(name)
        file = self.headers[stored].file
        if file in self._pickled:
            raise ForetokenError(
                f"{file} can't be read layer by layer, as it is pickled; save the model with "
                "save_pretrained, or leave weights_memory out."
            )
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


def check_layers(names: Iterable[str], count: int, ahead: int = 0) -> None:
    """Raises `ForetokenError` where some of these tensors belong to layers after the first
    `count`, which transformers would leave out with a warning. ahead: layers after these that a
    checkpoint may have for predicting further tokens (MTP)."""
    matches = (_LAYER.match(name) for name in names)
    last = max((int(match[1]) for match in matches if match), default=0)
    if last >= count + ahead:
        raise ForetokenError(
            f"The files hold weights of layer {last}, and num_hidden_layers of the model's "
            f"configuration is {count}, which ends at layer {count - 1}; correct config.json, or "
            "fetch the checkpoint again."
        )


def warn_of_unread(stored: Mapping[str, Header], read: Collection[str]) -> None:
    """Say that there are tensors that a model doesn't read: transformers leaves them out too, and
    says so."""
    known = {*read, *map(_twin, read)}
    others = [name for name in stored if name not in known and not follows(name)]
    if others:
        _log.warning(
            "%s has %d tensors that its configuration doesn't call for, such as %s: they are left "
            "out, and if they are part of the model, its texts are not the model's.",
            stored[others[0]].file.parent,
            len(others),
            shown(min(others)),
        )


def follows(name: str) -> bool:
    """Whether a tensor follows from the configuration: rotary frequencies, which old files have."""
    return "inv_freq" in name


def check_no_adapter(folder: Path) -> None:
    """Raises `ForetokenError` for a folder of PEFT's: transformers would apply what is in it, and
    nobody else does."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    if (folder / "config.json").is_file():
        raise ForetokenError(
            f"{folder} holds an adapter beside a model; merge it into the weights (PEFT's "
            "merge_and_unload), or move its files away."
        )
    model = read_json(file, "an adapter's configuration").get("base_model_name_or_path")
    raise ForetokenError(
        f"{folder} holds an adapter of {shown(model) if model else 'a model'} and no model; merge "
        "it into the weights (PEFT's merge_and_unload), and give the folder that is saved then."
    )


def downloaded(source: str, wanted: Sequence[str], without: Sequence[str]) -> Path:
    """The folder of a repository of the hub, its files fetched that fit `wanted` and not `without`,
    unless they are cached. Weights, if they are wanted, are pickled ones too where transformers
    would read no others."""
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, source, ignore_patterns=[*without])
    folder = Path(fetch(allow_patterns=[*wanted]))
    if WEIGHTS in wanted and (folder / "config.json").is_file() and not has_safetensors(folder):
        folder = Path(fetch(allow_patterns=[*wanted, PICKLED]))
    return folder


def has_safetensors(folder: Path) -> bool:
    """Whether transformers would read safetensors files in this folder."""
    if (named := _named(folder)) is not None:
        return named.removesuffix(_INDEX).endswith(".safetensors")
    return (folder / WHOLE).is_file() or (folder / INDEX).is_file()


def _twin(name: str) -> str:
    return name.removeprefix(BASE) if name.startswith(BASE) else BASE + name


def _named(folder: Path) -> str | None:
    """The file of weights that config.json names (`transformers_weights`); None where it names
    none."""
    if not (folder / "config.json").is_file():
        return None
    named = read_json(folder / "config.json", "a configuration").get("transformers_weights")
    if named is None:
        return None
    if not isinstance(named, str) or PurePath(named).name != named:
        raise ForetokenError(
            f"{folder / 'config.json'} has {shown(named)} as transformers_weights, and only a file "
            "of the folder itself is read; put it there."
        )
    return named


def _files(folder: Path) -> list[Path]:
    """Those that transformers would read, or the only one that there is; an index, too."""
    if (named := _named(folder)) is not None:
        if named.endswith(_INDEX):
            return _shards(folder, named)
        if not (folder / named).is_file():
            raise ForetokenError(
                f"{folder / 'config.json'} names {shown(named)} as the weights, and it isn't "
                "there; fetch the checkpoint again."
            )
        return [folder / named]
    for name in (WHOLE, INDEX, f"{_TORCH}{_BIN}", f"{_TORCH}{_BIN}{_INDEX}"):
        if (folder / name).is_file():
            return _shards(folder, name) if name.endswith(_INDEX) else [folder / name]
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise ForetokenError(
            f"{folder} holds no *.safetensors weights; save the model with "
            "save_pretrained(..., safe_serialization=True), or give a GGUF file of its repository, "
            "as org/name/model.gguf."
        )
    if len(files) > 1:
        raise ForetokenError(
            f"{folder} holds {len(files)} *.safetensors files and no {INDEX} that says which of "
            "them are the model; fetch the checkpoint again."
        )
    return files


def _shards(folder: Path, index: str) -> list[Path]:
    """An index and the files that it names."""
    listed = read_json(folder / index, "an index of weights").get("weight_map")
    wrong = f"{folder / index} can't be read as an index of weights"
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
    return [folder / index, *(folder / name for name in sorted(set(listed.values())))]


def _headers(file: Path, pickled: Mapping[str, Tensor] | None) -> Iterator[tuple[str, Header]]:
    if pickled is not None:
        for name, tensor in pickled.items():
            kind = _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
            yield name, Header(tuple(tensor.shape), kind, file)
        return
    try:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (a handle is no mapping)
                part = handle.get_slice(name)
                yield name, Header(tuple(part.get_shape()), str(part.get_dtype()), file)
    except (SafetensorError, OSError) as error:
        raise ForetokenError(
            f"{file} is truncated or not a safetensors file; fetch it again."
        ) from error


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of one of torch's own files, mapped where they can be. Raises `ForetokenError`
    for one with anything else in it, of which nothing is run."""
    try:
        mapped = zipfile.is_zipfile(file)  # what torch wrote before 1.6 can't be
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        if not all(isinstance(tensor, Tensor) and _is_dense(tensor) for tensor in found.values()):
            raise TypeError("it holds something else than tensors of numbers")
    except Exception as error:
        raise ForetokenError(
            f"{file} can't be read as a model's weights ({one_line(error)}); fetch it again."
        ) from error
    return {str(name): tensor.detach() for name, tensor in found.items()}


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu"


def _places(file: Path) -> dict[str, Place]:
    """Of a file whose header was read: its length in eight bytes, the header in JSON, the bytes of
    the tensors, whose offsets count from there (safetensors' description of its format)."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    offsets = {name: given["data_offsets"] for name, given in header.items()}
    return {name: Place(file, 8 + size + a, b - a) for name, (a, b) in offsets.items()}
