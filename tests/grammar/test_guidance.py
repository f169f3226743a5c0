"""llguidance: a matcher as the protocol asks for it, and valid texts for many schemas."""

from __future__ import annotations

import json
from random import Random
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import ForetokenError, SamplingParams, StructuredOutputsParams
from foretoken.config import build
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.grammar.guidance import Guidance, GuidanceMatcher
from foretoken.models.target import ModelTarget
from foretoken.verify.target_only import TargetOnly
from grammar_cases import CASES, EOS, SCHEMA, VOCAB, check_matcher
from json_schemas import SCHEMAS, random_schema
from json_tokenizer import ids, pair, tokenizer

pytest.importorskip("llguidance")


@pytest.mark.parametrize(("form", "text"), CASES)
def test_a_matcher_goes_on_and_back(form: dict[str, Any], text: str) -> None:
    backend = Guidance(tokenizer(), VOCAB, EOS)
    check_matcher(backend.compile(StructuredOutputsParams(**form)), text)


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        (r'root ::= "caf\u00e9"', "café"),
        (r'root ::= "d\u00e9faut"', "défaut"),
        (r'root ::= "\x41"', "A"),
        (r'root ::= "\U0001F642 \x1b\\x41\"\x22\[\]\n\xe9"', '🙂 \x1b\\x41""[]\né'),
        (r"root ::= [\x41-\x43\u00e9\]\x2d\u2191\\/]+", "ACé]-↑B\\/"),
        (r"root ::= [\x5eA]+ [^\x5e-\x61] # \u0022", "^A^é"),
    ],
)
def test_escapes_of_gbnf(gbnf: str, text: str) -> None:
    """Stand for their characters, in texts and in classes, and for no sign of a class."""
    matcher = Guidance(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(grammar=gbnf))()
    assert all(matcher.accept(token) for token in ids(text)) and matcher.complete
    other = Guidance(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(grammar=gbnf))()
    assert not all(other.accept(token) for token in ids("b"))


def test_escapes_that_stand_for_no_character() -> None:
    backend = Guidance(tokenizer(), VOCAB, EOS)
    for escape in (r"\ud83d", r"\UFFFFFFFF", r"\xg1", r"\d", "\\"):
        gbnf = f'root ::= "{escape}"'
        with pytest.raises(ForetokenError, match="grammar of structured_outputs can't be used"):
            backend.compile(StructuredOutputsParams(grammar=gbnf))


@pytest.mark.parametrize(
    ("gbnf", "fits", "not_so"),
    [
        ('root ::= "." . [.]  # .', ".\n.", ".a"),
        ('root ::= "a.[" .* "x"', "a.[\r\nbx", "a\n"),
        ('root ::= start "start"\nstart ::= "a" | start2\nstart2 ::= "b"', "bstart", "astart2"),
    ],
)
def test_parts_of_gbnf_that_are_others_in_lark(gbnf: str, fits: str, not_so: str) -> None:
    """A dot is any character, a line break too, and any rule may have the name `start`."""
    for text, fit in ((fits, True), (not_so, False)):
        matcher = Guidance(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(grammar=gbnf))()
        assert (all(matcher.accept(token) for token in ids(text)) and matcher.complete) is fit


def test_long_grammars_are_read_at_once() -> None:
    """Those with a class or a text that is never closed too: everybody waits meanwhile."""
    backend, began = Guidance(tokenizer(), VOCAB, EOS), process_time()
    for part in ("[", '["'):
        gbnf = "root ::= " + part * 50_000
        with pytest.raises(ForetokenError, match="grammar of structured_outputs can't be used"):
            backend.compile(StructuredOutputsParams(grammar=gbnf))
    backend.compile(StructuredOutputsParams(grammar="\n" * 50_000 + 'root ::= "a"'))
    assert process_time() - began < 5


def test_lark_is_read_as_it_is() -> None:
    """Also where it speaks of what GBNF is told by."""
    lark = 'start: "::=" /[\\x{41}\\[]/'
    matcher = Guidance(tokenizer(), VOCAB, EOS).compile(StructuredOutputsParams(grammar=lark))()
    assert all(matcher.accept(token) for token in ids("::=A")) and matcher.complete


def test_forced_text_is_cut_as_the_tokenizer_cuts_it() -> None:
    backend = Guidance(tokenizer(), VOCAB, EOS)
    matcher = backend.compile(StructuredOutputsParams(json=SCHEMA))()
    assert matcher.forced() == ids('{"name":"')
    for token in ids('{"name":"x"'):
        assert matcher.accept(token)
    assert matcher.forced() == ids(',"tags":"')


