"""What a body says about the text itself: what it must be, and what it will probably be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.errors import shown
from foretoken.serve.errors import ApiError

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
"""The types of a `response_format`."""


def constraint(
    structured: Mapping[str, Any] | None, response_format: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """`SamplingParams.structured_outputs` of vLLM's field, or of OpenAI's; None where the text is
    free. Raises `ApiError` for both at once, and for a format that there isn't."""
    asked = None if response_format is None else _formatted(response_format)
    if structured is not None and asked is not None:
        raise ApiError(
            400,
            "structured_outputs and response_format are both given; leave one out.",
            "response_format",
        )
    return structured if asked is None else asked


def _formatted(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": given}
    if kind != "json_schema":
        raise ApiError(
            400,
            f"response_format.type is {shown(kind)}; give one of {', '.join(FORMATS)}.",
            "response_format",
        )
    described = given.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping):
        raise ApiError(
            400,
            "response_format.json_schema has no schema; give "
            '{"name": "…", "schema": {…}} as json_schema.',
            "response_format",
        )
    return {"json": schema}


def predicted(given: Mapping[str, Any] | None) -> str | None:
    """`SamplingParams.prediction` of OpenAI's object: its text, or the texts of its parts. Raises
    `ApiError` for another one."""
    if given is None:
        return None
    content = given.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if given.get("type") == "content" and isinstance(parts, list) and all(map(_is_text, parts)):
        return "".join(part["text"] for part in parts) or None
    raise ApiError(
        400,
        f"prediction is {shown(given)}; give "
        '{"type": "content", "content": "…"}, or parts of text as its content.',
        "prediction",
    )


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )
