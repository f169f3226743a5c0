"""What a GGUF file says of itself: its metadata, and where its tensors lie.

Everything in it is checked before it is believed: no count, length or offset leads outside the
file. The package `gguf` names the types and the sizes of their blocks; its own reader is not used,
as it takes seconds for a vocabulary and follows a false count until memory ends.
Format: "GGUF" in ggml's documentation (docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from foretoken.errors import ForetokenError, shown

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # of tensors, where the file names no other
_MOST_DIMENSIONS = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    kind: struct.Struct("<" + letter)
    for kind, letter in zip((0, 1, 2, 3, 4, 5, 6, _BOOL, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_LENGTH, _COUNTS = struct.Struct("<Q"), struct.Struct("<IQQ")


class Strings(NamedTuple):
    """An array of texts, which are read when they are asked for: `GGUFFile.strings`."""

    start: int
    many: int


class Stored(NamedTuple):
    """A tensor in the file. shape: as torch orders it. start, size: of its bytes."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


class GGUFFile:
    """path; metadata: by key, arrays of texts as `Strings`; tensors: by their names in the file."""

    def __init__(self, path: Path) -> None:
        """Raises `ForetokenError` where `gguf` isn't installed, and for a file that is damaged."""
        check_installed(path)
        self.path = path
        with _mapped(path) as data:
            walk = _Walk(path, data)
            tensors, pairs = walk.opening()
            self.metadata: Mapping[str, Any] = dict(walk.unique(walk.pair, pairs, "key"))
            infos = dict(walk.unique(walk.tensor, tensors, "tensor"))
            self._check_whole()
            self.tensors = walk.placed(infos, self.metadata.get("general.alignment", _ALIGNMENT))

    @property
    def architecture(self) -> str:
        """The family's name, as llama.cpp has it."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """A text of the metadata. Raises `ForetokenError` where there is none."""
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise self.refusal(f"{key} is {shown(value)} and must be a text")
        return value

    def strings(self, key: str) -> list[str]:
        """An array of texts of the metadata. Raises `ForetokenError` where there is none."""
        array = self.metadata.get(key)
        if not isinstance(array, Strings):
            raise self.refusal(f"it has no list of texts {key}")
        with _mapped(self.path) as data:
            walk = _Walk(self.path, data, array.start)
            return [walk.string() for _ in range(array.many)]

    def _check_whole(self) -> None:
        parts = self.metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise ForetokenError(
                f"{self.path} is one of {shown(parts)} parts; join them with llama-gguf-split."
            )

    def refusal(self, what: str) -> ForetokenError:
        """Of a file that is damaged."""
        return ForetokenError(f"{self.path} can't be read: {what}; fetch it again, or another.")

    def unserved(
        self, what: str, instead: str = "give the model's own checkpoint folder or hub id"
    ) -> ForetokenError:
        """Of a file that may well be whole."""
        return ForetokenError(f"{self.path} isn't served: {what}; {instead}.")


def opened(path: Path) -> GGUFFile:
    """The file, whose header is parsed once for as long as it stays what it is: loading a model
    asks for it six times."""
    check_installed(path)
    try:
        state = path.stat()
    except OSError:
        return GGUFFile(path)  # which says why
    return _opened(path, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=2)  # a model's and its draft model's
def _opened(path: Path, *state: int) -> GGUFFile:
    return GGUFFile(path)


def check_installed(path: Path) -> None:
    """Raises `ForetokenError` where the package `gguf` is missing."""
    if find_spec("gguf") is None:
        raise ForetokenError(f"{path} is a GGUF file, which needs: pip install 'foretoken[gguf]'.")


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file can't be mapped
        reason = getattr(error, "strerror", None) or "it is empty"
        raise ForetokenError(f"{path} can't be read: {reason}.") from error


class _Walk:
    """Reads one thing after the other, from `at` on, and nothing after the end."""

    def __init__(self, path: Path, data: mmap.mmap, at: int = 0) -> None:
        self.path, self._data, self._at = path, data, at

    def opening(self) -> tuple[int, int]:
        """How many tensors and how many pairs of metadata there are."""
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ForetokenError(f"{self.path} is no GGUF file: it doesn't begin with 'GGUF'.")
        self._at = len(_MAGIC)
        version, tensors, pairs = self._unpack(_COUNTS)
        if version not in _VERSIONS:
            other = "another byte order" if version & 0xFFFF == 0 else f"version {version}"
            raise self._damaged(f"it is of {other}, and read are versions 2 and 3, little-endian")
        return tensors, pairs

    def unique(self, read: Any, count: int, what: str) -> Iterator[tuple[str, Any]]:
        """`count` things that `read` gives, each with a name of its own."""
        seen: set[str] = set()
        for _ in range(count):
            name, value = read()
            if name in seen:
                raise self._damaged(f"{what} {shown(name)} is there twice")
            seen.add(name)
            yield name, value

    def pair(self) -> tuple[str, Any]:
        key = self.string()
        return key, self._value(self._number("<I"))

    def tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        """Name; shape as torch orders it, type, offset after the metadata."""
        name, dimensions = self.string(), self._number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self._damaged(f"tensor {shown(name)} has {dimensions} dimensions")
        shape = self._unpack(struct.Struct(f"<{dimensions}Q"))
        return name, (shape[::-1], self._number("<I"), self._number("<Q"))

    def placed(
        self, tensors: Mapping[str, tuple[tuple[int, ...], int, int]], alignment: Any
    ) -> dict[str, Stored]:
        """The tensors with their bytes, each of which lies in the file."""
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"its alignment is {shown(alignment)}, which is no power of two")
        begin = -(-self._at // alignment) * alignment
        return {name: self._placed(name, begin, *info) for name, info in tensors.items()}

    def _placed(
        self, name: str, begin: int, shape: tuple[int, ...], number: int, offset: int
    ) -> Stored:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise self._damaged(f"tensor {shown(name)} is of an unknown type, {number}") from error
        values, size = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % values:
            raise self._damaged(
                f"tensor {shown(name)} has the shape {list(shape)}, and {kind.name} has blocks of "
                f"{values} numbers"
            )
        bytes_, start = prod(shape) // values * size, begin + offset
        if start + bytes_ > len(self._data):
            raise self._damaged(f"tensor {shown(name)} ends after the file's end")
        return Stored(shape, kind, start, bytes_)

    def string(self) -> str:
        data, at = self._data, self._at
        start = at + _LENGTH.size
        if start > len(data):
            raise self._truncated()
        end = start + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise self._truncated()
        self._at = end
        try:
            return data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"a text at byte {start} isn't UTF-8") from error

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self._number("<I"), self._number("<Q"))
        return self._unpack(self._scalar(kind))[0]

    def _array(self, kind: int, count: int) -> Any:
        if kind == _STRING:
            return self._strings(count)
        scalar = self._scalar(kind)
        if count > (len(self._data) - self._at) // scalar.size:
            raise self._truncated()
        return list(self._unpack(struct.Struct(f"<{count}{scalar.format[1:]}")))

    def _strings(self, count: int) -> Strings:
        """Go past an array of texts."""
        data, at, length = self._data, self._at, _LENGTH.unpack_from
        array, last = Strings(at, count), len(data) - _LENGTH.size
        for _ in range(count):
            if at > last:
                raise self._truncated()
            at += _LENGTH.size + length(data, at)[0]
        if at > len(data):
            raise self._truncated()
        self._at = at
        return array

    def _scalar(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise self._damaged(f"a value of its metadata is of an unknown type, {kind}")
        return _SCALARS[kind]

    def _number(self, layout: str) -> int:
        return int(self._unpack(struct.Struct(layout))[0])

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        if self._at + layout.size > len(self._data):
            raise self._truncated()
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _truncated(self) -> ForetokenError:
        return self._damaged("it ends in the middle of its metadata")

    def _damaged(self, what: str) -> ForetokenError:
        return ForetokenError(f"{self.path} can't be read: {what}; fetch it again.")
