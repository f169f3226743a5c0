"""Relaxed acceptance: accept a token among the target's k likeliest and within delta of the first.

A drafted token passes if it is among the `top_k` likeliest tokens and its probability is above the
likeliest one's less `delta`; `top_k` = 1 or `delta` = 0 is greedy decoding. Source: NVIDIA
TensorRT-LLM, multi-token prediction for DeepSeek-R1 (options `relaxed_topk` and `relaxed_delta`;
the defaults here, 10 and 0.6, are the values it recommends for that model).

Departures: there it is switched on only while the model thinks, between two marker tokens, and only
for chains; here it applies to the whole text, and on a tree the longest path that passes is kept.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import at_nodes, likeliest, verdict, within_top


@dataclass(frozen=True)
class Relaxed(Verifier):
    """top_k: how many of the likeliest tokens may pass. delta: how much less probable than the
    first."""

    top_k: int = 10
    delta: float = 0.6

    exact: ClassVar[bool] = False
    reads_logits: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = False
    source: ClassVar[str] = "NVIDIA TensorRT-LLM, relaxed acceptance"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __post_init__(self) -> None:
        if self.top_k < 1 or not self.delta >= 0:
            raise ForetokenError(
                f"top_k is {self.top_k} and delta {self.delta}; top_k must be at least 1 and "
                "delta at least 0."
            )

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        probs = scores.logits.softmax(-1)  # [B, S, V] without temperature
        floor = probs.amax(-1).gather(1, trees.parent_slots) - self.delta  # [B, N]
        passed = (at_nodes(trees, probs) > floor) & within_top(trees, scores.logits, self.top_k)
        return verdict(trees, scores, draws, passed | likeliest(trees, scores))
