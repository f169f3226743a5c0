"""What is asked for to do harm, or can't be had, ends its own request with one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from json_tokenizer import pair, tokenizer

pytest.importorskip("llguidance")
DEEP: dict[str, Any] = {}
for _ in range(3000):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
BRACKETS = "(" * 20_000 + '"a"' + ")" * 20_000
REFUSED: dict[str, dict[str, Any]] = {
    "a deep mapping": {"json": DEEP},
    "a deep text": {"json": '{"items":' * 100_000 + "{}" + "}" * 100_000},
    "too deep for the backend": {"json": '{"items":' * 150 + "{}" + "}" * 150},
    "a reference to itself": {"json": {"$ref": "#"}},
    "a reference elsewhere": {"json": {"$ref": "http://127.0.0.1/x.json"}},
    "an unsupported keyword": {"json": {"type": "array", "uniqueItems": True}},
    "no UTF-8 in a schema": {"json": {"const": "\ud800"}},
    "brackets": {"regex": "(" * 50_000 + ")" * 50_000},
    "a long expression": {"regex": "a" * 1_000_000},
    "look-ahead": {"regex": "(?=a)b"},
    "no UTF-8 in an expression": {"regex": "\ud800"},
    "a long choice": {"choice": ["a" * 2_000_000]},
    "no UTF-8 in a choice": {"choice": ["\ud800"]},
    "a deep grammar": {"grammar": f"start: {BRACKETS}"},
    "a deep GBNF": {"grammar": f"root ::= {BRACKETS}"},
    "a long array": {"json": {"type": "array", "items": {"enum": [1]}, "minItems": 10**8}},
    "a rule that is itself": {"grammar": "start: start"},
}
SERVED: dict[str, dict[str, Any]] = {
    "nested repetitions": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "doubled references": {
        "json": {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(25)},
                "25": {"type": "integer", "maximum": 99, "minimum": 0},
            },
        }
    },
    "many choices": {"choice": [f"x{i}" for i in range(3000)]},
}


@pytest.fixture(scope="module")
def llm() -> Any:
    with LLM(pair().target, tokenizer=tokenizer()) as made:
        yield made


def ask(llm: LLM, form: dict[str, Any]) -> Any:
    return llm.generate(
        ["ab"], SamplingParams(temperature=0, max_tokens=8, structured_outputs=form)
    )


@pytest.mark.parametrize("form", REFUSED.values(), ids=[*REFUSED])
def test_it_is_refused_by_one_sentence_that_names_it(llm: LLM, form: dict[str, Any]) -> None:
    try:
        said = str(ask(llm, form)[0].error)
    except ForetokenError as error:  # what is seen at once
        said = str(error)
    assert "structured_outputs" in said, said
    assert said.isprintable() and len(said) < 400 and "something else" not in said
    assert ask(llm, {"choice": ["red"]})[0].text == "red"  # and the next one is served


@pytest.mark.parametrize("form", SERVED.values(), ids=[*SERVED])
def test_it_is_served(llm: LLM, form: dict[str, Any]) -> None:
    [output] = ask(llm, form)
    assert output.outputs[0].finish_reason in ("stop", "length")
