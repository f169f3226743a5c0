"""Files: written whole or not at all, JSON read with one sentence for what is wrong, and arrays.

A file of arrays says what it is: it is how drafters keep what they learned or were given. It is one
.npz file: the arrays, and a header in JSON that names the kind of thing, the format's version and
what it was made for (a vocabulary's size, a layer count …). Each part has zip's checksum, and
nothing in the file is ever run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from zipfile import BadZipFile

from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[np.integer]"]
"""Whole numbers by name."""

MARK = "\ufeff"
"""The byte order mark that some editors put first, which is no part of a text."""

_HEADER = "header"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".npz", ".json")
_PIECES, _PIECE = 4096, 64  # of a large file: how many pieces are read, and their bytes
DAMAGE = (BadZipFile, EOFError, KeyError, TypeError, ValueError, zlib.error)
"""What reading a damaged file of arrays raises."""


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends without an error.

    Until then it has another name in the same folder; a reader finds the old file or the new one,
    never half of one, even after a power failure. Raises `ForetokenError` where the folder doesn't
    exist or can't be written to.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ForetokenError(f"{path} can't be written: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def utf8(text: str) -> bytes:
    """A text's bytes. Halves of surrogate pairs, which UTF-8 hasn't, become escapes such as
    \\ud83d: in JSON they are read back as what they were."""
    return text.encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder, made if need be, for this process alone: until the block or the process ends.

    Raises `ForetokenError`, with the number of the process, where another one has it, and where it
    can't be made or locked.
    """
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise ForetokenError(f"{folder} can't be written to: {error.strerror}.") from error
    with file:
        try:
            _lock(file, path)
        except (BlockingIOError, FileNotFoundError) as error:
            file.seek(0)
            raise ForetokenError(
                f"{folder} is in use by process {file.read() or 'that has just begun'}; wait until "
                "it ends, or give another folder."
            ) from error
        except OSError as error:
            raise ForetokenError(
                f"{folder} can't be locked: {error.strerror}; give another folder."
            ) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def check_new_folder(path: Path) -> None:
    """Raise `ForetokenError` for a folder to write that has files already, and for a file."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ForetokenError(f"{path} exists and is not an empty folder; name another with --out.")


def check_writable(path: Path) -> None:
    """Raise `ForetokenError` where no file can be written at this path; makes its folder."""
    if path.is_dir():
        raise ForetokenError(f"{path} is a folder; name a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ForetokenError(f"{path} can't be written: {error.strerror}.") from error


def _lock(file: IO[str], path: Path) -> None:
    """Take the file for this process, and note its number there.

    Raises `BlockingIOError` where another process has it, `FileNotFoundError` where that one has
    removed it by now, and another `OSError` where the system can't do it.
    """
    import fcntl  # Unix has it

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
        raise FileNotFoundError
    file.truncate(0)
    os.write(file.fileno(), str(os.getpid()).encode())


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write or replace a file whole, text as `utf8`; makes its folder.

    Raises `ForetokenError` where that can't be done.
    """
    with contextlib.suppress(OSError):  # `replacing` names what is wrong
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(utf8(content) if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_or_nothing(folder: Path) -> Iterator[None]:
    """A folder, made if need be, of which nothing new is left where the block doesn't end: half a
    model takes gigabytes, and commands that write one refuse a folder that isn't empty."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for new in set(folder.iterdir()) - before:
                shutil.rmtree(new) if new.is_dir() else new.unlink()
            if made:
                folder.rmdir()
        raise


def write_json(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write or replace a JSON file whole; NaN and infinity are refused, as JSON has none."""
    write_file(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path, what: str, *, schema: int | None = None) -> dict[str, Any]:
    """The JSON object in a file; `what` names in plain words what it should be: "a run's plan".

    Raises `ForetokenError` where the file is missing or holds anything else, or where its "schema"
    is not the given one.
    """
    wrong = f"{path} can't be read as {what}"
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ForetokenError(f"{wrong}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ForetokenError(f"{wrong}: it is not JSON ({error}).") from error
    if not isinstance(data, dict):
        raise ForetokenError(f"{wrong}: it holds no JSON object.")
    if schema is not None and data.get("schema") != schema:
        given = data.get("schema")
        raise ForetokenError(f"{wrong}: it has schema {given!r}, and {schema!r} is read here.")
    return data


def read_json_lines(lines: Iterable[str | bytes], path: str | Path) -> Iterator[tuple[int, Any]]:
    """The JSON values of lines, each with its line number from 1; empty lines are left out.

    Raises `ForetokenError`, with `path` and the number, for a line that is not JSON.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ForetokenError(f"{path}, line {number}: not JSON ({error}).") from error


def write_arrays(
    path: str | Path,
    kind: str,
    made_for: Mapping[str, int | str],
    arrays: Mapping[str, NDArray[np.integer]],
    *,
    version: int = 1,
) -> None:
    """Write or replace the file, whole or not at all. `kind` in plain words: "suffix automaton".

    Raises `ForetokenError` where it can't be written.
    """
    import numpy as np

    header = json.dumps({"kind": kind, "version": version, "made_for": dict(made_for)})
    with replacing(path) as file:
        np.savez(file, **{_HEADER: np.frombuffer(header.encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]


def read_arrays(
    path: str | Path,
    kind: str,
    made_for: Mapping[str, int | str],
    names: Seq[str],
    *,
    version: int = 1,
) -> Arrays:
    """The named arrays of a file that `write_arrays` wrote for the same kind, version and use.

    Raises `ForetokenError` for a file that is missing, damaged or something else.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(bytes(file[_HEADER]))
            given = header["kind"], header["version"], dict(header["made_for"])
            arrays = {name: file[name] for name in names} if given[0] == kind else {}
    except OSError as error:
        reason = error.strerror or "it is no such file"
        raise ForetokenError(f"{path} can't be read as a {kind}: {reason}.") from error
    except DAMAGE as error:
        raise ForetokenError(
            f"{path} is damaged or not a {kind} that foretoken saved; make it again."
        ) from error
    _check(path, kind, version, made_for, given)
    return arrays


def _check(
    path: str | Path,
    kind: str,
    version: int,
    made_for: Mapping[str, int | str],
    given: tuple[str, int, dict[str, int | str]],
) -> None:
    if given[0] != kind:
        raise ForetokenError(f"{path} holds a {given[0]}; expected is a {kind}.")
    if given[1] != version:
        raise ForetokenError(
            f"{path} is a {kind} of version {given[1]} and this foretoken reads version {version}; "
            "make it again."
        )
    for what, expected in made_for.items():
        if given[2].get(what) != expected:
            raise ForetokenError(
                f"{path} was made for {what} {given[2].get(what)} and this target has "
                f"{expected}; use a {kind} of this target's."
            )


def fingerprint(path: Path, *parts: Path) -> str:
    """16 hex digits of a file, with the parts that it goes on in, or of the weights and settings
    directly in a folder: equal for equal names and contents, anywhere. Of a large file pieces all
    over it are read, in which every large matrix has some, so that gigabytes take no time."""
    files = [path, *parts] if path.is_file() else _weights(path)
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if file != path else ''}\0{size}\0".encode())
        with file.open("rb") as opened:
            for start in _starts(size):
                opened.seek(start)
                digest.update(opened.read(_PIECE))
    return digest.hexdigest()[:16]


def _weights(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in _WEIGHTS and file.is_file())


def _starts(size: int) -> Iterable[int]:
    """Where the pieces begin: one after the other in a small file; else evenly, the last at the
    end."""
    if size <= _PIECES * _PIECE:
        return range(0, size, _PIECE)
    return (round(i * (size - _PIECE) / (_PIECES - 1)) for i in range(_PIECES))
