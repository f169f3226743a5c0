"""Reads files of conversations to learn from, in the spellings of `foretoken.spellings`."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import read_json_lines
from foretoken.spellings import Conversation, conversation
from foretoken.train.records import Records

FILES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
"""How the files' names end."""

_log = logging.getLogger(__name__)


def read_conversations(path: Path) -> list[Conversation]:
    """The lines of a file, or the entries of its JSON list, each in one of the spellings.

    Conversations in which nobody asks anything are left out, and the log says how many. Raises
    `ForetokenError`, with the line or entry, for anything else.
    """
    found, silent = [], []
    for place, row in _rows(path):
        try:
            each = conversation(row)
        except ForetokenError as error:
            raise ForetokenError(f"{path}, {place}: {error}") from error
        if each.messages or each.whole:
            found.append(each)
        else:
            silent.append(place)
    if silent:
        _log.warning(
            "%s: %d of %d conversations have no user's turn and are left out, the first in %s",
            path,
            len(silent),
            len(silent) + len(found),
            silent[0],
        )
    return found


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Each with its place."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            begun = []
            for line in file:
                begun.append(line)
                if line.strip():
                    break
            if begun and begun[-1].lstrip().startswith("["):  # as ShareGPT's and Alpaca's own files
                yield from _entries("".join(begun) + file.read(), path)
            else:
                for number, row in read_json_lines(chain(begun, file), path):
                    yield f"line {number}", row
    except (OSError, EOFError, zlib.error) as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not text in UTF-8: {error}.") from error


def _entries(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Of a list in JSON."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ForetokenError(f"{path}: not JSON ({error}).") from error
    for number, row in enumerate(rows, 1):
        yield f"entry {number}", row


def digest_of(records: Records) -> str:
    """A hash of the texts, to recognise them by, and of where each of them and its answer begins:
    the same tokens teach something else as prompts than as answers."""
    digest = hashlib.sha256()
    for numbers in records.arrays.values():
        digest.update(np.ascontiguousarray(numbers, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]
