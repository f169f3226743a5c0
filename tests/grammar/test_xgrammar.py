"""xgrammar behind the same protocol; skipped where it isn't installed."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError, StructuredOutputsParams
from foretoken.grammar.xgrammar import XGrammar
from grammar_cases import CASES, EOS, SCHEMA, VOCAB, check_matcher
from json_tokenizer import ids, tokenizer

pytest.importorskip("xgrammar")


@pytest.mark.parametrize(("form", "text"), CASES)
def test_a_matcher_goes_on_and_back(form: dict[str, Any], text: str) -> None:
    backend = XGrammar(tokenizer(), VOCAB, EOS)
    check_matcher(backend.compile(StructuredOutputsParams(**form)), text)


def test_forced_text_is_cut_as_the_tokenizer_cuts_it() -> None:
    matcher = XGrammar(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(json=SCHEMA))()
    assert matcher.forced() == ids('{"name":"')


def test_what_it_cannot_compile_is_one_sentence() -> None:
    backend = XGrammar(tokenizer(), VOCAB, EOS)
    for form in ({"regex": "("}, {"json": {"type": "colour"}}, {"grammar": "root ::= nothing"}):
        with pytest.raises(ForetokenError, match="can't be used"):
            backend.compile(StructuredOutputsParams(**form))
    spaced = StructuredOutputsParams(json=SCHEMA, whitespace_pattern=" ?")
    with pytest.raises(ForetokenError, match="guidance"):
        backend.compile(spaced)


@pytest.mark.parametrize(
    ("keyword", "inner"),
    [
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("contains", {"type": "array", "contains": {"const": 7}}),
        ("multipleOf", {"type": "number", "multipleOf": 0.5}),
        ("maxLength", {"type": "string", "pattern": "^a+$", "maxLength": 2}),
        ("not", {"type": "integer", "not": {"const": 7}}),
        ("if", {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 6}}),
        ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
        ("allOf", {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]}),
    ],
)
def test_what_it_would_read_past_is_refused(keyword: str, inner: dict[str, Any]) -> None:
    """Wherever a schema stands. A name or a value that is spelt so is none."""
    backend = XGrammar(tokenizer(), VOCAB, EOS)
    for schema in (
        inner,
        {"type": "object", "properties": {"a": inner}},
        {"anyOf": [{"type": "null"}, inner]},
        {"$ref": "#/$defs/a", "$defs": {"a": inner}},
    ):
        with pytest.raises(ForetokenError, match=keyword):
            backend.compile(StructuredOutputsParams(json=schema))
    named = {"type": "object", "properties": {keyword: {"type": "null"}}}
    backend.compile(StructuredOutputsParams(json=named))
    backend.compile(StructuredOutputsParams(json={"enum": [keyword], "default": inner}))


@pytest.mark.parametrize(
    ("schema", "fits", "not_so"),
    [
        ({"type": "integer", "multipleOf": 7}, "14", "12"),
        ({"type": "string", "maxLength": 2}, '"ab"', '"age"'),
        ({"allOf": [{"type": "integer", "maximum": 5}]}, "1", "12"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": False}, "[null]", "[1]"),
    ],
)
def test_what_it_acts_on_is_not_refused(schema: dict[str, Any], fits: str, not_so: str) -> None:
    start = XGrammar(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(json=schema))
    for text, fit in (fits, True), (not_so, False):
        matcher = start()
        assert (all(matcher.accept(t) for t in ids(text)) and matcher.complete) == fit


def test_free_text_with_structured_parts() -> None:
    """A structural tag: what stands between its marks is constrained, the rest is free."""
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f>"],
            "tags": [
                {
                    "begin": "<f>",
                    "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
                    "end": "</f>",
                }
            ],
        },
    }
    start = XGrammar(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(structural_tag=tag))
    fits, not_so = "ab <f>true</f> 12", "ab <f>12"
    assert all(start_at.accept(t) for start_at in [start()] for t in ids(fits))
    matcher = start()
    assert not all(matcher.accept(t) for t in ids(not_so))
