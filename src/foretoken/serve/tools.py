"""Calls of functions in what a model has written, as far as it has been written.

A format is a function of the text so far. What it finds only grows with the text, and is the same
whether it was asked on the way or not: so a stream's parts add up to the whole answer. Arguments
are the model's own JSON, to the character, and like OpenAI's may be wrong or cut off. What begins
as a call and turns out to be none is a part of the text. A tag says that a call is one, whatever
it calls; JSON without a tag is a call of a function that was offered, or a text.

    hermes          text <tool_call>{"name": …, "arguments": {…}}</tool_call> text …
    llama3_json     {"name": …, "parameters": {…}}; {…}     or a text
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from foretoken.errors import unknown


class Call(NamedTuple):
    """A function's name, and its arguments as far as they are written: a JSON text."""

    name: str
    arguments: str


class Written(NamedTuple):
    """What a model has written: a text, without what may yet become a call, and the calls."""

    content: str
    calls: list[Call]


class Growing:
    """A text as far as it is written. How far it was read stays known, so that a stream doesn't
    take longer for each part the longer it is."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._calls: dict[int, _BegunCall] = {}  # by where they begin
        self._values: dict[int, _BegunValue] = {}

    def add(self, text: str) -> None:
        """What was written next."""
        self.text += text

    def call(self, start: int) -> _Found:
        """The call that begins here, once its name is known and its arguments begin."""
        place = _skipped(_SPACE, self.text, start)
        if place == len(self.text):
            return _Found(None, None)
        if self.text[place] != "{":
            return _NONE
        return self._calls.setdefault(place, _BegunCall(place + 1)).read(self)

    def value_end(self, start: int) -> int | None:
        """Where a JSON value ends, None where the text ends before. What can't stand in JSON ends
        it too, so that a bracket that is missing takes no more than the call."""
        if start == len(self.text):
            return None
        if self.text[start] not in '{["':
            return _skipped(_SCALAR, self.text, start)
        return self._values.setdefault(start, _BegunValue(start)).end(self.text)


Format = Callable[[Growing, bool], Written]
"""From a text so far, and whether it has ended, to what it holds."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
TAGS = frozenset({_OPEN, _CLOSE})
"""Around a call: special tokens of some tokenizers."""
_PYTHON_TAG = "<|python_tag|>"
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s;]*")
_QUOTED = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)
_SCALAR = re.compile(r"[\w.+\-]*")
_INSIDE = re.compile(r"[\w.+\-\s:,]+")
_ARGUMENTS = ("arguments", "parameters")


def hermes(offered: Collection[str], written: Growing, ended: bool) -> Written:
    """Calls between tags, as Hermes and Qwen write them; white space around them is left out."""
    del offered
    text = written.text
    content, calls, told, place = "", [], 0, 0
    while (start := text.find(_OPEN, place)) >= 0:
        found = written.call(start + len(_OPEN))
        place = start + len(_OPEN)
        if found.call is None and (found.end is not None or ended):
            continue  # none: a part of the text
        content += text[told:start].rstrip()
        if found.call is not None:
            calls.append(found.call)
        if found.end is None:
            return Written(content, calls)
        told = place = _after(text, found.end)
    rest = text[told:]
    return Written(content + (rest if ended else _settled(rest, _OPEN)), calls)


def _after(text: str, end: int) -> int:
    """Where the text goes on after a call: behind its closing tag, which may be missing."""
    place = _skipped(_SPACE, text, end)
    if text.startswith(_CLOSE, place):
        place += len(_CLOSE)
    elif _CLOSE.startswith(text[place:]):
        return len(text)  # perhaps in the middle of the tag
    return _skipped(_SPACE, text, place)


def _settled(text: str, tag: str) -> str:
    """What of a text is no beginning of a tag, nor white space that may stand before one."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            text = text[:-length]
            break
    return text.rstrip()


def llama3_json(offered: Collection[str], written: Growing, ended: bool) -> Written:
    """An answer that is JSON from its first character on, as Llama 3 writes calls; several are
    parted by semicolons. Any other answer is a text."""
    text = written.text
    if not ended and _PYTHON_TAG.startswith(text):
        return Written("", [])
    calls: list[Call] = []
    tagged = text.startswith(_PYTHON_TAG)
    told = len(_PYTHON_TAG) if tagged else 0
    while True:
        start = _skipped(_BETWEEN if calls else _SPACE, text, told)
        if start == len(text):
            return Written(text[told:] if ended and not calls else "", calls)
        found = written.call(start) if text[start] == "{" else _NONE
        if found.call is None or not (tagged or found.call.name in offered):
            held = found.call is None and found.end is None and not ended
            return Written("" if held else text[start if calls else told :], calls)
        calls.append(found.call)
        if found.end is None:
            return Written("", calls)
        told = found.end


FORMATS: dict[str, Callable[[Collection[str], Growing, bool], Written]] = {
    "hermes": hermes,
    "llama3_json": llama3_json,
}
"""By vLLM's names."""


def format_named(name: str, offered: Collection[str]) -> Format:
    """offered: the functions that may be called. Raises `ForetokenError` for a name that isn't
    known."""
    if name not in FORMATS:
        raise unknown("tool call parser", name, FORMATS)
    return partial(FORMATS[name], offered)


