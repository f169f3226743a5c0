"""Which JSON schemas xgrammar holds texts to.

It goes one way for each schema, by the first of some keywords, and reads past whatever that way
doesn't act on. So what is acted on is listed here, and every other keyword is refused.
"""

from __future__ import annotations

from typing import Any

from foretoken.errors import ForetokenError, shown

_ASKS_NOTHING = {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"}
_ASKS_NOTHING |= {"title", "description", "default", "examples", "deprecated", "discriminator"}
_ASKS_NOTHING |= {"readOnly", "writeOnly", "contentEncoding", "contentMediaType"}
"""Keywords that ask nothing of a text."""

_WAYS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The keywords that it goes by, in its order; where there is none it goes by the type."""

_RANGE = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_OF_TYPE: dict[str, set[str]] = {
    "array": {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"},
    "integer": {*_RANGE, "multipleOf"},
    "number": _RANGE,
    "object": {
        *("properties", "additionalProperties", "unevaluatedProperties", "required"),
        *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
    },
    "string": {"format", "pattern", "minLength", "maxLength"},
}
"""Type -> the keywords that are acted on, but for what `_passed` names."""

_UNTYPED = {
    "object": {"properties", "additionalProperties", "unevaluatedProperties"},
    "array": {"items", "prefixItems", "unevaluatedItems"},
}
"""Type -> the keywords by which a schema without a type is taken for one of it."""

_FORMATS = {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer"}
_FORMATS |= {"relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid"}
_MOST = 1024  # multipleOf

_VALUES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
"""Type -> the types of its values in Python."""

_NAMED = {"properties", "patternProperties", "$defs", "definitions"}
_LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SINGLE = {"items", "unevaluatedItems", "additionalProperties", "unevaluatedProperties"}
"""Keywords with schemas by names, in a list, and with one."""


def check_schema(schema: Any) -> None:
    """Raise `ForetokenError` for a keyword that the text would not be held to."""
    todo = [schema]
    while todo:
        given = todo.pop()
        if not isinstance(given, dict):
            continue  # true, false, or what xgrammar refuses by itself
        heeded = _heeded(given) | _ASKS_NOTHING
        for name, value in given.items():
            if name not in heeded:
                raise ForetokenError(
                    f"xgrammar doesn't hold a text to {name} in the JSON schema {shown(given)}; "
                    "leave it out, or use structured_outputs_backend='guidance'."
                )
            todo += _within(name, value)


def check_tag(tag: Any) -> None:
    """The same for the schemas in a structural tag."""
    todo = [tag]
    while todo:
        given = todo.pop()
        if isinstance(given, list):
            todo += given
        for name, value in given.items() if isinstance(given, dict) else ():
            if name in ("json_schema", "schema"):
                check_schema(value)
            else:
                todo.append(value)


def _within(name: str, value: Any) -> list[Any]:
    """The schemas in a keyword's value."""
    if name == "propertyNames" and isinstance(value, dict):
        return [{"type": "string", **value}]  # it is read so
    if name in _NAMED and isinstance(value, dict):
        return list(value.values())
    if name in _LISTED and isinstance(value, list):
        return value
    return [value] if name in _SINGLE else []


def _heeded(schema: dict[str, Any]) -> set[str]:
    """The keywords of a schema that are acted on."""
    given = schema.get("type", [])
    types = given if isinstance(given, list) else [given]
    way = next((name for name in _WAYS if name in schema), None)
    if way is None:
        if not types:
            types = [kind for kind, names in _UNTYPED.items() if names & schema.keys()][:1]
        acted = set[str]().union(*(_OF_TYPE.get(kind, ()) for kind in types))
        return {"type", *acted} - _passed(schema, types)
    value = schema[way]
    if way == "$ref" and value != "#" and not str(value).startswith("#/"):
        return set()
    if way == "allOf" and len(value) > 1:
        return set()
    # What is named is written whatever its type is.
    fixed = value if way == "enum" else [value] if way == "const" else None
    return {way, "type"} if fixed is not None and all(_is_of(v, types) for v in fixed) else {way}


def _is_of(value: Any, types: list[str]) -> bool:
    return any(type(value) in _VALUES.get(kind, ()) for kind in types)


def _passed(schema: dict[str, Any], types: list[str]) -> set[str]:
    """What isn't acted on because of its value, or of what stands beside it."""
    names = schema.keys()
    properties = schema.get("properties", {})
    times = schema.get("multipleOf")
    acted = {
        "multipleOf": "number" not in types
        and not names & _RANGE
        and type(times) is int
        and times <= _MOST,
        "format": schema.get("format") in _FORMATS,
        "pattern": "format" not in names,
        "minLength": not names & {"format", "pattern"},
        "maxLength": not names & {"format", "pattern"},
        "uniqueItems": schema.get("uniqueItems") is False,
        "required": properties.keys() >= set(schema.get("required", ())),
        "patternProperties": not names & {"properties", "propertyNames"}
        and len(schema.get("patternProperties", ())) < 2,
        "propertyNames": not names & {"properties", "patternProperties"},
        "additionalProperties": "propertyNames" not in names,
        "unevaluatedProperties": "propertyNames" not in names,
    }
    return {name for name, so in acted.items() if not so}
