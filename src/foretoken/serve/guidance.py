"""What a body says about the text itself: what it must be, and what it will probably be."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.errors import shown
from foretoken.serve.errors import ApiError

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
"""The types of a `response_format`."""
_KEYS: Mapping[str, Mapping[str, Seq[str]]] = {
    "response_format": {
        "text": ("type",),
        "json_object": ("type", "schema"),
        "json_schema": ("type", "json_schema"),
    },
    "prediction": {"content": ("type", "content")},
}
"""Field -> type -> what its object has. What a structural tag has is xgrammar's."""
_DESCRIBED = ("name", "description", "schema", "strict")
"""What a json_schema has."""


def sifted(field: str, given: Mapping[str, Any], ignore_unknown: bool) -> Mapping[str, Any]:
    """The object of one of these fields without what is null. Raises `ApiError` for a key that
    isn't known, unless such are left out."""
    keys = _KEYS[field].get(str(given.get("type")))
    if keys is None:  # a type that is refused later on
        return given
    known = _known(field, given, keys, ignore_unknown)
    described = known.get("json_schema")
    if isinstance(described, Mapping):
        name = f"{field}.json_schema"
        known["json_schema"] = _known(name, described, _DESCRIBED, ignore_unknown)
    return known


def _known(
    name: str, given: Mapping[str, Any], keys: Seq[str], ignore_unknown: bool
) -> dict[str, Any]:
    told = {key: value for key, value in given.items() if value is not None}
    other = next((key for key in told if key not in keys), None)
    if other is not None and not ignore_unknown:
        takes = ", ".join(keys)
        raise ApiError(400, f"{name} has {shown(other)}; it takes {takes}.", name.split(".")[0])
    return {key: value for key, value in told.items() if key in keys}


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
    if kind == "json_object" and "schema" not in given:
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": given}
    if kind not in ("json_object", "json_schema"):
        raise ApiError(
            400,
            f"response_format.type is {shown(kind)}; give one of {', '.join(FORMATS)}.",
            "response_format",
        )
    own = kind == "json_object"  # as llama.cpp's server has it
    described = given if own else given.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping):
        place = "response_format" if own else "response_format.json_schema"
        told = f'{place} has no schema; give one as "schema": {{…}}.'
        raise ApiError(400, told, "response_format")
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
