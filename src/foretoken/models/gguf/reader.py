"""What a GGUF file says of itself: its metadata, and where its tensors lie.

Everything in it is checked before it is believed: no count, length or offset leads outside the
file. The package `gguf` names the types and the sizes of their blocks; its own reader is not used,
as it takes seconds for a vocabulary and follows a false count until memory ends. A file that was
split (see `parts`) is opened by its first part, and has the tensors of all.
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
from foretoken.errors.extras import missing
from foretoken.models.gguf import parts

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # of tensors, where the file names no other
_TENSORS = "split.tensors.count"  # of all parts
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
    """A tensor. shape: as torch orders it. file, start, size: where its bytes lie."""

    file: Path
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


class GGUFFile:
    """path, files: all its parts, that at `path` the first; metadata: by key, arrays of texts as
    `Strings`; tensors: of all parts, by their names in the file."""

    def __init__(self, path: Path) -> None:
        """Raises `ForetokenError` where `gguf` isn't installed, for a file that is damaged, and
        where a part is missing or isn't this model's."""
        check_installed(path)
        self.path, self.files = path, parts.paths(path)
        self.metadata, self.tensors = _read(path)
        count = self.metadata.get("split.count", 1)
        if count in (0, 1):
            self.files = [path]
        elif count != len(self.files):
            raise ForetokenError(
                f"{path} is one of {shown(count)} parts by its metadata, and not by its name; give "
                "all parts the names back that they were split into: NAME-00001-of-…"
            )
        else:
            self._add_parts()

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

    def _add_parts(self) -> None:
        """The tensors of the other parts, each of which must say that it is one of these."""
        self._check_part(0, self.path, self.metadata)
        for index, path in enumerate(self.files[1:], 1):
            if not path.exists():
                raise ForetokenError(
                    f"{path} is missing, one of {len(self.files)} parts of a model; put it beside "
                    f"{self.path.name}."
                )
            metadata, tensors = _read(path)
            self._check_part(index, path, metadata)
            if twice := self.tensors.keys() & tensors.keys():
                raise self._unfit(path, f"tensor {shown(min(twice))} is in another part too")
            self.tensors |= tensors
        if len(self.tensors) != (many := self.metadata.get(_TENSORS)):
            raise ForetokenError(
                f"The parts of {self.path} have {len(self.tensors)} tensors together, and should "
                f"have {shown(many)}; fetch them again."
            )

    def _check_part(self, index: int, path: Path, metadata: Mapping[str, Any]) -> None:
        right: dict[str, Any] = {"split.no": index, "split.count": len(self.files)}
        right |= {key: self.metadata.get(key) for key in (_TENSORS, "general.architecture")}
        given = {"general.architecture": right["general.architecture"], **metadata}
        for key, value in right.items():
            if given.get(key) != value:
                said = f"its {key} is {shown(given.get(key))} and should be {shown(value)}"
                raise self._unfit(path, said)

    def _unfit(self, path: Path, what: str) -> ForetokenError:
        return ForetokenError(
            f"{path} is no part of the model that begins in {self.path.name}: {what}; fetch it "
            "again."
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
    """The file, whose header is parsed once for as long as it and its parts stay what they are:
    loading a model asks for it six times."""
    check_installed(path)
    return _opened(path, *map(_state, parts.paths(path)))


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file; nothing where there is none."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


@lru_cache(maxsize=2)  # a model's and its draft model's
def _opened(path: Path, *states: tuple[int, ...]) -> GGUFFile:
    return GGUFFile(path)


def check_installed(path: Path) -> None:
    """Raises `ForetokenError` where the package `gguf` is missing."""
    if find_spec("gguf") is None:
        raise missing("gguf", "gguf", f"{path} is a GGUF file, which needs")


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file can't be mapped
        reason = getattr(error, "strerror", None) or "it is empty"
        raise ForetokenError(f"{path} can't be read: {reason}.") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """The metadata and the tensors of one file."""
    with _mapped(path) as data:
        walk = _Walk(path, data)
        tensors, pairs = walk.opening()
        metadata = dict(walk.unique(walk.pair, pairs, "key"))
        infos = dict(walk.unique(walk.tensor, tensors, "tensor"))
        return metadata, walk.placed(infos, metadata.get("general.alignment", _ALIGNMENT))


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
        return Stored(self.path, shape, kind, start, bytes_)

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