def test_white_space_is_what_was_asked_for() -> None:
    backend = Guidance(tokenizer(), VOCAB, EOS)
    options: list[tuple[dict[str, Any], str, bool]] = [
        ({}, "{ ", False),
        ({"disable_any_whitespace": False}, "{ \n ", True),
        ({"whitespace_pattern": "[ ]?"}, "{ ", True),
        ({"whitespace_pattern": "[ ]?"}, "{\n", False),
    ]
    for more, text, fits in options:
        matcher = backend.compile(StructuredOutputsParams(json=SCHEMA, **more))()
        assert all(matcher.accept(token) for token in ids(text)) is fits, (more, text)


def test_what_it_cannot_compile_is_one_sentence() -> None:
    backend = Guidance(tokenizer(), VOCAB, EOS)
    for form in ({"structural_tag": {"type": "structural_tag"}}, {"json": {"not": {}}}):
        with pytest.raises(ForetokenError):
            backend.compile(StructuredOutputsParams(**form))
    with pytest.raises(ForetokenError, match="structured_outputs can't read the tokenizer"):
        Guidance(object(), VOCAB, EOS)


class Spent:
    """llguidance's own matcher, of a grammar that has become too complex."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return 0

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return "too many\nitems\n<state>\nall of them"


def test_what_it_cannot_follow_is_one_sentence() -> None:
    matcher = GuidanceMatcher(Spent(), SimpleNamespace(eos_tokens=[0]))
    with pytest.raises(ForetokenError, match=r"any further \(too many items\); use a simpler"):
        matcher.accept(3)


def written(schemas: list[Any], tokens: int, temperature: float = 1.0) -> list[Request]:
    target = ModelTarget(pair().target, 4, 256, tokenizer=tokenizer())
    drafter = build({"method": "grammar+suffix"}).drafter
    engine = Engine(target, drafter, TargetOnly(), eos_ids=EOS)
    requests = [
        engine.add(
            ids("the"),
            SamplingParams(
                temperature=temperature,
                seed=seed,
                max_tokens=tokens,
                structured_outputs={"json": schema},
            ),
        )
        for seed, schema in enumerate(schemas)
    ]
    while engine.busy:
        engine.step()
    return requests


def valid(request: Request, schema: Any) -> bool:
    """Whether the text is a JSON value that the schema allows, as far as this looks."""
    text = tokenizer().decode(request.samples[0].output.token_ids, skip_special_tokens=True)
    return _fits(json.loads(text), schema, schema)


_KINDS: dict[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}


def _fits(value: Any, schema: Any, root: Any) -> bool:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        return any(_fits(value, part, root) for part in schema["anyOf"])
    if "allOf" in schema:
        return all(_fits(value, part, root) for part in schema["allOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, _KINDS[kind]) for kind in kinds):
        return False
    if isinstance(value, dict):
        known = schema["properties"]
        named = set(schema.get("required", [])) <= set(value) <= set(known)
        return named and all(_fits(item, known[key], root) for key, item in value.items())
    if isinstance(value, list):
        items = schema.get("items") or {}
        sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 99)
        return sized and all(_fits(item, items, root) for item in value)
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99)
    return value is None or schema.get("minimum", value) <= value <= schema.get("maximum", value)


def test_thirty_schemas_are_written_whole() -> None:
    """Valid and complete, or ended by their length."""
    assert len(SCHEMAS) == 30
    whole = 0
    for request, schema in zip(written(SCHEMAS, 120), SCHEMAS, strict=True):
        reason = request.samples[0].output.finish_reason
        assert request.error is None and reason in ("stop", "length"), request.error
        whole += reason == "stop"
        assert reason == "length" or valid(request, schema), schema
    assert whole >= 26


def fuzz(count: int, seed: int) -> None:
    """No crash, no hang, and every whole text is valid."""
    random = Random(seed)
    schemas = [random_schema(random, 3) for _ in range(count)]
    began = perf_counter()
    for request, schema in zip(written(schemas, 60, 1.5), schemas, strict=True):
        assert request.error is None, (schema, request.error)
        if request.samples[0].output.finish_reason == "stop":
            assert valid(request, schema), schema
    assert perf_counter() - began < 0.5 * count


def test_forty_random_schemas() -> None:
    fuzz(40, seed=0)


@pytest.mark.slow
def test_five_hundred_random_schemas() -> None:
    fuzz(500, seed=1)
