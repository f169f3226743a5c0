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


def test_what_it_would_read_past_is_refused() -> None:
    """`test_xgrammar_schemas.py` has what that is."""
    backend = XGrammar(tokenizer(), VOCAB, EOS)
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"not": {}}}}
    for form in ({"json": {"minimum": 5}}, {"structural_tag": tag}):
        with pytest.raises(ForetokenError, match="doesn't hold a text to"):
            backend.compile(StructuredOutputsParams(**form))


@pytest.mark.parametrize(
    ("schema", "fits", "not_so"),
    [
        ({"type": "integer", "multipleOf": 7}, "14", "12"),
        ({"type": "string", "maxLength": 2}, '"ab"', '"age"'),
        ({"type": "string", "enum": ["ab", "age"]}, '"ab"', '"red"'),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, '{"ab":1}', '{"age":1}'),
        (
            {"type": "object", "patternProperties": {"^a$": {"type": "null"}}},
            '{"a":null}',
            '{"a":1}',
        ),
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
