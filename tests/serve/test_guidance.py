"""What the text must be, over HTTP: in OpenAI's spelling and in vLLM's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from foretoken import LLM
from foretoken.serve.errors import ApiError
from foretoken.serve.guidance import constraint, predicted, sifted
from foretoken.serve.schema import CompletionBody, read
from json_tokenizer import pair, tokenizer
from served import serving

pytest.importorskip("llguidance")
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "maximum": 99, "minimum": 10}},
    "required": ["age"],
    "additionalProperties": False,
}
AS_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ASKED: Any = {"model": "toy", "prompt": "ab", "temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def writer() -> Iterator[OpenAI]:
    """A client of a server whose tokenizer can write JSON."""
    config = {"method": "sps", "model": pair().draft, "num_speculative_tokens": 3}
    llm = LLM(pair().target, tokenizer=tokenizer(), speculative_config=config)
    with serving(llm) as served, OpenAI(base_url=f"{served.url}/v1", api_key="any") as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_is_what_was_asked_for(writer: OpenAI, stream: bool) -> None:
    def text(**extra: Any) -> tuple[str, str | None]:
        answer: Any = writer.completions.create(**ASKED, stream=stream, extra_body=extra)
        choices = [part.choices[0] for part in (answer if stream else [answer])]
        return "".join(choice.text for choice in choices), choices[-1].finish_reason

    written, reason = text(response_format=AS_SCHEMA)
    assert 10 <= json.loads(written)["age"] <= 99 and reason == "stop"
    written, reason = text(structured_outputs={"regex": "[0-9]{3}"})
    assert re.fullmatch("[0-9]{3}", written) and reason == "stop"
    assert text(structured_outputs={"choice": ["red", "blue"]})[0] in ("red", "blue")


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_does_not_compile_is_the_clients(writer: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="regex"):
        writer.completions.create(
            **ASKED, stream=stream, extra_body={"structured_outputs": {"regex": "(a"}}
        )
    assert writer.completions.create(**ASKED).choices[0].text


def test_formats() -> None:
    assert constraint(None, None) is None and constraint(None, {"type": "text"}) is None
    assert constraint({"regex": "a"}, {"type": "text"}) == {"regex": "a"}
    assert constraint(None, {"type": "json_object"}) == {"json_object": True}
    assert constraint(None, AS_SCHEMA) == {"json": SCHEMA}
    assert constraint(None, {"type": "json_object", "schema": SCHEMA}) == {"json": SCHEMA}
    tag = {"type": "structural_tag", "structures": []}
    assert constraint(None, tag) == {"structural_tag": tag}
    wrongs: list[dict[str, Any]] = [{}, {"type": 3}, {"type": "json_object", "schema": True}]
    for wrong in (*wrongs, {"type": "json_schema", "json_schema": {"schema": "x"}}):
        with pytest.raises(ApiError, match="response_format"):
            constraint(None, wrong)
    with pytest.raises(ApiError, match="both"):
        constraint({"regex": "a"}, AS_SCHEMA)


DESCRIBED = {"name": "x", "description": "y", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize(
    ("field", "given", "says"),
    [
        ("response_format", {"type": "text", "schema": {}}, "'schema'; it takes type"),
        ("response_format", {"type": "json_object", "json_schema": {}}, "takes type, schema"),
        ("response_format", {"type": "json_schema", "schema": {}}, "takes type, json_schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": DESCRIBED | {"shema": {}}},
            "json_schema has 'shema'",
        ),
        ("prediction", {"type": "content", "content": "a", "text": "b"}, "takes type, content"),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_or_left_out(
    field: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        read(CompletionBody, json.dumps({"prompt": "a", field: given}).encode())
    assert caught.value.param == field
    read(CompletionBody, json.dumps({"prompt": "a", field: given}).encode(), True)


def test_what_is_known_stays_and_null_is_left_out() -> None:
    plain = {"type": "json_schema", "json_schema": DESCRIBED}
    assert sifted("response_format", plain, False) == plain
    nothing = plain | {"json_schema": DESCRIBED | {"strict": None}, "schema": None}
    told = sifted("response_format", nothing, False)
    assert told == plain | {"json_schema": {k: v for k, v in DESCRIBED.items() if k != "strict"}}
    for own in ({"type": "structural_tag", "structures": []}, {"type": "yaml", "x": 1}):
        assert sifted("response_format", own, False) == own


def test_predictions() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert predicted({"type": "content", "content": parts}) == "ab"
    assert predicted({"type": "content", "content": ""}) is None is predicted(None)
    wrongs = ({}, {"type": "content"}, {"type": "x", "content": "a"}, {"content": "a"})
    for wrong in (*wrongs, {"type": "content", "content": [{"type": "image_url", "text": "a"}]}):
        with pytest.raises(ApiError, match="prediction"):
            predicted(wrong)
