"""Engines of tiny models, for the tests of what an engine does."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.testing import (
    ByteTokenizer,
    Pair,
)
from foretoken.testing.checks import greedy_reference
from foretoken.verify.target_only import TargetOnly

PROMPTS = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3], [11] * 3, [1], [60, 61, 62, 60]]


GREEDY = SamplingParams(temperature=0, max_tokens=20)


BYTES = ByteTokenizer()


def engine_of(pair: Pair, drafter: Drafter | None = None, **options: Any) -> Engine:
    slots, length = options.pop("slots", 3), options.pop("length", 256)
    tokenizer = options.pop("tokenizer", None)
    target = ModelTarget(pair.target, slots, length, tokenizer=tokenizer)
    return Engine(target, drafter or Nothing(), options.pop("rule", TargetOnly()), **options)


def finish(engine: Engine) -> None:
    for _ in range(4000):
        if not engine.busy:
            return
        engine.step()
    raise AssertionError("The engine doesn't come to an end.")


def served(engine: Engine, prompt: Seq[int], params: SamplingParams) -> Request:
    """A request, served to its end."""
    request = engine.add(prompt, params)
    finish(engine)
    assert request.error is None
    return request


def written(request: Request) -> list[list[int]]:
    """The tokens of each sample."""
    return [sample.output.token_ids for sample in request.samples]


@cache
def known(pair: Pair, tokens: int = 20) -> dict[tuple[int, ...], list[int]]:
    """Each prompt's greedy text."""
    return {tuple(p): greedy_reference(pair.target, p, tokens) for p in PROMPTS}
