"""Answers with known times and counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretoken.bench.record import Answer


def answer(**given: Any) -> Answer:
    """Four tokens in two passes, a tenth of a second in all."""
    seconds = {
        "prefill": 0.01,
        "draft": 0.02,
        "verify": 0.07,
        "other": 0.01,
        "ttft": 0.03,
        "total": 0.12,
    }
    plain = Answer(
        target="t",
        method="pld",
        temperature=0.0,
        id="a-1",
        task="a",
        turn=0,
        prompt="Hi <b>",
        text="w x y z",
        finish_reason="length",
        token_ids=[5, 6, 7, 8],
        pieces=["w", " x", " y", " <z>"],
        accepted=[True, True, False, False],
        passes=2,
        drafted=3,
        drafted_at=[2, 1],
        accepted_at=[1, 1],
        seconds=seconds,
        peak_memory_mib=10.0,
        sameness="identical",
    )
    return replace(plain, **{"group": given.get("id", "a-1"), **given})


def plain(**given: Any) -> Answer:
    return answer(
        method="autoregressive",
        passes=4,
        drafted=0,
        drafted_at=[],
        accepted_at=[],
        accepted=[False] * 4,
        **given,
    )
