"""Reads files of conversations to learn from, in the spellings of `foretoken.spellings`."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import read_json_lines
from foretoken.spellings import Conversation, conversation
from foretoken.train.records import Records

_log = logging.getLogger(__name__)


def read_conversations(path: Path) -> list[Conversation]:
    """The lines of a .jsonl or .jsonl.gz file, each in one of the spellings.

    Conversations in which nobody asks anything are left out, and the log says how many. Raises
    `ForetokenError`, with the line, for anything else.
    """
    found, silent = [], []
    for number, row in _rows(path):
        try:
            each = conversation(row)
        except ForetokenError as error:
            raise ForetokenError(f"{path}, line {number}: {error}") from error
        if each.messages or each.whole:
            found.append(each)
        else:
            silent.append(number)
    if silent:
        _log.warning(
            "%s: %d of %d conversations have no user's turn and are left out, the first in line %d",
            path,
            len(silent),
            len(silent) + len(found),
            silent[0],
        )
    return found


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from read_json_lines(file, path)
    except OSError as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not text in UTF-8: {error}.") from error


def digest_of(records: Records) -> str:
    """A hash of the texts, to recognise them by."""
    return hashlib.sha256(np.ascontiguousarray(records.tokens).tobytes()).hexdigest()[:16]
