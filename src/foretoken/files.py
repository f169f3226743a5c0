"""Writes files whole or not at all, and reads JSON with one sentence for what is wrong with it."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from foretoken.errors import ForetokenError


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


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write or replace a file whole, text as UTF-8; makes its folder.

    Raises `ForetokenError` where that can't be done.
    """
    with contextlib.suppress(OSError):  # `replacing` names what is wrong
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


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
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ForetokenError(f"{wrong}: {error.strerror}.") from error
    except ValueError as error:
        raise ForetokenError(f"{wrong}: it is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ForetokenError(f"{wrong}: it holds no JSON object.")
    if schema is not None and found.get("schema") != schema:
        given = found.get("schema")
        raise ForetokenError(f"{wrong}: it has schema {given!r}, and {schema!r} is read here.")
    return found


def read_json_lines(lines: Iterable[str | bytes], path: str | Path) -> Iterator[tuple[int, Any]]:
    """The JSON values of lines, each with its line number from 1; empty lines are left out.

    Raises `ForetokenError`, with `path` and the number, for a line that is not JSON.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise ForetokenError(f"{path}, line {number}: not JSON ({error}).") from error
