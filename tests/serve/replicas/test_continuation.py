"""What follows of a stream that is written again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretoken.serve.errors import body
from foretoken.serve.replicas.continuation import Continuation, Unlike
from foretoken.serve.streaming import DONE, KEEP_ALIVE, event


def _part(text: str, ends: bool = False, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "stop_reason": None}
    choice |= {"finish_reason": "length" if ends else None} | more
    return event({"id": "second", "created": 2, "choices": [choice]}).encode()


def _chat(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return event({"id": "second", "created": 2, "choices": [choice]}).encode()


def _sent(*parts: bytes) -> Continuation:
    return Continuation(part.replace(b"second", b"first") for part in parts)


def _texts(found: list[bytes]) -> list[str]:
    return [json.loads(part[6:])["choices"][0]["text"] for part in found if part]


@pytest.mark.parametrize("cut", range(12))
def test_nothing_is_sent_twice(cut: int) -> None:
    """Wherever it stopped, and however it is cut the second time."""
    text = "every letter"
    sent = [_part(text[at : min(at + 2, cut)]) for at in range(0, cut, 2)]
    rest = _sent(b"", *sent)
    again = [rest.more(_part(text[at : at + 5], at + 5 >= 12)) for at in range(0, 12, 5)]
    assert text[:cut] + "".join(_texts(again)) == text
    assert all(b'"first"' in part for part in again if part) or not cut
    assert again[-1]  # says why it ended


def test_an_end_is_sent_once() -> None:
    rest = _sent(_part("all", ends=True))
    assert [rest.more(_part("a")), rest.more(_part("ll", ends=True))] == [b"", b""]
    totals = event({"id": "second", "choices": [], "usage": {}}).encode()
    assert rest.more(totals) and rest.more(DONE.encode()) == DONE.encode()
    assert _sent(_part("all", ends=True), totals).more(totals) == b""


def test_choices_are_told_apart() -> None:
    rest = _sent(_part("ab"), _part("x", index=1))
    assert _texts([rest.more(_part("xyz", index=1)), rest.more(_part("abc"))]) == ["yz", "c"]


def test_a_chat_says_its_role_once() -> None:
    rest = _sent(_chat(role="assistant", content=""), _chat(content="He"))
    again = [_chat(role="assistant", content=""), _chat(content="Hel"), _chat(content="lo")]
    left = [json.loads(part[6:])["choices"][0]["delta"] for part in map(rest.more, again) if part]
    assert left == [{"content": "l"}, {"content": "lo"}]


@pytest.mark.parametrize(
    ("sent", "again"),
    [
        ([_part("ab")], [_part("ax")]),
        ([_part("abc")], [_part("ab", ends=True)]),
        ([_part("ab", ends=True)], [_part("abc")]),
    ],
    ids=["other", "shorter", "longer"],
)
def test_another_text_is_seen(sent: list[bytes], again: list[bytes]) -> None:
    rest = _sent(*sent)
    with pytest.raises(Unlike):
        [rest.more(part) for part in again]


@pytest.mark.parametrize(
    "more", [{"logprobs": {"tokens": []}}, {"token_ids": [1]}, {"foretoken": {}}]
)
def test_more_than_a_text_is_not_continued(more: dict[str, Any]) -> None:
    with pytest.raises(Unlike):
        _sent(_part("ab", **more))


def test_comments_pass() -> None:
    assert _sent(_part("a")).more(KEEP_ALIVE.encode()) == KEEP_ALIVE.encode()


def test_an_error_ends_it() -> None:
    """An event of its own, whatever was sent before it."""
    error = event(body(500, "failed")).encode()
    totals = event({"id": "second", "choices": [], "usage": {}}).encode()
    for sent in ([_part("a")], [_part("all", ends=True), totals]):
        assert _sent(*sent).more(error) == error
