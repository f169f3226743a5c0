"""Sampling parameters: what is wrong is named."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import ForetokenError, SamplingParams

NAN, INF = float("nan"), float("inf")
WHOLE = ["four", 1.5, True, NAN, INF, [1], (), b"1", 1j, object(), int]
NUMBER = ["0.5", True, NAN, INF, -INF, [0.5], {}, None, 10**400, float]
FLAG = [None, 1, 0, "true", "", []]
IDS = [5, "12", b"12", [1.5], [True], ["1"], [None], [[1]], {1, 2}, {1: 2}, np.array(1), [NAN]]

HOSTILE: dict[str, list[Any]] = {
    "n": [*WHOLE, None, 0, -1, 16_385, 10**12],
    "temperature": [*NUMBER, -1, -1e-9, 1e30],
    "top_k": [*WHOLE, None, -2],
    "top_p": [*NUMBER, 0, 1.1, -0.5],
    "min_p": [*NUMBER, -0.1, 1.5],
    "repetition_penalty": [*NUMBER, 0, -1, 1e-30, 1e30],
    "presence_penalty": [*NUMBER, 1e30, -1e30],
    "frequency_penalty": [*NUMBER, 1e30, -1e30],
    "logit_bias": [
        3,
        "a",
        [(1, 2.0)],
        {"1": 2.0},
        {1: "2"},
        {1: NAN},
        {1: INF},
        {1.5: 1},
        {1: 1e9},
    ],
    "allowed_token_ids": [*IDS, []],
    "bad_token_ids": IDS,
    "bad_words": ["text", b"text", 3, [3], [None], [""], [[]], [[1.5]], [[True]], {"a"}],
    "logits_processor_factories": [list, [3], "abc", [None], {list}],
    "logits_processors": [print, [3], "abc", [None], {print}],
    "seed": WHOLE,
    "stop": [3, b"x", [1], [b"x"], [None], {"x"}, "", [""], ["a", ""], "\ud800", ["a\udfff"], True],
    "include_stop_str_in_output": FLAG,
    "stop_token_ids": IDS,
    "ignore_eos": FLAG,
    "max_tokens": [*WHOLE, 0, -5],
    "min_tokens": [*WHOLE, None, -1, 17],
    "logprobs": [*WHOLE, -1],
    "prompt_logprobs": [*WHOLE, -1],
    "skip_special_tokens": FLAG,
    "references": ["text", b"text", 3, [3], [None], [b"x"], [[1.5]], [["a"]], {"a"}, [[True]]],
    "prediction": [b"text", 3, [None], [b"x"], [1.5], ["a"], {"a"}, [True]],
    "cache_salt": ["", 3, b"x", ["a"], True],
    "structured_outputs": [3, "a", [1], b"x", {1: "a"}, SamplingParams],
    "max_draft_tokens": [*WHOLE, -1],
    "return_drafts": FLAG,
    "timeout": [value for value in NUMBER if value is not None] + [0, -1],
}


def test_each_field_has_hostile_values() -> None:
    assert set(HOSTILE) == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_parameters_are_named(name: str) -> None:
    """A value of another type or out of range is one sentence that names the parameter and says
    what it may be."""
    for value in HOSTILE[name]:
        with pytest.raises(ForetokenError, match=f"^{name} is .* it must be .*\\.$"):
            SamplingParams(**{name: value})


def test_the_bounds_between_two_fields() -> None:
    with pytest.raises(ForetokenError, match=r"min_tokens is 9; .* between 0 and max_tokens"):
        SamplingParams(min_tokens=9, max_tokens=3)
    assert SamplingParams(min_tokens=9, max_tokens=None).min_tokens == 9


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("n", np.int64(2), 2),
        ("max_tokens", 16.0, 16),
        ("max_tokens", None, None),
        ("temperature", 0, 0.0),
        ("temperature", np.float32(0.5), 0.5),
        ("top_k", -1, -1),
        ("seed", None, None),
        ("seed", 10**40, 10**40),
        ("seed", -3, -3),
        ("seed", -1, None),
        ("logprobs", None, None),
        ("logit_bias", {np.int32(3): 1}, {3: 1.0}),
        ("allowed_token_ids", np.array([3, 1]), (3, 1)),
        ("bad_token_ids", torch.tensor([3]), (3,)),
        ("bad_token_ids", None, None),
        ("stop", None, ()),
        ("stop", "x", "x"),
        ("stop", ["x"], ("x",)),
        ("stop_token_ids", None, ()),
        ("logits_processors", None, ()),
        ("references", None, ()),
        ("references", ["a", np.array([1, 2]), [3]], ("a", (1, 2), (3,))),
        ("ignore_eos", np.bool_(True), True),
        ("timeout", 3, 3.0),
    ],
    ids=repr,
)
def test_what_is_kept(name: str, given: Any, kept: Any) -> None:
    """Numbers of numpy, whole floats, arrays and None for an empty list, as Python's own types."""
    value = getattr(SamplingParams(**{name: given}), name)
    assert value == kept and type(value) is type(kept)


def test_a_list_that_changes_later_changes_nothing() -> None:
    """The parameters of a request stay what was checked."""
    banned = [1]
    params = SamplingParams(bad_token_ids=banned)
    banned.append(-5)
    assert params.bad_token_ids == (1,)


def test_copies() -> None:
    """Copied, pickled and changed parameters are checked and equal."""
    params = SamplingParams(seed=3, stop=["a"], logit_bias={1: 2.0})
    for other in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert other == params == dataclasses.replace(params)
    with pytest.raises(ForetokenError, match=r"^n is 0"):
        dataclasses.replace(params, n=0)
