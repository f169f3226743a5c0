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
