"""Prompts out of whatever holds text: a plain text, JSON lines of any kind, the bundled ones.

Of a conversation the first turn of the user is asked, after the system message where there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from foretoken import zoo
from foretoken.bench.suites.suite import Prompt, load_suite
from foretoken.errors import ForetokenError, shown
from foretoken.files import MARK, read_json_lines
from foretoken.spellings import USER, conversation, is_spelled

MOST = 400
"""Prompts that are taken of a longer list; no run gets through as many."""

_JSON = ("{", "[", '"')
_JSON_FILES = (".json", ".jsonl")
_EMPTY_LINES = re.compile(r"\n\s*\n")


def bundled() -> tuple[Prompt, ...]:
    """The bundled prompts, tasks in turn, the first turn of each."""
    suite = load_suite(zoo.prompts_path(), "bundled")
    return tuple(Prompt(p.id, p.task, p.turns[:1]) for p in suite.round_robin())


def read_texts(path: Path, seed: int = 0) -> tuple[Prompt, ...]:
    """The prompts of a file; see `split`. One that is called .json or .jsonl is JSON lines in any
    case. Raises `ForetokenError` where it can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not text in UTF-8: {error}.") from error
    if path.suffix not in _JSON_FILES:
        return split(text, str(path), seed)
    return _drawn(_from_json(text.removeprefix(MARK), str(path)), str(path), seed)


def split(text: str, where: str, seed: int = 0) -> tuple[Prompt, ...]:
    """The prompts in a text, in an order drawn by `seed`, at most `MOST` of them.

    JSON lines: an object or a text each, of any spelling. Else: what empty lines divide, or, where
    there are none, every line. where: its name in errors. Raises `ForetokenError` where there is
    none, and for a line of JSON without a text.
    """
    text = text.removeprefix(MARK)
    if _is_json(text):
        found = _from_json(text, where)
    else:
        blocks = [block for block in _EMPTY_LINES.split(text) if block.strip()]
        pieces = text.splitlines() if len(blocks) < 2 else blocks
        found = numbered(piece.strip() for piece in pieces if piece.strip())
    return _drawn(found, where, seed)


def _drawn(found: Seq[Prompt], where: str, seed: int) -> tuple[Prompt, ...]:
    """At most `MOST` of them, in an order drawn by `seed`."""
    if not found:
        raise ForetokenError(f"{where} holds no prompts; give a text, or JSON lines with texts.")
    return tuple(Random(seed).sample(found, min(MOST, len(found))))


def numbered(texts: Iterable[str]) -> list[Prompt]:
    """Texts as prompts, by their numbers from 1."""
    return [Prompt(str(number), "yours", (text,)) for number, text in enumerate(texts, 1)]


def shortened(prompts: Iterable[Prompt], tokens: int) -> list[Prompt]:
    """Prompts whose answers end after so many tokens."""
    return [replace(prompt, max_tokens=tokens) for prompt in prompts]


def _is_json(text: str) -> bool:
    """Whether the first line that isn't empty, or most lines, are JSON values that can hold a text:
    a broken line of these is to be named, and not to be a prompt."""
    whole = [_is_value(line.strip()) for line in text.split("\n") if line.strip()]
    return bool(whole) and (whole[0] or 2 * sum(whole) > len(whole))


def _is_value(line: str) -> bool:
    """Whether a line is such a JSON value."""
    if not line.startswith(_JSON):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _from_json(text: str, where: str) -> list[Prompt]:
    rows = read_json_lines(text.split("\n"), where)
    return [_prompt(row, str(number), f"{where}, line {number}") for number, row in rows]


def _prompt(row: Any, name: str, where: str) -> Prompt:
    if not is_spelled(row):
        return Prompt(name, "yours", (_longest_text(row, where),))
    try:
        found = conversation(row)
    except ForetokenError as error:
        raise ForetokenError(f"{where}: {error}") from error
    if found.tools:
        raise ForetokenError(f"{where} declares tools, which are not offered here; leave it out.")
    turns = found.messages or found.whole
    asked = next((t["content"] for t in turns if t["role"] == USER), None)
    if asked is None and found.raw and turns:
        asked = turns[0]["content"]
    if not asked:
        raise ForetokenError(f"{where} has no turn of a user; leave the line out.")
    system = turns[0]["content"] if turns[0]["role"] == "system" else None
    return Prompt(name, "yours", (asked,), system=system)


def _longest_text(row: Any, where: str) -> str:
    """The longest text in a JSON value, however deep it lies."""
    texts = sorted(_texts(row), key=len)
    if not texts or not texts[-1].strip():
        raise ForetokenError(f"{where} is {shown(row)} and holds no text; leave the line out.")
    return texts[-1]


def _texts(value: Any) -> Seq[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in inner for text in _texts(part)]
