"""Mean acceptance lengths on the first turns of prompts, and ratios of two of them.

Prompts whose plain greedy answer loops are left out of every comparison. Intervals are paired over
prompts, 95 %.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from foretoken import LLM, SamplingParams
from foretoken.bench.plan import seed_of
from foretoken.bench.report.paired import ratio_interval, values
from foretoken.bench.suites.suite import Prompt
from foretoken.repetition import DISTINCT_4, distinct_4

WRITTEN = 64
_TOGETHER = 32  # sequences in a batch: passes are counted, not timed
LENGTH = "mean acceptance length"

Counts = dict[str, list[float]]
"""Prompt -> tokens and passes."""


def answers(
    model: str,
    config: Mapping[str, Any] | None,
    temperature: float,
    asked: Sequence[Prompt],
    samples: int = 1,
    max_tokens: int = WRITTEN,
) -> dict[str, list[Any]]:
    """Prompt -> answers, each with a seed of its own, where all were given."""
    llm = LLM(model, speculative_config=config, max_num_seqs=_TOGETHER)
    prompts = [llm.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in asked]
    outs: dict[str, list[Any]] = {p.id: [] for p in asked}
    for seed in range(samples):
        params = [
            SamplingParams(
                temperature=temperature, max_tokens=max_tokens, seed=seed_of(seed, prompt.id, 0)
            )
            for prompt in asked
        ]
        for prompt, out in zip(asked, llm.generate(prompts, params), strict=True):
            outs[prompt.id].append(out)
    return {key: each for key, each in outs.items() if all(out.error is None for out in each)}


def served(
    model: str,
    config: Mapping[str, Any],
    temperature: float,
    asked: Sequence[Prompt],
    samples: int = 1,
    max_tokens: int = WRITTEN,
) -> Counts:
    """What serving each prompt by a method took. samples: answers to each."""
    outs = answers(model, config, temperature, asked, samples, max_tokens)
    return {
        key: [sum(out.stats.tokens for out in each), sum(out.stats.passes for out in each)]
        for key, each in outs.items()
    }


def telling(model: str, asked: Sequence[Prompt], max_tokens: int = WRITTEN) -> list[Prompt]:
    """The prompts whose plain greedy answers do not loop."""
    return without_loops(asked, answers(model, None, 0.0, asked, max_tokens=max_tokens))


def without_loops(asked: Sequence[Prompt], greedy: Mapping[str, Sequence[Any]]) -> list[Prompt]:
    """The prompts whose answers, by their ids, are there and do not loop."""
    return [
        prompt
        for prompt in asked
        if prompt.id in greedy and distinct_4(greedy[prompt.id][0].token_ids) >= DISTINCT_4
    ]


def compared(before: Counts, after: Counts, keep: Collection[Prompt]) -> dict[str, Any]:
    """The lengths of two methods on these prompts, and their ratio with its interval."""
    units = np.zeros((len(keep), 2, 5))
    for row, key in enumerate(sorted(prompt.id for prompt in keep)):
        for place, counts in enumerate((before, after)):
            units[row, place, [0, 2]] = counts[key]
    both = values(units, LENGTH)
    assert both is not None
    first, second = both
    ratio = second / first
    ends = ratio_interval(units, LENGTH, 0.025) or (ratio, ratio)  # of a single prompt: a point
    return {"before": first, "length": second, "ratio": ratio, "interval": list(ends)}
