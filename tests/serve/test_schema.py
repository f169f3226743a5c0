"""Bodies that are read, and those that aren't."""

from __future__ import annotations

import pytest

from foretoken.serve.errors import ApiError
from foretoken.serve.schema import ChatBody, CompletionBody, params, read


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", None, "not JSON"),
        (b"[1]", None, "JSON object"),
        (b'{"prompt": NaN}', None, "not JSON"),
        (b'{"prompt": "\xff"}', None, "not JSON"),
        (b'{"prompt": "\\ud800"}', None, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
        (b'{"prompt": 1}', "prompt", "a list of texts"),
        (b'{"prompt": "a", "n": true}', "n", "n is True"),
        (b'{"prompt": "a", "stream": 1}', "stream", "stream is 1"),
        (b'{"prompt": "a", "n": 1.5}', "n", "n is 1.5"),
        (b'{"n": 1}', "prompt", "prompt is missing"),
        (b'{"prompt": "a", "promt": "b"}', "promt", "Did you mean 'prompt'"),
        (b'{"prompt": "a", "stream_options": {"x": 1}}', "stream_options", "stream_options.x"),
    ],
    ids=str,
)
def test_refusals(raw: bytes, param: str | None, says: str) -> None:
    with pytest.raises(ApiError, match=says.replace("[", r"\[")) as caught:
        read(CompletionBody, raw)
    assert caught.value.param == param and caught.value.status == 400


def test_defaults_give_way_to_what_is_asked_for() -> None:
    body = read(ChatBody, b'{"messages": [], "temperature": 0.5, "stop": null}')
    made = params(body, {"temperature": 0.9, "top_k": 7}, None, None)
    assert (made.temperature, made.top_k, made.max_tokens, made.stops) == (0.5, 7, None, ())


def test_unknown_fields_may_be_left_out() -> None:
    assert read(CompletionBody, b'{"prompt": "a", "x": 1}', True).prompt == "a"
