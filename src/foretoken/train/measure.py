"""Measures what a trained drafter accepts when the engine serves the held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError
from foretoken.models.model import CausalLM
from foretoken.train.engines import beside
from foretoken.train.job import Setting
from foretoken.train.sources import sampling

_SERVED = 8
"""Prompts that are served side by side, where there is memory for them."""


def measure(setting: Setting, model: CausalLM, config: Mapping[str, Any]) -> AcceptanceStats:
    """The engine's counts when `model` serves the held-out prompts at the recipe's temperature.

    config: as `speculative_config`. Raises `ForetokenError` where a prompt can't be served.
    """
    llm, held_out = setting.llm, setting.held_out
    prompts = [held_out.prompt(i) for i in range(len(held_out)) if len(held_out.prompt(i))]
    recipe = setting.job.recipe
    longest = max(map(len, prompts), default=0) + recipe.max_tokens
    server = beside(llm, model, max(longest, recipe.length), _SERVED, config)
    for output in server.generate(prompts, sampling(setting.job)):
        if output.error:
            raise ForetokenError(output.error)
    return server.stats
