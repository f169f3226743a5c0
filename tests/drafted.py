"""What a checkpoint's drafter predicts while it serves, and the target's states that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from foretoken import SamplingParams
from foretoken.config import build
from foretoken.testing import Pair, serve
from foretoken.trees.grow import Grower

PROMPTS = [[1, 2, 3], [9] * 6]
SAMPLED = SamplingParams(temperature=1, max_tokens=20, seed=4)
GREEDY = SamplingParams(temperature=0, max_tokens=60)  # a draft has no more nodes


@dataclass
class Prediction:
    """text: tokens up to the root; hidden: the target's states before the root, as `states` has
    them; path: drafted tokens after it; probs: [V] of the next one."""

    text: list[int]
    hidden: list[Tensor]
    path: list[int]
    probs: Tensor


def predictions(method: str, folder: Path, pair: Pair, **options: Any) -> list[Prediction]:
    """What the drafter predicts at each node that it gives children, one request after another."""
    built = build({"method": method, "model": str(folder), **options})
    found: list[Prediction] = []
    known = _noted(built.drafter, pair)
    with _watched(found, known):
        serve(pair.target, built.drafter, built.verifier, PROMPTS, GREEDY, slots=1)
    assert len(found) > 10
    return found


def chain_predictions(method: str, folder: Path, pair: Pair, **options: Any) -> list[Prediction]:
    """What the drafter draws the tokens of its chains from, at temperature 1."""
    built = build({"method": method, "model": str(folder), **options})
    found: list[Prediction] = []
    known = _noted(built.drafter, pair)
    draft = built.drafter.draft

    def noted(*given: Any) -> Any:
        tree = draft(*given)
        if tree.proposals is not None:
            path = tree.tokens[0].tolist()
            for i, probs in enumerate(tree.proposals[0]):
                found.append(Prediction(*known[-1], path[:i], probs.clone()))
        return tree

    built.drafter.draft = noted  # type: ignore[method-assign]
    serve(pair.target, built.drafter, built.verifier, PROMPTS, SAMPLED, slots=1)
    assert len(found) > 10
    return found


def _noted(drafter: Any, pair: Pair) -> list[tuple[list[int], list[Tensor]]]:
    """The text, and the target's states before its root, of each draft that is asked for."""
    known: list[tuple[list[int], list[Tensor]]] = []
    draft = drafter.draft

    def noted(sequences: Any, *rest: Any) -> Any:
        text = list(sequences[0].tokens)
        known.append((text, states(pair, text[:-1])))
        return draft(sequences, *rest)

    drafter.draft = noted
    return known


@contextmanager
def _watched(
    found: list[Prediction], known: list[tuple[list[int], list[Tensor]]]
) -> Iterator[None]:
    """Every distribution that a tree grows from is added to `found`, after the latest text."""
    choose = Grower.choose

    def seen(self: Grower, distributions: Tensor, *rest: Any, **more: Any) -> None:
        for path, probs in zip(self.frontier.paths[0], distributions[0], strict=True):
            found.append(Prediction(*known[-1], path.tolist(), probs.clone()))
        choose(self, distributions, *rest, **more)

    with mock.patch.object(Grower, "choose", seen):
        yield


def states(pair: Pair, tokens: list[int]) -> list[Tensor]:
    """Outputs [T, D] of the target in transformers: the embedding's, each layer's; the last one
    normed."""
    with torch.no_grad():
        out = pair.transformers(torch.tensor([tokens]), output_hidden_states=True)
    return [state[0] for state in out.hidden_states]