class _Found(NamedTuple):
    """call: None where there is none, or not yet; end: where it ends, None where the text does."""

    call: Call | None
    end: int | None


_NONE = _Found(None, 0)


class _BegunCall:
    """A call, and the fields of it that were read."""

    def __init__(self, start: int) -> None:
        self._place, self._more = start, True
        self._name: str | None = None
        self._arguments: str | None = None

    def read(self, text: Growing) -> _Found:
        """What it is by now."""
        while self._more:
            field = _field(text, self._place)
            if field.end is None:
                begun = field.value if field.key in _ARGUMENTS else None
                return _Found(self._known(begun), None)
            if field.key in _ARGUMENTS and self._arguments is None:
                self._arguments = field.value
            elif field.key == "name" and self._name is None:
                self._name = _text(field.value)
            self._place, self._more = field.end, field.more
        call = self._known(None)
        return _NONE if call is None else _Found(call, self._place)

    def _known(self, begun: str | None) -> Call | None:
        """begun: arguments that aren't whole yet; the first ones count."""
        arguments = begun if self._arguments is None else self._arguments
        return None if self._name is None or arguments is None else Call(self._name, arguments)


class _BegunValue:
    """A list, an object or a string in JSON, as far as it was read."""

    def __init__(self, start: int) -> None:
        self._place, self._depth = start, 0
        self._quoted = self._over = False

    def end(self, text: str) -> int | None:
        """Where it ends in the text, which only grows."""
        while self._place < len(text) and not self._over:
            before = self._place
            if self._quoted:
                self._place = _skipped(_QUOTED, text, before)
                if not text.startswith('"', self._place):
                    return None  # perhaps in the middle of an escape
            elif text[before] not in '{[}]"':
                self._place = _skipped(_INSIDE, text, before)
                self._over = self._place == before
                continue
            self._mark(text[self._place])
        return self._place if self._over else None

    def _mark(self, mark: str) -> None:
        """Go past a bracket or a quote."""
        self._place += 1
        if mark == '"':
            self._quoted = not self._quoted
        else:
            self._depth += 1 if mark in "{[" else -1
        self._over = self._depth == 0 and not self._quoted


class _Field(NamedTuple):
    """One field of an object; end: where what follows it begins, None where the text ends before
    that is known; more: whether another follows."""

    key: str | None
    value: str
    end: int | None
    more: bool = False


def _field(written: Growing, start: int) -> _Field:
    text = written.text
    place = _skipped(_SPACE, text, start)
    if not text.startswith('"', place):
        return _Field(None, "", None if place == len(text) else place + (text[place] == "}"))
    end = written.value_end(place)
    if end is None:
        return _Field(None, "", None)
    key, place = _text(text[place:end]), _skipped(_SPACE, text, end)
    if place == len(text):
        return _Field(None, "", None)
    if text[place] != ":":
        return _Field(None, "", place)
    place = _skipped(_SPACE, text, place + 1)
    end = written.value_end(place)
    after = len(text) if end is None else _skipped(_SPACE, text, end)
    if after == len(text):
        return _Field(key, text[place:end], None)
    return _Field(key, text[place:end], after + (text[after] in ",}"), text[after] == ",")


def _text(written: str) -> str | None:
    """A JSON string's text; None for another value."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):  # of deep lists
        return None
    whole = isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value
    return value if whole else None  # half a surrogate pair can't be sent


def _skipped(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


class Told:
    """What a client has been told of one sample: its text and its calls.

    only_first: whether calls after the first are left out.
    """

    def __init__(self, format_: Format, only_first: bool = False) -> None:
        self._format, self._only_first = format_, only_first
        self._text, self._characters = Growing(), 0
        self._arguments: list[int] = []  # characters of each call

    @property
    def called(self) -> bool:
        """Whether there is a call."""
        return bool(self._arguments)

    def more(self, text: str, ended: bool) -> list[dict[str, Any]]:
        """The deltas that tell what `text` adds: of the text, of a call's name, of its arguments;
        one at least."""
        self._text.add(text)
        content, calls = self._format(self._text, ended)
        deltas: list[dict[str, Any]] = []
        if len(content) > self._characters:
            deltas.append({"content": content[self._characters :]})
            self._characters = len(content)
        for index, call in enumerate(calls[:1] if self._only_first else calls):
            if index == len(self._arguments):
                self._arguments.append(0)
                deltas.append(_delta(index, opened(call.name)))
            new = call.arguments[self._arguments[index] :]
            if new:
                self._arguments[index] += len(new)
                deltas.append(_delta(index, {"function": {"arguments": new}}))
        return deltas or [{"content": ""}]


def _delta(index: int, call: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **call}]}


def opened(name: str, arguments: str = "") -> dict[str, Any]:
    """A call as OpenAI writes it, with an id of its own."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


def message(format_: Format, text: str, only_first: bool) -> dict[str, Any]:
    """The parts of an assistant's whole message: its text, null where there are calls only."""
    content, calls = format_(Growing(text), True)
    if not calls:
        return {"content": content}
    told = calls[:1] if only_first else calls
    return {"content": content or None, "tool_calls": [opened(*call) for call in told]}
