"""Prompts as users bring them: texts, token ids, mappings, arrays, conversations.

    "text"                                     [1, 2, 3], or a 1-D array of numpy or torch
    {"prompt": "text"}                         {"prompt_token_ids": [1, 2, 3]}, each also with
                                               a "cache_salt", as `SamplingParams` has it
    {"input_ids": …, "attention_mask": …}      what a tokenizer returns; masked places are left out

Several prompts are a list of these, a 2-D array, or a tokenizer's batch. `split` raises for what is
no prompt at all; `encoded` for what is wrong with one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import wraps
from numbers import Integral, Number
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from foretoken.engine.conversations import written
from foretoken.errors import ForetokenError, described, shown
from foretoken.errors.values import typed

Prompt = str | Seq[int] | Mapping[str, Any] | np.ndarray[Any, Any] | Tensor

_BYTES = (str, bytes, bytearray, memoryview)
_ENCODED = {"input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "length"}
_GIVEN = {"prompt", "prompt_token_ids"}
_SALT = "cache_salt"
_CHARACTERS = 12  # of a token, more than in almost every text
FAR = 2
"""A text is too long where its beginning alone has more than this many times the tokens that are of
use: cutting it changes the tokens around the cut, but not by so many."""
_FORMS = (
    "a text, token ids (a list or a 1-D array of whole numbers), or a mapping with 'prompt' or "
    "'prompt_token_ids'"
)


T = TypeVar("T")


def _told(read: Callable[..., T]) -> Callable[..., T]:
    """`read`, where what an object of a user's own class raises as it is read is one sentence."""

    @wraps(read)
    def reading(given: Any, *more: Any) -> T:
        try:
            return read(given, *more)
        except ForetokenError:
            raise
        except Exception as error:
            raise described(f"A prompt is {shown(given)}, and reading it", error) from error

    return reading


class Conversation(NamedTuple):
    """Messages that stand for a prompt, by the tokenizer's chat template. options: what else the
    template reads."""

    messages: Any
    options: Mapping[str, Any] | None = None


@_told
def split(given: Any) -> tuple[list[Any], bool]:
    """The prompts of a call, and whether it is one that was given alone.

    Raises `ForetokenError` for what holds no prompts.
    """
    if isinstance(given, Mapping) and "input_ids" in given:
        rows = _unpadded(given)
        return rows, _is_number(next(iter(given["input_ids"]), 0))
    if isinstance(given, str | Mapping | Conversation) or _dimensions(given) == 1:
        return [given], True
    if _dimensions(given) == 2:
        return list(given), False
    if not isinstance(given, Seq) or isinstance(given, _BYTES):
        raise ForetokenError(f"prompts is {shown(given)}; give {_FORMS}, or a list of these.")
    alone = bool(given) and _is_number(given[0])
    return ([given] if alone else list(given)), alone


@_told
def split_conversations(
    given: Any, options: Mapping[str, Any] | None = None
) -> tuple[list[Conversation], bool]:
    """The conversations of a call, and whether it is one that was given alone. options: of all.

    Raises `ForetokenError` for what holds no messages.
    """
    if not isinstance(given, Seq) or isinstance(given, _BYTES):
        raise ForetokenError(
            f"messages is {shown(given)}; give a list of messages, or a list of such lists."
        )
    alone = bool(given) and isinstance(given[0], Mapping)
    todo = [given] if alone else given
    return [Conversation(messages, options) for messages in todo], alone


@_told
def single(given: Any) -> Any:
    """The prompt, or the conversation, of a call that takes one. Raises `ForetokenError` for none
    and for several."""
    first = given[0] if isinstance(given, Seq) and len(given) > 0 else None
    if isinstance(first, Mapping) and not (_GIVEN | _ENCODED) & first.keys():
        return Conversation(given)
    prompts, _ = split(given)
    if len(prompts) != 1:
        raise ForetokenError(f"One prompt is expected and {len(prompts)} are given; use generate.")
    return prompts[0]


@_told
def encoded(prompt: Any, tokenizer: Any, most: int | None = None) -> tuple[list[int], str | None]:
    """One prompt's token ids, and its text if it came as one. most: see `text_ids`.

    Raises `ForetokenError` for what is no prompt, and for what the tokenizer can't read.
    """
    if isinstance(prompt, Conversation):
        return chat_ids(prompt.messages, tokenizer, options=prompt.options, most=most), None
    if isinstance(prompt, str):
        return text_ids(prompt, tokenizer, most=most), prompt
    if not isinstance(prompt, Mapping):
        return _ids(prompt), None
    if "input_ids" in prompt:
        rows = _unpadded(prompt)
        if len(rows) != 1:
            raise ForetokenError(f"A prompt in a list has {len(rows)} rows of input_ids; give one.")
        return _ids(rows[0]), None
    _check_keys(prompt, {*_GIVEN, _SALT})
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise ForetokenError(f"A prompt's 'prompt' is {shown(text)}; it must be a text.")
    if ids is not None:
        return _ids(ids), text
    if text is None:
        raise _no_prompt(prompt)
    return text_ids(text, tokenizer, most=most), text


def salt_of(prompt: Any) -> str | None:
    """The salt that comes with a prompt. Raises `ForetokenError` for one that is no text."""
    salt = prompt.get(_SALT) if isinstance(prompt, Mapping) else None
    checked: str | None = typed(_SALT, salt, str | None)
    return checked


