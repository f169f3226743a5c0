"""Engines that serve an online drafter, request by request."""

from __future__ import annotations

from typing import Any

import torch

from foretoken import SamplingParams
from foretoken.engine.engine import Engine
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.testing import Pair
from foretoken.testing.checks import PROMPTS
from foretoken.verify.speculative import Speculative

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
CPU = torch.device("cpu")


def served(
    drafter: Drafter, pair: Pair, prompts: Any, params: Any = GREEDY, rule: Any = None
) -> Any:
    """An engine that has answered the prompts one by one, waiting for each step of learning."""
    engine = Engine(ModelTarget(pair.target, 2, 128), drafter, rule or Speculative())
    return engine, [answered(engine, prompt, params) for prompt in prompts]


def answered(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> Any:
    engine.reset_stats()
    request = engine.add(prompt, params)
    while engine.busy:
        engine.step()
    engine.drafter.learner.turn()  # type: ignore[attr-defined]
    engine.drafter.learner.settle()  # type: ignore[attr-defined]
    return request.snapshot()


PROMPTS_OF_23 = [[token % 23 for token in prompt] for prompt in PROMPTS]
