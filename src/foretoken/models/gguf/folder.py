"""Writes what a GGUF file holds as a checkpoint folder, dequantised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.files import replacing, write_file
from foretoken.models.checkpoint import INDEX, WHOLE, Header
from foretoken.models.gguf import blocks, check, config, tokenizer
from foretoken.models.gguf.checkpoint import GGUFCheckpoint
from foretoken.models.gguf.names import FAMILIES
from foretoken.models.gguf.reader import GGUFFile

_SHARD = 2**31  # bytes of a file of weights, which are in memory together


def write(path: Path, out: Path) -> None:
    """Configuration, generation configuration, tokenizer and weights, as transformers saves them.

    Blocks become float16 where that is exact enough (see `blocks`). Raises `ForetokenError` for an
    architecture that isn't read here, and where the folder can't be written.
    """
    file = GGUFFile(path)
    check.language_model(file)
    if file.architecture not in FAMILIES:
        raise ForetokenError(
            f"{path} is a {file.architecture} model, and {', '.join(FAMILIES)} can be written as a "
            "folder; use the model's own checkpoint folder."
        )
    made, stored = config.read(file), GGUFCheckpoint(file, narrow=True)
    words = tokenizer.read(file)  # before anything is written, as what is refused leaves nothing
    out.mkdir(parents=True, exist_ok=True)
    _write_weights(stored, out)
    made.architectures = [_class_name(made)]
    made.save_pretrained(out)
    _generation(file, made).save_pretrained(out)
    words.save_pretrained(out)


def _class_name(made: Any) -> str:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return type(AutoModelForCausalLM.from_config(made)).__name__


def _generation(file: GGUFFile, made: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        bos_token_id=made.bos_token_id,
        eos_token_id=sorted(config.ends(file)) or None,
        pad_token_id=made.pad_token_id,
    )


def _write_weights(stored: GGUFCheckpoint, out: Path) -> None:
    """One file, or several with an index."""
    shards = list(_shards(stored.headers))
    if len(shards) == 1:
        _write_shard(out / WHOLE, stored, shards[0])
        return
    places: dict[str, str] = {}
    for i, names in enumerate(shards, 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        _write_shard(out / name, stored, names)
        places |= dict.fromkeys(names, name)
    total = sum(_size(header) for header in stored.headers.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    write_file(out / INDEX, json.dumps(index, indent=2) + "\n")


def _write_shard(file: Path, stored: GGUFCheckpoint, names: list[str]) -> None:
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {name: stored(name).contiguous() for name in names}
    with replacing(file) as opened:
        opened.write(save(tensors, metadata={"format": "pt"}))


def _shards(headers: Mapping[str, Header]) -> Iterator[list[str]]:
    """The tensors' names, in groups of at most `_SHARD` bytes where more than one is in a group."""
    names: list[str] = []
    size = 0
    for name, header in headers.items():
        if names and size + _size(header) > _SHARD:
            yield names
            names, size = [], 0
        names.append(name)
        size += _size(header)
    yield names


def _size(header: Header) -> int:
    return prod(header.shape) * blocks.FLOATS[header.dtype].itemsize
