"""Requests that go on from earlier texts write what they would have written without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines import served, written
from foretoken import SamplingParams
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.models.seq2seq.target import target_for
from foretoken.protocols import Drafter, Verifier
from foretoken.testing import Pair
from foretoken.testing.checks import SAMPLED
from test_conformance import (
    CELLS,
    LEARNS,
    SHARES,
    each_repeatable_cell,
    make_drafter,
    models,
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


def turns(engine: Engine, params: SamplingParams) -> list[Request]:
    """Two conversations turn by turn; then a prompt again, an answer with two samples, one whose
    prompt is the beginning of a text, and three requests at a time."""
    done: list[Request] = []
    texts = [list(first) for first in FIRST]
    for turn in range(2):
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
    pair: Pair, drafter: Drafter, rule: Verifier, caching: bool, wrap: Any = None
) -> Engine:
    target = target_for(pair.target, 4, 256)
    served = target if wrap is None else wrap(target)
    return Engine(served, drafter, rule, chunk=8, prefix_caching=caching)


GREEDY_CELLS = {c.values[0]: c for c in reversed(CELLS)}.values()  # one of each drafter


def reuse_holds(name: str, rule: Verifier, params: SamplingParams, pair: Pair) -> None:
    """The tokens are the same, and so are the drafts, which follow from the text and from nothing
    that the caches' former owners left."""
    with_, without = (
        engine_of(pair, make_drafter(name, pair), rule, caching, wrap=wrap_of(name))
        for caching in (True, False)
    )
    found, anew = turns(with_, params), turns(without, params)
    assert [written(request) for request in found] == [written(request) for request in anew]
    assert (with_.stats.prefix_cache_hits > 150) == (name not in WHOLE)
    assert not without.stats.prefix_cache_queries
    if name not in {*LEARNS, *SHARES}:
        for mine, theirs in zip(found, anew, strict=True):
            counts = [(r.stats.drafted, r.stats.accepted) for r in (mine, theirs)]
            assert counts[0] == counts[1]


@each_repeatable_cell
def test_the_same_seeded_text_with_and_without(name: str, rule: Verifier) -> None:
    """Every drafter with every rule that keeps a seed's tokens."""
    reuse_holds(name, rule, SEEDED, models("native"))


@pytest.mark.parametrize(("name", "rule"), GREEDY_CELLS)
def test_the_same_greedy_text_with_and_without(name: str, rule: Verifier) -> None:
    """Every drafter."""
    reuse_holds(name, rule, GREEDY, models("native"))


@pytest.mark.parametrize("name", ["nothing", "small_lm", "medusa"])
def test_the_same_text_through_the_adapter(name: str) -> None:
    rule = next(c.values[1] for c in CELLS if c.values[0] == name)
    reuse_holds(name, rule, SEEDED, models("adapter"))
