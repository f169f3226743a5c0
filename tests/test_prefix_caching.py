"""Requests that go on from earlier texts write what they would have written without."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.models.seq2seq.target import target_for
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Verifier
from foretoken.testing import Pair, TableModel
from foretoken.testing.checks import SAMPLED, greedy_reference
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from test_conformance import (
    LEARNS,
    SHARES,
    each_repeatable_cell,
    make_drafter,
    models,
    needs_only,
    wrap_of,
)

GREEDY = SamplingParams(temperature=0, max_tokens=6)
SEEDED = replace(SAMPLED, max_tokens=6)
FIRST = [[*range(5, 30), 9, 2, 5], [*range(5, 17), 40, 3, 3, 17, 40, 3]]
"""Two conversations' first turns, which begin alike."""

WHOLE = {
    *("eagle", "eagle2", "eagle3", "mtp", "peagle", "hydra_plus"),
    *("dflash", "dflash_tree", "dflash2", "dflash2_tree", "kangaroo", "online"),
}
"""Drafters that need the target's states of the whole prompt, so that it is read again."""


def served(engine: Engine, prompt: Seq[int], params: SamplingParams) -> Request:
    request = engine.add(prompt, params)
    while engine.busy:
        engine.step()
    assert request.error is None
    return request


def written(request: Request) -> list[list[int]]:
    return [sample.output.token_ids for sample in request.samples]


def turns(engine: Engine, params: SamplingParams) -> list[Request]:
    """Two conversations turn by turn; then a prompt again, an answer with two samples, one whose
    prompt is the beginning of a text, and three requests at a time."""
    done: list[Request] = []
    texts = [list(first) for first in FIRST]
    for turn in range(3):
        for text in texts:
            done.append(served(engine, text, params))
            text += [*written(done[-1])[0], 50 + turn, 7]
    done.append(served(engine, FIRST[0], params))
    done.append(served(engine, texts[1], replace(params, temperature=0.9, n=2, seed=3)))
    done.append(served(engine, texts[0][:9], params))
    late = [engine.add(text, params) for text in (texts[0], texts[1], [*texts[0], 3])]
    while engine.busy:
        engine.step()
    return [*done, *late]


def engine_of(
    pair: Pair, drafter: Drafter, rule: Verifier, caching: bool, slots: int = 4, wrap: Any = None
) -> Engine:
    target = target_for(pair.target, slots, 256)
    served = target if wrap is None else wrap(target)
    return Engine(served, drafter, rule, chunk=8, prefix_caching=caching)


@each_repeatable_cell
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", ["native", "adapter"])
def test_the_same_text_with_and_without(
    name: str, rule: Verifier, params: SamplingParams, kind: str
) -> None:
    """Every drafter and rule: the tokens are the same, and so are the drafts, which follow from the
    text and from nothing that the caches' former owners left."""
    pair = models(kind)
    if not needs_only(name, pair.target.levels, pair):
        pytest.skip("this target can't give what the drafter needs")
    with_, without = (
        engine_of(pair, make_drafter(name, pair), rule, caching, wrap=wrap_of(name))
        for caching in (True, False)
    )
    found, anew = turns(with_, params), turns(without, params)
    assert [written(request) for request in found] == [written(request) for request in anew]
    assert with_.stats.prefix_cache_queries > 0 or name in WHOLE
    assert (with_.stats.prefix_cache_hits > 200) == (name not in WHOLE)
    assert not without.stats.prefix_cache_queries
    if name not in {*LEARNS, *SHARES}:
        for mine, theirs in zip(found, anew, strict=True):
            assert (mine.stats.drafted, mine.stats.accepted) == (
                theirs.stats.drafted,
                theirs.stats.accepted,
            )
