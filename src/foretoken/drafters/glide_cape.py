"""CaPE: GliDe's chain of likeliest tokens, with more siblings for the less certain ones.

Source: Du et al. 2024 (GliDe with a CaPE), section 3.2, with the numbers of its code: a place has 8
candidates where the drafter's likeliest token has a chance below 0.3, 6 below 0.6, 4 below 0.8,
else 2; the chain continues from the likeliest. Checkpoints are those of `glide`. Departure: all
tokens are chosen, at any temperature, so that the rule `target_only` keeps plain decoding's text.

Legend: B sequences, T places of a text, N drafted places, K most candidates.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import WithModel
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.cross_attention import CrossAttentionModel, CrossAttentionModule
from foretoken.trainable.head_losses import ranks_at_roots
from foretoken.trainable.lesson import Lesson
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.from_lists import from_parents
from foretoken.trees.join import assemble
from foretoken.trees.siblings import SiblingChain

CAPE = ((0.3, 8), (0.6, 6), (0.8, 4), (1.0, 2))
"""(the chance of the likeliest token is below, candidates at its place)."""


@dataclass(eq=False)
class GlideCape(WithModel):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: length of the
    chain; cape: pairs of a chance, rising to 1, and the candidates at a place whose likeliest token
    has a lower one."""

    model: Any = None
    num_speculative_tokens: int = 5
    cape: Seq[tuple[float, int]] = CAPE

    module: ClassVar[type[Trained]] = CrossAttentionModule
    wants = Wants("bcf")
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        CrossAttentionModule.check_source(self.model)
        below = [chance for chance, _ in self.cape]
        if below != sorted(below) or below[-1:] != [1.0] or min(n for _, n in self.cape) < 1:
            raise ForetokenError(
                f"cape is {self.cape}; give pairs of a chance and a number of candidates, the "
                "chances rising to 1.0, the numbers at least 1."
            )
        check_range(1, MOST_NODES, cape=max(count for _, count in self.cape))

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens * max(count for _, count in self.cape)

    def bind(self, access: Access) -> None:
        module = CrossAttentionModule.load(self.model, access)
        self._lm = CrossAttentionModel(module, access, self.num_speculative_tokens)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows = [b for b, s in enumerate(sequences) if min(budgets[b], self._lm.room(s)) > 0]
        drafting, chains = [sequences[b] for b in rows], [SiblingChain(budgets[b]) for b in rows]
        best: Tensor | None = None
        for _ in range(self.num_speculative_tokens):
            if not any(chain.open for chain in chains):
                break
            logits = (
                self._lm.root_logits(drafting)
                if best is None
                else self._lm.next_logits(drafting, best)
            )
            best = self._grow(chains, logits[:, 0].softmax(-1))
        tree = from_parents(
            [c.tokens for c in chains], [c.parents for c in chains], self._lm.device
        )
        return assemble([(rows, tree)], len(sequences), self._lm.device)

    def _grow(self, chains: Seq[SiblingChain], probs: Tensor) -> Tensor:
        """Add a place to each chain, by probs [B, V]; the likeliest tokens [B] there."""
        widest = max(count for _, count in self.cape)
        top = probs.topk(min(widest, probs.shape[-1]))
        counts = self._candidates(top.values[:, 0]).tolist()
        for chain, ids, count in zip(chains, top.indices.tolist(), counts, strict=True):
            if chain.open:
                chain.grow(ids[:count])
        return top.indices[:, 0]

    def _candidates(self, chances: Tensor) -> Tensor:
        """How many candidates [...] where the likeliest tokens have these chances [...]."""
        below = chances.new_tensor([chance for chance, _ in self.cape[:-1]])
        counts = torch.tensor([count for _, count in self.cape], device=chances.device)
        return counts[(chances[..., None] >= below).sum(-1)]

    def acceptance(self, module: CrossAttentionModule, lesson: Lesson) -> Tensor:
        """[B, T, N] whether a step whose root is there accepts more than n places."""
        states = module.states(lesson, self.num_speculative_tokens)
        ranks = ranks_at_roots(lesson, states, lambda x, _: lesson.head(x))
        widths = self._candidates(_likeliest_chances(lesson, states))
        before = widths.cumsum(-1) - widths  # nodes of the places before
        max_nodes = lesson.max_nodes[..., None]
        hit = (ranks < widths) & (before + ranks < max_nodes)
        chain = ((ranks == 0) & (before < max_nodes)).cumprod(-1).bool()
        accepted: Tensor = hit & torch.cat((torch.ones_like(hit[..., :1]), chain[..., :-1]), -1)
        return accepted


def _likeliest_chances(lesson: Lesson, states: Tensor) -> Tensor:
    """[B, T, N] the chance of the likeliest token of each draft's place, 0 where no root is."""
    chances = states.new_zeros(states.shape[:3])
    row, root = ((lesson.max_nodes >= 0) & (lesson.positions > 0)).nonzero(as_tuple=True)
    for r, t in zip(row.split(128), root.split(128), strict=True):
        chances[r, t] = lesson.head(states[r, t - 1]).softmax(-1).amax(-1).to(chances.dtype)
    return chances
