"""A stream whose replica has died, and that another one writes again from its beginning."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from foretoken.serve.streaming import event

_TEXT_ONLY = {"index", "text", "delta", "logprobs", "finish_reason", "stop_reason"}


class Unlike(Exception):
    """What is written again isn't what was sent, or can't be compared with it."""


class Continuation:
    """Takes from a stream what has been sent of it.

    The text of a seed is the same on every replica, but where it is cut into events depends on the
    moment. So texts are compared to the character, and only what follows is sent: nothing twice.
    """

    def __init__(self, sent: Iterable[bytes]) -> None:
        """Raises `Unlike` for streams that carry more than texts: log-probabilities, token ids,
        calls, blocks."""
        self._left: defaultdict[int, str] = defaultdict(str)  # sent, not yet written again
        self._opened: set[int] = set()
        self._ended: set[int] = set()
        self._opening: dict[str, Any] = {}  # what all events of the stream have in common
        self._totals = False
        for data in filter(None, map(_read, sent)):
            self._opening = {name: data[name] for name in ("id", "created") if name in data}
            self._totals = not data.get("choices")
            for choice in data.get("choices", ()):
                self._left[choice["index"]] += _text(choice)
                self._opened.add(choice["index"])
                if choice["finish_reason"] is not None:
                    self._ended.add(choice["index"])

    def more(self, part: bytes) -> bytes:
        """What of an event hasn't been sent; may be nothing. Raises `Unlike`."""
        data = _read(part)
        if data is None or "error" in data:
            return part
        known = self._totals if not data.get("choices") else False
        choices = [kept for kept in map(self._rest, data.get("choices", ())) if kept]
        if known or (data.get("choices") and not choices):
            return b""
        told = data | self._opening
        if choices:
            told["choices"] = choices
        return event(told).encode()

    def _rest(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """A choice without what was sent of it; None where that is all."""
        index: int = choice["index"]
        if index not in self._opened:
            return choice
        text, sent = _text(choice), self._left[index]
        shared = min(len(sent), len(text))
        ends = choice["finish_reason"] is not None
        rest, left = text[shared:], sent[shared:]
        unlike = text[:shared] != sent[:shared]
        if unlike or (ends and left) or (rest and index in self._ended):
            raise Unlike
        self._left[index] = left
        if not rest and (not ends or index in self._ended):
            return None
        if "text" in choice:
            return choice | {"text": rest}
        return choice | {"delta": {"content": rest}}


def _read(part: bytes) -> dict[str, Any] | None:
    """An event's JSON; None for a comment and for the end."""
    if not part.startswith(b"data: {"):
        return None
    data: dict[str, Any] = json.loads(part.removeprefix(b"data: "))
    return data


def _text(choice: dict[str, Any]) -> str:
    """What a choice adds to its text. Raises `Unlike` where that isn't all that it carries."""
    delta = choice.get("delta", {})
    if choice.keys() - _TEXT_ONLY or delta.keys() - {"role", "content"} or choice.get("logprobs"):
        raise Unlike
    text: str = choice.get("text") or delta.get("content") or ""
    return text
