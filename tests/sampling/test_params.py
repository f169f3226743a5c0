"""Sampling parameters: what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError, SamplingParams


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (dict(n=0), "n"),
        (dict(temperature=-1), "temperature"),
        (dict(top_p=0), "top_p"),
        (dict(top_p=1.1), "top_p"),
        (dict(top_k=-2), "top_k"),
        (dict(min_p=1.5), "min_p"),
        (dict(repetition_penalty=0), "repetition_penalty"),
        (dict(max_tokens=0), "max_tokens"),
        (dict(min_tokens=9, max_tokens=3), "min_tokens"),
        (dict(logprobs=-1), "logprobs"),
        (dict(allowed_token_ids=[]), "allowed_token_ids"),
        (dict(stop=[""]), "stop"),
        (dict(stop=""), "stop"),
        (dict(temperature=float("nan")), "temperature"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(options: dict[str, Any], name: str) -> None:
    """A value out of range is one sentence that names the parameter and says what it may be."""
    with pytest.raises(ForetokenError, match=f"^{name} is .* it must be .*\\.$"):
        SamplingParams(**options)
