"""Measures what a trained drafter accepts when the engine serves the held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.models.model import CausalLM
from foretoken.train.job import Setting
from foretoken.train.sources import sampling


def measure(setting: Setting, model: CausalLM, config: Mapping[str, Any]) -> AcceptanceStats:
    """The engine's counts when `model` serves the held-out prompts at the recipe's temperature.

    config: as `speculative_config`. Raises `ForetokenError` where a prompt can't be served.
    """
    llm, held_out = setting.llm, setting.held_out
    server = LLM(
        model,
        tokenizer=llm.tokenizer,
        speculative_config=config,
        eos_ids=llm.engine.eos_ids,
    )
    prompts = [held_out.prompt(i) for i in range(len(held_out)) if len(held_out.prompt(i))]
    for output in server.generate(prompts, sampling(setting.job)):
        if output.error:
            raise ForetokenError(output.error)
    return server.stats
