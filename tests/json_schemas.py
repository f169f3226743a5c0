"""Schemas to write by: thirty by hand, and random ones."""

from __future__ import annotations

from random import Random
from typing import Any


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    needed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties} | needed | more


_TEXT = {"type": "string", "maxLength": 5}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
_LIST = {"type": "array", "items": _NUMBER, "maxItems": 3}
_POINT = _object({"x": _NUMBER, "y": _NUMBER})

SCHEMAS: list[Any] = [
    {"type": "null"},
    {"type": "boolean"},
    _NUMBER,
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "number", "minimum": 0, "maximum": 1},
    _TEXT,
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]{1,4}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"enum": ["red", "green", 3, None]},
    {"const": {"a": [1, 2]}},
    _LIST,
    {"type": "array", "items": _LIST, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [_NUMBER, _TEXT], "items": False, "minItems": 2},
    _POINT,
    _object({"name": _TEXT, "age": _NUMBER}),
    _object({"name": _TEXT, "age": _NUMBER}, required=["name"]),
    _object({}),
    _object({"a": _object({"b": _object({"c": _LIST})})}),
    _object({"points": {"type": "array", "items": _POINT, "maxItems": 2}}),
    _object({"kind": {"const": "circle"}, "radius": _NUMBER}),
    _object({"kind": {"enum": ["red", "blue"]}, "tags": _LIST}),
    {"anyOf": [_NUMBER, _TEXT]},
    {"anyOf": [_POINT, _LIST, {"type": "null"}]},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
    {"$ref": "#/$defs/point", "$defs": {"point": _POINT}},
    _object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}})
    | {"$defs": {"point": _POINT}},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 60}]},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": _object(
                {"value": _NUMBER, "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}
            )
        },
    },
]


def random_schema(random: Random, depth: int = 2) -> dict[str, Any]:
    """Any of the usual kinds, nested up to `depth`."""
    kinds = ["integer", "string", "enum", "boolean", "null", "number"]
    kind = random.choice(kinds + ["object", "array", "anyOf"] * 2 if depth else kinds)
    if kind == "integer":
        low = random.randint(-50, 50)
        return {"type": kind, "minimum": low, "maximum": low + random.randint(0, 500)}
    if kind == "string":
        return {"type": kind, "maxLength": random.randint(0, 6)}
    if kind == "enum":
        return {"enum": random.sample(["red", 'a"b', "é", "", 1, 2.5, None, True], 3)}
    if kind == "array":
        least = random.randint(0, 2)
        items = random_schema(random, depth - 1)
        return {"type": kind, "items": items, "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(random, depth - 1) for _ in range(2)]}
    if kind == "object":
        names = random.sample(["a", "name", "age", "x y", "ß"], random.randint(0, 3))
        schema = _object({name: random_schema(random, depth - 1) for name in names})
        return schema | {"required": names[: random.randint(0, len(names))]}
    return {"type": kind}
