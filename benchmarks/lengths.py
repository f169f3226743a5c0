"""Mean acceptance lengths on the bundled prompts' first turns, and ratios of two of them.

Prompts whose plain greedy answer loops are left out of every comparison. Intervals are paired over
prompts, 95 %.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from shared import bundled

from foretoken import LLM, SamplingParams
from foretoken.bench.paired import ratio_interval, values
from foretoken.loops import DISTINCT_4, distinct_4

WRITTEN = 64
LENGTH = "mean acceptance length"

Counts = dict[str, list[int]]
"""Prompt -> tokens and passes."""


def _served(
    model: str, config: Mapping[str, Any] | None, temperature: float, limit: int | None
) -> dict[str, Any]:
    """Prompt -> answer, of those that were answered."""
    llm = LLM(model, speculative_config=config)
    params = SamplingParams(temperature=temperature, max_tokens=WRITTEN, seed=0)
    asked = bundled(limit)
    prompts = [llm.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in asked]
    outs = llm.generate(prompts, params)
    return {p.id: out for p, out in zip(asked, outs, strict=True) if out.error is None}


def served(
    model: str, config: Mapping[str, Any], temperature: float, limit: int | None = None
) -> Counts:
    """What serving each prompt by a method took."""
    outs = _served(model, config, temperature, limit)
    return {key: [out.stats.tokens, out.stats.passes] for key, out in outs.items()}


def telling(model: str, limit: int | None = None) -> list[str]:
    """The prompts whose plain greedy answers do not loop."""
    outs = _served(model, None, 0.0, limit)
    return [key for key, out in outs.items() if distinct_4(out.token_ids) >= DISTINCT_4]


def compared(before: Counts, after: Counts, keep: Collection[str]) -> dict[str, Any]:
    """The lengths of two methods, and their ratio with its interval."""
    units = np.zeros((len(keep), 2, 5))
    for row, key in enumerate(sorted(keep)):
        for place, counts in enumerate((before, after)):
            units[row, place, [0, 2]] = counts[key]
    both = values(units, LENGTH)
    assert both is not None
    first, second = both
    low, high = ratio_interval(units, LENGTH, 0.025)
    return {"before": first, "length": second, "ratio": second / first, "interval": [low, high]}
