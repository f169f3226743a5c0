"""LLMCad's drafts: a small model's tree, paced by confidence, which ends by an adaptive threshold.

Source: Xu et al. 2023 (LLMCad), token tree generation (`trees/paced.py`) and self-adaptive fallback
(`length.Cumulative`, of which both readings of equation 3 are options). Meant for a target whose
pass takes as long for many tokens as for one, such as one that is larger than memory
(`weights_memory`). All nodes are chosen, so the text is plain decoding's at any temperature.
Departures: sequences draft one after the other, since their branches have different depths; "all
correct" means the whole of the likeliest path; nothing is drafted while the target's layers load.

Legend: B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from foretoken.access import Access, Wants
from foretoken.drafters.shared.ranking import ranking
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.length import RATE, Cumulative
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.model import CausalLM
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.from_lists import from_parents
from foretoken.trees.grow import Frontier
from foretoken.trees.paced import Paced as PacedTree
from foretoken.trees.paced import Two, paced


@dataclass(eq=False)
class Paced(BaseDrafter):
    """model: folder, hub id, bundled name or loaded model; num_speculative_tokens: the most nodes
    of a tree; assistant_confidence_threshold: where the adaptive one starts; after_error: how it
    moves after an error, "rate" (equation 3) or "confidence" (the text beside it); draft_backend:
    how the model's linear layers run, e.g. "q4", by default as the target's do;
    draft_vocab_size: how many tokens it may draft, the first ids and the ends of text."""

    model: Any = None
    num_speculative_tokens: int = 32
    assistant_confidence_threshold: float = 0.01
    after_error: str = RATE
    draft_backend: str | None = None
    draft_vocab_size: int | None = None

    wants = Wants("b")
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        if self.model is None:
            raise ForetokenError(
                "This method drafts with a small model; name it, e.g. "
                'speculative_config={"method": "llmcad", "model": "folder-or-hub-id"}.'
            )
        self._fallback = Cumulative(
            self.num_speculative_tokens, self.assistant_confidence_threshold, self.after_error
        )

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)

    def bind(self, access: Access) -> None:
        self._lm: DraftModel = DraftModel(
            self.model, access, self.nodes + 1, self.draft_backend, self.draft_vocab_size
        )

    def begin(self, sequence: Sequence) -> None:
        self._lm.begin(sequence)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        trees = [self._tree(s, budget) for s, budget in zip(sequences, budgets, strict=True)]
        tokens, parents = [tree.tokens for tree in trees], [tree.parents for tree in trees]
        return from_parents(tokens, parents, self._lm.device)

    def _tree(self, sequence: Sequence, budget: int) -> PacedTree:
        most = min(budget, self._lm.room(sequence), self._fallback.limit(sequence))
        view = ranking(sequence)
        growing = _Growing(self._lm.device)

        def ask(slot: int, tree: PacedTree) -> Two:
            frontier = growing.at(slot, tree)
            logits = self._lm.level([sequence], frontier)
            folded = fold(logits, [view], frontier.contexts)
            top = folded.probs[0, 0].topk(2)
            shares = (top.values * ~folded.bad[0, 0]).tolist()  # no distribution, no confidence
            return Two(tuple(top.indices.tolist()), tuple(shares))

        tree = paced(ask, most, self._fallback.threshold(sequence))
        self._fallback.note(sequence, _likeliest_path(tree))
        return tree

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._lm.follow(sequences, steps)
        for sequence, step in zip(sequences, steps, strict=True):
            if step.drafted:  # else the tree is another part's, or a prediction's
                _, depth = step.tree.offered[step.row]
                self._fallback.observe(sequence, depth, len(step.path))

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._lm.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._lm.end(sequence)


class _Growing:
    """The frontiers of a tree that grows by one node at a time, for the small model's passes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._paths: list[list[int]] = [[]]  # the slots on the way to each slot, inclusive

    def at(self, slot: int, tree: PacedTree) -> Frontier:
        """The last slot alone: the root, or the node that was added last."""
        if slot:
            self._paths.append([*self._paths[tree.parents[slot - 1]], slot])
        way = self._paths[slot]
        above = [other == 0 or other in way for other in range(slot)]

        def one(values: list[Any], kind: torch.dtype) -> torch.Tensor:
            return torch.tensor([[values]], dtype=kind, device=self._device)

        place = torch.tensor([[slot]], device=self._device)
        return Frontier(
            slots=place,
            paths=one([tree.tokens[each - 1] for each in way], torch.int64),
            parents=torch.zeros_like(place),
            above=one(above, torch.bool),
            open=torch.ones_like(place, dtype=torch.bool),
            scores=torch.zeros(1, 1, device=self._device),
        )


def _likeliest_path(tree: PacedTree) -> list[float]:
    """The confidences along the likeliest of the longest paths from the root."""
    if not tree.tokens:
        return []
    ways: list[list[int]] = [[]]
    for slot, parent in enumerate(tree.parents, 1):
        ways.append([*ways[parent], slot])
    best = max(ways[1:], key=lambda way: (len(way), tree.confidences[way[-1] - 1]))
    return [tree.confidences[slot - 1] for slot in best]