def check_text(text: str) -> None:
    """Raise `ForetokenError` for a text that no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ForetokenError(
            f"The text holds {text[error.start]!a} at place {error.start}, half of a "
            "surrogate pair, which no tokenizer can read; decode it with errors='replace'."
        ) from error


def text_ids(text: str, tokenizer: Any, special: bool = True, most: int | None = None) -> list[int]:
    """A text's token ids; with the special tokens around it that the tokenizer adds, or not. most:
    how many are of use; those of a text that surely has more are of its beginning, and are more
    than `FAR` times as many. How many characters a token stands for nobody knows: of what a
    tokenizer drops, or takes for one unknown thing, any number.
    """
    check_text(text)
    size = _CHARACTERS * (most or len(text))
    while most is not None and size < len(text):
        ids = _tokenized(text[:size].rstrip(), tokenizer, special)  # a later token may take spaces
        if len(ids) > FAR * most:
            return ids
        size *= 4
    return _tokenized(text, tokenizer, special)


def _tokenized(text: str, tokenizer: Any, special: bool) -> list[int]:
    extra = {} if special else {"add_special_tokens": False}
    try:
        ids = _needed(tokenizer)(text, **extra)["input_ids"]
    except Exception as error:
        raise described("The tokenizer", error) from error
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ForetokenError(
            f"The tokenizer's input_ids of a text are {shown(ids)}; they must be a list of whole "
            "numbers."
        )
    return ids


def ids_after(
    before: list[int], said: str, text: str, tokenizer: Any, special: bool = True
) -> list[int] | None:
    """Token ids of a text where it goes on from another one, `said`, whose ids are `before`; None
    where these don't stay as they are."""
    whole = text_ids(said + text, tokenizer, special)
    return whole[len(before) :] if whole[: len(before)] == before else None


def chat_ids(
    messages: Any,
    tokenizer: Any,
    *,
    reply: bool = True,
    options: Mapping[str, Any] | None = None,
    special: bool = False,
    most: int | None = None,
) -> list[int]:
    """The token ids of a conversation, ready for the assistant's turn where a `reply` is to follow.
    options: what else its template reads. special: whether the tokenizer adds special tokens too.
    most: see `text_ids`.

    Raises `ForetokenError` for what `written` refuses.
    """
    text = written(messages, _needed(tokenizer), reply=reply, options=options)
    return text_ids(text, tokenizer, special, most)


def _needed(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise ForetokenError(
            "There is no tokenizer; pass tokenizer=… to LLM, or give prompts as token ids."
        )
    return tokenizer


def _ids(value: Any) -> list[int]:
    given = value.tolist() if isinstance(value, np.ndarray | Tensor) else value
    if not isinstance(given, Seq) or isinstance(given, _BYTES):
        raise _no_prompt(value)
    if all(type(token) is int for token in given):
        return list(given)
    if not all(_is_id(token) for token in given):
        raise _no_prompt(value)
    return [int(token) for token in given]


def _no_prompt(value: Any) -> ForetokenError:
    message = isinstance(value, Mapping) and "role" in value
    hint = "; conversations go to chat()" if message else ""
    return ForetokenError(f"A prompt is {shown(value)}; give {_FORMS}{hint}.")


def _is_number(value: Any) -> bool:
    """Whether a list that begins with it is one prompt, if only a wrong one."""
    return isinstance(value, Number) or _dimensions(value) == 0


def _is_id(value: Any) -> bool:
    item = value.item() if _dimensions(value) == 0 else value
    return isinstance(item, Integral) and not isinstance(item, bool)


def _dimensions(value: Any) -> int | None:
    """Those of an array; None for anything else."""
    return value.ndim if isinstance(value, np.ndarray | Tensor) else None


def _unpadded(encoding: Mapping[str, Any]) -> list[list[int]]:
    """The rows of what a tokenizer returned, without the places that its mask leaves out."""
    _check_keys(encoding, _ENCODED)
    ids, masks = encoding["input_ids"], encoding.get("attention_mask")
    rows = _rows(ids)
    if masks is None:
        return [_ids(row) for row in rows]
    kept = _rows(masks)
    if [len(row) for row in rows] != [len(mask) for mask in kept]:
        raise ForetokenError("A prompt's attention_mask isn't as long as its input_ids.")
    pairs = zip(rows, kept, strict=True)
    return [[t for t, m in zip(_ids(row), _ids(mask), strict=True) if m] for row, mask in pairs]


def _rows(values: Any) -> list[Any]:
    given = values.tolist() if isinstance(values, np.ndarray | Tensor) else values
    if not isinstance(given, Seq) or isinstance(given, _BYTES):
        raise _no_prompt(values)
    return [given] if not given or _is_number(given[0]) else list(given)


def _check_keys(mapping: Mapping[Any, Any], known: set[str]) -> None:
    """Raise for what we would not read, a picture for one."""
    for key, value in mapping.items():
        if key not in known and value is not None:
            if "role" in mapping:
                raise _no_prompt(mapping)
            raise ForetokenError(
                f"A prompt has {shown(key)}, which isn't read; leave it out, or give {_FORMS}."
            )
