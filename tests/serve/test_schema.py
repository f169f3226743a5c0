"""Bodies that are read, and those that aren't."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from foretoken.serve.errors import ApiError
from foretoken.serve.schema import Body, ChatBody, CompletionBody, DetokenizeBody, params, read
from foretoken.serve.settings import ServerSettings


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
        (b'{"prompt": "a", "stream_options": {}}', "stream_options", "needs stream"),
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


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 3}}, None),
    ],
    ids=str,
)
def test_a_parameter_that_is_wrong_is_named(given: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        params(CompletionBody.model_validate({"prompt": "a", **given}), {}, None, None)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_answers_that_the_server_bounds() -> None:
    bounded = ServerSettings(names=("a",), max_new_tokens=4)
    assert [bounded.bounded(most) for most in (None, 3, 9)] == [4, 3, 4]
    assert [ServerSettings(names=("a",)).bounded(most) for most in (None, 3)] == [None, 3]


def test_unknown_fields_may_be_left_out() -> None:
    assert read(CompletionBody, b'{"prompt": "a", "x": 1}', True).prompt == "a"
    function = b'{"type": "function", "function": {"name": "f", "x": 1}, "cache_control": {}}'
    raw = b'{"messages": [], "tools": [%b], "stream": true, "stream_options": {"x": 1}}' % function
    assert read(ChatBody, raw, True).tools[0].function.name == "f"  # in parts of a body too
    with pytest.raises(ApiError, match=r"tools\.0\.function\.x"):
        read(ChatBody, raw)


def test_null_is_left_out_in_parts_of_a_body_too() -> None:
    """Clients of typed languages write what they don't set."""
    function = b'{"type": "function", "x": null, "function": {"name": "f", "description": null}}'
    options = b'{"include_usage": true, "include_obfuscation": null}'
    extras = b'{"blocks": null}'
    raw = b'{"messages": [], "tools": [%b], "stream": true, "stream_options": %b, "foretoken": %b}'
    body = read(ChatBody, raw % (function, options, extras))
    assert body.stream_options.include_usage and not body.foretoken.blocks
    told = body.tools[0].model_dump(exclude_unset=True)
    assert told == {"type": "function", "function": {"name": "f"}}


MANY = {f"x{i}": 0 for i in range(50)}
CALLED = {"type": "function", "function": {"name": "f", **MANY}}
WRONG: list[tuple[type[Body], dict[str, Any]]] = [
    (ChatBody, {"messages": [0] * 50}),
    (ChatBody, {"messages": [], "tools": [0] * 50}),
    (ChatBody, {"messages": [], "tools": [CALLED] * 50}),
    (ChatBody, {"messages": [], "stream_options": MANY}),
    (CompletionBody, {"prompt": [-1] * 50}),
    (CompletionBody, {"prompt": [*[1] * 50, *[-1] * 50]}),
    (CompletionBody, {"prompt": ["a", *[0] * 50]}),
    (CompletionBody, {"prompt": [[-1, -1], *[[0, -1]] * 50]}),
    (CompletionBody, {"prompt": [[0], *[0] * 50]}),
    (CompletionBody, {"prompt": "a", "bad_words": [0] * 50}),
    (CompletionBody, {"prompt": "a", "allowed_token_ids": [-1] * 50}),
    (CompletionBody, {"prompt": "a", "stop_token_ids": [-1] * 50}),
    (CompletionBody, {"prompt": "a", "logit_bias": MANY}),
    (CompletionBody, {"prompt": "a", "logit_bias": {str(i): "a" for i in range(50)}}),
    (CompletionBody, {"prompt": "a", "logit_bias": {"²" * i: 0.5 for i in range(50)}}),
    (CompletionBody, {"prompt": "a", "foretoken": MANY}),
    (CompletionBody, {"prompt": "a", **MANY}),
    (DetokenizeBody, {"tokens": [-1] * 50}),
]


@pytest.mark.parametrize(("kind", "given"), WRONG, ids=range(len(WRONG)))
def test_one_wrong_element_is_enough(kind: type[Body], given: dict[str, Any]) -> None:
    """A validator keeps each error that it finds, and a body has room for millions."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(given)
    assert caught.value.error_count() == 1


def test_a_stop_that_is_wrong_twice() -> None:
    """It is no text, and its first element is none."""
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate({"prompt": "a", "stop": [0] * 50})
    assert caught.value.error_count() == 2


@pytest.mark.parametrize("prompt", ["a", [], ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_forms_of_a_prompt(prompt: Any) -> None:
    assert CompletionBody.model_validate({"prompt": prompt}).prompt == prompt


def test_what_each_step_goes_through_is_bounded() -> None:
    """All clients' steps wait for it, and a body has room for millions."""
    ids = {"allowed_token_ids": [5, 6, 5] * 10, "stop_token_ids": [7] * 10}
    made = params(CompletionBody.model_validate({"prompt": "a", **ids}), {}, None, None)
    assert (made.allowed_token_ids, made.stop_token_ids) == ((5, 6), (7,))
    for name, most in (("stop", 256), ("bad_words", 10_000)):
        body = CompletionBody.model_validate({"prompt": "a", name: ["b"] * (most + 1)})
        with pytest.raises(ApiError, match=f"texts; give at most {most:,}") as caught:
            params(body, {}, None, None)
        assert (caught.value.status, caught.value.param) == (400, name)
        fits = CompletionBody.model_validate({"prompt": "a", name: ["b"] * most})
        assert params(fits, {}, None, None)
    for empty in ({}, {"allowed_token_ids": []}):  # as in vLLM
        body = CompletionBody.model_validate({"prompt": "a", **empty})
        assert params(body, {}, None, None).allowed_token_ids is None
    full = CompletionBody.model_validate({"prompt": "a", "bad_words": ["b" * 50_000] * 2})
    assert params(full, {}, None, None).bad_words
    long = CompletionBody.model_validate({"prompt": "a", "bad_words": ["b" * 60_000] * 2})
    with pytest.raises(ApiError, match="120,000 characters; give at most 100,000 in all"):
        params(long, {}, None, None)
