"""What a request may ask its text to be, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError, SamplingParams, StructuredOutputsParams


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "none of its forms"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json_object": False}, "none of its forms"),
        ({"regexp": "a"}, "regex"),
        ({"regex": 3}, "regex of structured_outputs is 3"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"regex": "a", "reasoning_end": ""}, "reasoning_end"),
        ({"regex": "a", "reasoning_end": []}, "reasoning_end .* is empty"),
        ({"json": 3}, "json of structured_outputs is 3"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    """One sentence names the field, given as a mapping or as an object."""
    for make in (StructuredOutputsParams, _of_mapping):
        with pytest.raises(ForetokenError, match=said):
            make(**options)


def _of_mapping(**options: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=options)


def test_a_mapping_is_enough() -> None:
    """A request gives vLLM's names."""
    params = SamplingParams(structured_outputs={"json": {"type": "object"}})
    assert params.structured_outputs == StructuredOutputsParams(json={"type": "object"})
    assert params.edits and params.reads_context
    assert SamplingParams(structured_outputs=None).structured_outputs is None
    with pytest.raises(ForetokenError, match="structured_outputs is 'json'"):
        SamplingParams(structured_outputs="json")  # type: ignore[arg-type]


def test_equal_grammars_have_one_key() -> None:
    """What compiles to the same grammar is compiled once."""
    schema = StructuredOutputsParams(json={"type": "object"})
    assert schema.key == StructuredOutputsParams(json='{"type":   "object"}').key
    assert schema.key == StructuredOutputsParams(json_object=True).key
    assert schema.key == StructuredOutputsParams(json_object=True, reasoning_end="x").key
    assert len(repr(StructuredOutputsParams(regex="a" * 10**6).key)) < 100
    loose = StructuredOutputsParams(json_object=True, disable_any_whitespace=False)
    spaced = StructuredOutputsParams(json_object=True, whitespace_pattern=" ?")
    assert len({schema.key, loose.key, spaced.key}) == 3
    assert StructuredOutputsParams(regex="a").key != StructuredOutputsParams(grammar="a").key
    for text in ("{", "[" * 100_000):
        with pytest.raises(ForetokenError, match="no JSON"):
            _ = StructuredOutputsParams(json=text).key


def test_a_schema_that_asks_nothing_is_one() -> None:
    assert StructuredOutputsParams(json={}).form == "json"
