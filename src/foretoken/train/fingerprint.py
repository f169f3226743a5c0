"""What tells a target from others of its shape: a hash of its files, wherever they lie.

Texts, states and a training are made for one target's weights. These are read from the files, as a
loaded model has them in the dtype and the layout of its backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from foretoken.models.load import find

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_CONFIG = "config.json"
_PIECES, _PIECE = 4096, 64  # of a file: bytes of a piece, and how many lie evenly over it


def fingerprint(target: str) -> str:
    """16 hex digits of the weights and the configuration of a folder, hub id, bundled name or GGUF
    file. Of a large file pieces all over it are read, in which every large matrix has some."""
    place = find(target)
    digest = hashlib.sha256()
    for file in [place] if place.is_file() else _files(place):
        size = file.stat().st_size
        digest.update(f"{size}\0".encode())
        with file.open("rb") as opened:
            for start in _starts(size):
                opened.seek(start)
                digest.update(opened.read(_PIECE))
    return digest.hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    names = (path for path in folder.iterdir() if path.suffix in _WEIGHTS or path.name == _CONFIG)
    return sorted(path for path in names if path.is_file())


def _starts(size: int) -> Iterator[int]:
    """Where the pieces begin: one after the other in a small file, else evenly, the last at the
    end."""
    if size <= _PIECES * _PIECE:
        return iter(range(0, size, _PIECE))
    return (i * (size - _PIECE) // (_PIECES - 1) for i in range(_PIECES))
