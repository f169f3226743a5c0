"""Reads files of conversations: prompts for a model to answer, and texts to learn as they are."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretoken.engine.prompts import text_ids
from foretoken.errors import ForetokenError
from foretoken.files import read_json_lines
from foretoken.llm import LLM
from foretoken.train.records import Records

Message = dict[str, str]


@dataclass(frozen=True)
class Conversation:
    """A prompt: messages up to a user's turn, and the user's later turns.

    answer: what the file has after the messages. raw: the only message is text without a chat
    template.
    """

    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()
    answer: str | None = None
    raw: bool = False


def read_conversations(path: Path) -> list[Conversation]:
    """The lines of a .jsonl or .jsonl.gz file: {"messages"}, {"turns"}, {"prompt"} or {"text"}.

    Raises `ForetokenError`, with the line, for anything else.
    """
    return [_conversation(row, f"{path}, line {number}") for number, row in _rows(path)]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from read_json_lines(file, path)
    except OSError as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not text in UTF-8: {error}.") from error


def _conversation(row: Any, where: str) -> Conversation:
    try:
        if "turns" in row:
            first, *later = map(str, row["turns"])
            return Conversation(({"role": "user", "content": first},), tuple(later))
        if "messages" in row:
            return _from_messages(row["messages"])
        if "prompt" in row:
            return Conversation(({"role": "user", "content": str(row["prompt"])},), raw=True)
        return Conversation((), answer=str(row["text"]), raw=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ForetokenError(
            f'{where} has neither "messages", "turns", "prompt" nor "text" as they must be.'
        ) from error


def _from_messages(messages: Iterable[Any]) -> Conversation:
    """The messages up to the last user's turn, and the answer after it, if there is one."""
    turns = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
    last = max(i for i, turn in enumerate(turns) if turn["role"] == "user")
    answer = turns[last + 1]["content"] if last + 1 < len(turns) else None
    return Conversation(tuple(turns[: last + 1]), answer=answer)


def fixed(llm: LLM, conversations: Seq[Conversation], length: int) -> Records:
    """The file's own answers and texts, each record cut to `length` tokens."""
    end = sorted(llm.engine.eos_ids)[:1]
    pairs = []
    for each in conversations:
        if each.answer is not None:
            prompt = prompt_ids(llm, each, each.messages) if each.messages else []
            answer = text_ids(each.answer, llm.tokenizer, special=False) + end
            pairs.append((prompt[:length], answer[: max(0, length - len(prompt))]))
    return Records.of([pair for pair in pairs if pair[1]], length, llm.model.vocab_size)


def prompt_ids(llm: LLM, conversation: Conversation, messages: Seq[Message]) -> list[int]:
    """The messages as token ids, in the chat template unless the conversation is raw."""
    if not conversation.raw:
        return llm.chat_prompt(list(messages))
    return text_ids(messages[0]["content"], llm.tokenizer)


def digest_of(records: Records) -> str:
    """A hash of the texts, to recognise them by."""
    return hashlib.sha256(np.ascontiguousarray(records.tokens).tobytes()).hexdigest()[:16]
