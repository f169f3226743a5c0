"""What xgrammar would read past is refused; what it acts on is not, and needs no xgrammar here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.grammar.xgrammar_schemas import check_schema, check_tag

READ_PAST: list[tuple[str, dict[str, Any]]] = [
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("contains", {"type": "array", "contains": {"const": 7}}),
    ("additionalItems", {"type": "array", "additionalItems": False}),
    ("maxItems", {"maxItems": 1}),
    ("minimum", {"minimum": 5}),
    ("minimum", {"const": 5, "minimum": 9}),
    ("minimum", {"anyOf": [{"type": "integer"}], "minimum": 9}),
    ("multipleOf", {"type": "number", "multipleOf": 0.5}),
    ("multipleOf", {"type": ["integer", "number"], "multipleOf": 2}),
    ("multipleOf", {"type": "integer", "multipleOf": 0.5}),
    ("multipleOf", {"type": "integer", "multipleOf": 100_000}),
    ("multipleOf", {"type": "integer", "multipleOf": 2, "minimum": 0}),
    ("pattern", {"pattern": "^a+$"}),
    ("pattern", {"type": "string", "format": "date", "pattern": "^1"}),
    ("format", {"type": "string", "format": "phone"}),
    ("maxLength", {"maxLength": 1}),
    ("maxLength", {"type": "string", "pattern": "^a+$", "maxLength": 2}),
    ("maxLength", {"type": "string", "format": "date", "maxLength": 2}),
    ("maxLength", {"type": "integer", "maxLength": 2}),
    ("type", {"type": "string", "enum": ["a", 1]}),
    ("type", {"type": "integer", "const": True}),
    ("not", {"type": "integer", "not": {"const": 7}}),
    ("if", {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 6}}),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]}),
    ("$ref", {"$ref": "other.json"}),
    ("$ref", {"$ref": "#name"}),
    ("nullable", {"type": "string", "nullable": True}),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ("dependencies", {"properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}),
    ("required", {"required": ["a"]}),
    ("required", {"type": "object", "properties": {"a": {}}, "required": ["b"]}),
    ("maxProperties", {"maxProperties": 0}),
    ("propertyNames", {"propertyNames": {"maxLength": 1}}),
    ("propertyNames", {"properties": {"ab": {}}, "propertyNames": {"maxLength": 1}}),
    (
        "propertyNames",
        {"type": "object", "propertyNames": {"maxLength": 1}, "patternProperties": {"^a": {}}},
    ),
    ("type", {"type": "object", "propertyNames": {"enum": ["a", 1]}}),
    (
        "additionalProperties",
        {"propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "null"}},
    ),
    ("unevaluatedProperties", {"propertyNames": {}, "unevaluatedProperties": False}),
    ("patternProperties", {"patternProperties": {"^a": {"type": "integer"}}}),
    ("patternProperties", {"type": "object", "patternProperties": {"^a": {}, "b$": {}}}),
    ("patternProperties", {"properties": {"a": {}}, "patternProperties": {"^a": {}}}),
]


@pytest.mark.parametrize(("keyword", "inner"), READ_PAST)
def test_what_it_would_read_past_is_refused(keyword: str, inner: dict[str, Any]) -> None:
    """Wherever a schema stands. A name or a value that is spelt so is none."""
    tags = (
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": inner}},
        {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": inner}]},
    )
    said = rf"doesn't hold a text to \{keyword} in" if keyword[0] == "$" else f" to {keyword} in"
    for tag in tags:
        with pytest.raises(ForetokenError, match=said):
            check_tag(tag)
    for schema in (
        inner,
        {"type": "object", "properties": {"a": inner}},
        {"type": "array", "prefixItems": [inner]},
        {"type": "array", "items": inner},
        {"additionalProperties": inner},
        {"anyOf": [{"type": "null"}, inner]},
        {"$ref": "#/$defs/a", "$defs": {"a": inner}},
    ):
        with pytest.raises(ForetokenError, match=said):
            check_schema(schema)
    check_schema({"type": "object", "properties": {keyword: {"type": "null"}}})
    check_schema({"enum": [keyword], "default": inner, "examples": [inner]})


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"title": "A", "description": "b", "$schema": "draft"},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 9},
        {"type": "integer", "multipleOf": 7},
        {"type": "integer", "multipleOf": 1024},
        {"type": ["string", "null"], "pattern": "^a+$"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "minLength": 1, "maxLength": 2},
        {"type": "string", "enum": ["a", "b"]},
        {"type": ["string", "null"], "enum": ["a", None]},
        {"type": "number", "const": 1},
        {"allOf": [{"type": "integer", "maximum": 5}], "description": "b"},
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "uniqueItems": False},
        {"prefixItems": [{"type": "null"}], "items": False},
        {"properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "propertyNames": {"maxLength": 1}, "maxProperties": 2},
        {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "minProperties": 1},
        {
            "discriminator": {"propertyName": "k", "mapping": {"a": "#/$defs/A"}},
            "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#"}],
            "$defs": {"A": {"properties": {"k": {"const": "a", "type": "string"}}}},
        },
    ],
    ids=json.dumps,
)
def test_what_it_acts_on_is_not_refused(schema: Any) -> None:
    check_schema(schema)
    check_tag({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": schema}]})
