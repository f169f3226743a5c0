"""Drafts are as large as was asked for: nothing is cut that a method, or its option, says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.methods import METHODS
from foretoken.models.target import ModelTarget
from foretoken.registry import BASELINE
from foretoken.testing import Pair
from foretoken.tree import DraftTree
from test_conformance import given

PROMPT = [5, 9, 2, 40, 3, 17, 60, 61, 5, 9, 2, 40, 3]


def offers(llm: LLM, nodes: int) -> bool:
    """Whether the target is ever offered that many nodes for a sequence."""
    most, target = 0, llm.engine.target
    score: Callable[..., Any] = target.score

    def recorded(sequences: Any, trees: DraftTree) -> Any:
        nonlocal most
        most = max(most, *trees.counts)
        return score(sequences, trees)

    target.score = recorded  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=200)
    return any(most >= nodes for first in range(4) for _ in llm.stream([*PROMPT, first], params))


LARGE: list[tuple[dict[str, Any], int]] = [
    ({"method": "token_recycling", "tree": "paper"}, 80),
    ({"method": "sequoia", "num_speculative_nodes": 128, "tree": "paper"}, 128),
    ({"method": "sequoia", "tree": "paper"}, 64),
    ({"method": "sps", "num_speculative_tokens": 100}, 100),
    ({"method": "specinfer"}, 20),
    ({"method": "mcsd", "widths": (10, 10)}, 110),
    ({"method": "swift", "num_speculative_tokens": 3}, 3),
    ({"method": "jacobi", "num_speculative_tokens": 90}, 90),
    ({"method": "cs_drafting", "k_matrix": ((70, 0), (0, 1))}, 70),
    ({"method": "lookahead", "window": 20, "tree": "paper"}, 80),
]


@pytest.mark.parametrize(("config", "nodes"), LARGE, ids=str)
def test_large_drafts_are_offered_whole(pair: Pair, config: dict[str, Any], nodes: int) -> None:
    """At the published sizes, and above them."""
    if config["method"] in ("sequoia", "sps", "specinfer", "mcsd", "cs_drafting"):
        config = {**config, "model": pair.draft}
    llm = LLM(pair.target, eos_ids=(), speculative_config=config)
    assert offers(llm, nodes)


@pytest.mark.parametrize("name", [row.name for row in METHODS.values() if not row.target])
def test_no_method_is_cut(pair: Pair, name: str) -> None:
    """At its defaults, each may draft as many nodes as it declares, or as have room: 199 here."""
    drafter = METHODS[name].drafter
    llm = LLM(pair.target, speculative_config={"method": name, **given(drafter, pair)})
    own, draft = llm.engine.drafter, llm.engine.drafter.draft
    budgets: list[int] = []

    def recorded(sequences: Any, budget: list[int], draws: Any) -> DraftTree:
        budgets.extend(budget)
        return draft(sequences, budget, draws)

    own.draft = recorded  # type: ignore[method-assign]
    next(llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=200)))
    assert name == BASELINE or max(budgets) >= min(own.nodes, 199) > 0


def test_a_wide_lookahead_drafts(pair: Pair) -> None:
    """Its window alone has 80 nodes; with it texts get ahead."""
    config = {"method": "lookahead", "window": 20, "guesses": 20, "tree": "paper"}
    llm = LLM(pair.target, eos_ids=(), speculative_config=config)
    [out] = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=200))
    assert out.stats.accepted > 0


def test_the_target_makes_room(pair: Pair) -> None:
    """For 64 nodes, or for as many as the drafter makes; a joined tree needs both parts' room."""
    for config, nodes in (
        ({"method": "pld"}, 64),
        ({"method": "pld", "num_speculative_tokens": 100}, 100),
        ({"method": "pld|suffix", "num_speculative_tokens": 60}, 120),
        ({"method": "pld+suffix", "num_speculative_tokens": 60}, 64),
    ):
        target = ModelTarget(pair.target, 1, 32)
        target.bind(build(config).drafter)
        assert target.nodes == nodes
        assert target.cache.max_length == 32 + nodes + 1


DEPTHS: list[tuple[dict[str, Any], int]] = [
    ({"method": "mcsd", "num_speculative_tokens": 2}, 2),
    ({"method": "mcsd", "num_speculative_tokens": 5}, 5),
    ({"method": "specinfer", "num_speculative_tokens": 4}, 4),
    ({"method": "sequoia", "num_speculative_tokens": 3, "tree": "paper"}, 3),
    ({"method": "token_recycling", "num_speculative_tokens": 2, "tree": "paper"}, 2),
    ({"method": "cs_drafting", "num_speculative_tokens": 4}, 4),
    ({"method": "staged", "num_speculative_tokens": 3}, 3),
    ({"method": "sps", "num_speculative_tokens": 3}, 3),
    ({"method": "lookahead", "num_speculative_tokens": 2, "tree": "paper"}, 2),
]


@pytest.mark.parametrize(("config", "depth"), DEPTHS, ids=str)
def test_num_speculative_tokens_is_a_draft_s_depth(
    pair: Pair, config: dict[str, Any], depth: int
) -> None:
    """For trees too."""
    if config["method"] not in ("token_recycling", "lookahead"):
        config = {**config, "model": pair.draft}
    llm = LLM(pair.target, eos_ids=(), speculative_config=config)
    deepest, score = 0, llm.engine.target.score

    def recorded(sequences: Any, trees: DraftTree) -> Any:
        nonlocal deepest
        if trees.nodes:
            deepest = max(deepest, int((trees.depths[:, 1:] * trees.valid).max()))
        return score(sequences, trees)

    llm.engine.target.score = recorded  # type: ignore[method-assign]
    llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=60))
    assert deepest == depth


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "token_recycling", "num_speculative_tokens": 7}, "level_sizes has 6 levels"),
        ({"method": "cs_drafting", "num_speculative_tokens": 99}, "k_matrix drafts 23 tokens"),
        ({"method": "mcsd", "num_speculative_tokens": 0}, "from 1 to 4096"),
        ({"method": "ppd", "num_speculative_tokens": 3}, "'ppd' drafts nothing"),
        ({"method": "speed", "num_speculative_tokens": 3}, "'speed' drafts nothing"),
        ({"method": "autoregressive", "num_speculative_tokens": 3}, "drafts nothing"),
    ],
    ids=str,
)
def test_depths_that_cant_be(pair: Pair, config: dict[str, Any], said: str) -> None:
    """What was given and what there is."""
    if config["method"] in ("cs_drafting", "mcsd"):
        config = {**config, "model": pair.draft}
    with pytest.raises(ForetokenError, match=said):
        build(config)
