"""The names of a GGUF file's parts, as llama.cpp's gguf-split gives them: MODEL-00001-of-00003.gguf
and so on. The first has all metadata, and each has some of the tensors."""

from __future__ import annotations

import re
from pathlib import Path

from foretoken.errors import ForetokenError

SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def names(file: str) -> list[str]:
    """The names of a file's parts, its own the first; its own alone where it isn't named as a part.
    Raises `ForetokenError` for another part than the first, which llama.cpp doesn't take either."""
    model, number, count = _read(file)
    if number == 0:
        return [file]
    whole = [f"{model}-{part:05}-of-{count:05}{SUFFIX}" for part in range(1, count + 1)]
    if number != 1:
        raise ForetokenError(
            f"{file} is part {number} of {count} of a model; give the first, {whole[0]}."
        )
    return whole


def paths(path: Path) -> list[Path]:
    """`names`, of a file on disk."""
    return [Path(name) for name in names(str(path))]


def model_name(place: str | Path) -> str:
    """What a model is called by the name of its folder or file."""
    name = Path(place).name
    model, number, _ = _read(name)
    return model if number else name.removesuffix(SUFFIX)


def number(file: str) -> int:
    """Which part of a model a file is by its name, from 1 on; 0 for what isn't named as a part."""
    return _read(file)[1]


def _read(file: str) -> tuple[str, int, int]:
    """The model, which part of it, from 1 on, and of how many; 0 for what isn't named as a part."""
    match = _PART.fullmatch(file)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return file, 0, 0
    return match[1], int(match[2]), int(match[3])
