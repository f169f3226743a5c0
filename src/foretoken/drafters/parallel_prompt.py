"""Parallel Prompt Decoding: trained prompt tokens after a draft's nodes predict the next draft.

Source: Chen et al. 2024 (Hardware-Aware Parallel Prompt Decoding), sections 3 and 4. The pass
that verifies a draft also runs trained prompt tokens after its nodes. Those after the last accepted
node predict the tokens that follow it, and fill the next tree; so one pass verifies and
drafts, and only the prompt tokens' embeddings are trained. The trees come from
`shared/prompt_trees.py`. Departures: one embedding for each prompt token, which the paper calls no
ensemble; tokens are accepted where they equal the target's sample, where the paper has typical
acceptance (`verifier: typical`).

A prompt is read without prompt tokens, so the first step drafts nothing.

Legend: B sequences, T places, A prompt tokens, K ranks, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.depth import draft_depth
from foretoken.drafters.shared.prompt_trees import PromptTree, PromptTrees
from foretoken.draws import Draws
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.appended import block_ranks
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.prompt_tokens import FIRST, PromptTokens
from foretoken.trainable.rank_trees import rank_counts, rank_rates
from foretoken.trainable.root_states import last_slot
from foretoken.tree import MOST_NODES, DraftTree, Kind
from foretoken.trees.join import assemble

_RANKS = 10  # of each prompt token's guesses that are candidates


class ParallelPromptTokens(PromptTokens):
    """The prompt tokens' embeddings; A = num_tokens."""

    method: ClassVar[str] = "parallel_prompt"

    def ranks(self, lesson: Lesson) -> Tensor:
        """[B, T, A] how many tokens are likelier than the (i + 1)-th token after the root, as
        predicted by prompt token i after the token before the root."""
        roots = (lesson.max_nodes >= 0) & (lesson.positions > 0)
        states = partial(self.states, lesson)
        ranks = block_ranks(
            lesson, roots.roll(-1, 1), states, FIRST, len(self.embeddings), lesson.head
        )
        return ranks.roll(1, 1)

    def count_held_out(self, lesson: Lesson) -> Tensor:
        return rank_counts(self.ranks(lesson), lesson.max_nodes, _RANKS)

    def note_counts(self, counts: Tensor) -> None:
        self.notes["rates"] = rank_rates(counts)

    def trees(self, nodes: int, levels: int) -> PromptTrees:
        """Trees planned for the rates measured with the checkpoint, or for assumed ones that fall
        from place to place and rank to rank."""
        ranks = min(_RANKS, self.facts.vocab_size)
        assumed = [
            [0.5 * 0.7**i * 0.3**rank for rank in range(ranks)] for i in range(len(self.embeddings))
        ]
        rates = self.notes.get("rates") or assumed
        return PromptTrees([row[:ranks] for row in rates[:levels]], nodes)


@dataclass(eq=False)
class ParallelPrompt(BaseDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree_nodes: nodes of a tree, candidates
    and prompt tokens; num_speculative_tokens: fewer levels than the checkpoint has prompt
    tokens."""

    model: Any = None
    tree_nodes: int = 60
    num_speculative_tokens: int | None = None

    module: ClassVar[type[Trained]] = ParallelPromptTokens
    wants = Wants("bd")
    kinds = frozenset({Kind.CHOSEN, Kind.AUXILIARY})
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, tree_nodes=self.tree_nodes)
        ParallelPromptTokens.check_source(self.model)

    @property
    def nodes(self) -> int:
        return self.tree_nodes

    def bind(self, access: Access) -> None:
        tokens = ParallelPromptTokens.load(self.model, access)
        self._device = access.device
        levels = self._levels(tokens)
        self._prompt_tokens, self._ranks = levels, min(_RANKS, access.vocab_size)
        self._first = access.extra_tokens(tokens.embeddings[:levels])
        self._trees = tokens.trees(self.tree_nodes, levels)
        self._templates: dict[tuple[int, int], _Template] = {}

    def _levels(self, tokens: ParallelPromptTokens) -> int:
        most = len(tokens.embeddings)
        return draft_depth(
            self.num_speculative_tokens, most, f"the checkpoint has {most} prompt tokens"
        )

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True)):
            guessed = len(sequence.state.get(self, ()))
            groups[guessed, self._trees.planned(min(budget, self.tree_nodes))].append(row)
        pieces = []
        for (guessed, nodes), rows in groups.items():
            template = self._template(guessed, nodes)
            candidates = [sequences[row].state[self] for row in rows] if guessed else None
            pieces.append((rows, template.filled(candidates, len(rows))))
        return assemble(pieces, len(sequences), self._device)

    def _template(self, guessed: int, nodes: int) -> _Template:
        if (guessed, nodes) not in self._templates:
            tree = self._trees.of(guessed, nodes)
            self._templates[guessed, nodes] = _template(tree, self._first, self._device)
        return self._templates[guessed, nodes]

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Keep the likeliest tokens at the prompt tokens after each last accepted node."""
        if not steps or not steps[0].tokens:
            return  # prefill brings no scores
        for sequence in sequences:
            sequence.state.pop(self, None)
        tree, logits = steps[0].tree, steps[0].scores.logits
        if tree.extras is None:
            return
        rows = torch.tensor([step.row for step in steps], device=logits.device)
        slot = torch.tensor([last_slot(step) for step in steps], device=logits.device)
        parents, extras = tree.parent_slots[rows], tree.extras[rows]
        present, guesses = [], []
        for number in range(self._first, self._first + self._prompt_tokens):
            is_next = (parents == slot[:, None]) & (extras == number)
            slot = is_next.byte().argmax(1) + 1
            present.append(is_next.any(1))
            guesses.append(logits[rows, slot].topk(self._ranks).indices)
        counts = torch.stack(present, 1).cumprod(1).sum(1).tolist()
        candidates = torch.stack(guesses, 1)  # [B, A, K]
        for sequence, count, guessed in zip(sequences, counts, candidates, strict=True):
            if count:
                sequence.state[self] = guessed[:count]

    def acceptance(self, tokens: ParallelPromptTokens, lesson: Lesson) -> Tensor:
        """[B, T, A] whether a step whose root is there accepts more than n places; only at the
        roots that serving reaches, since a draft depends on the step before."""
        levels, all_ranks = self._levels(tokens), tokens.ranks(lesson).tolist()
        trees = tokens.trees(self.tree_nodes, levels)
        reached = torch.zeros(*lesson.max_nodes.shape, levels, dtype=torch.bool)
        for row, (limits, ranks) in enumerate(
            zip(lesson.max_nodes.tolist(), all_ranks, strict=True)
        ):
            root = state = 0
            for place, most in enumerate(limits):
                if most >= 0 and (place == 0 or limits[place - 1] < 0):
                    root, state = place, 0
                if most < 0 or place != root:
                    continue
                tree = trees.of(state, min(most, self.tree_nodes))
                accepted, slot = tree.follow(ranks[place])
                reached[row, place, :accepted] = True
                root, state = place + accepted + 1, tree.prompts[slot]
        return reached.to(lesson.max_nodes.device)


@dataclass
class _Template:
    """levels, ranks: of each candidate; parents, kinds, extras: [N] of candidates, then prompts."""

    levels: Tensor
    ranks: Tensor
    parents: Tensor
    kinds: Tensor
    extras: Tensor

    def filled(self, candidates: Seq[Tensor] | None, rows: int) -> DraftTree:
        """The tree of each of `rows` rows, filled with the row's candidates [guessed, K], if
        any."""
        tokens = self.levels.new_zeros(rows, len(self.parents))
        if candidates is not None:
            stacked = torch.stack(list(candidates))  # [B, guessed, K]
            tokens[:, : len(self.levels)] = stacked[:, self.levels, self.ranks]
        return DraftTree(
            tokens,
            [len(self.parents)] * rows,
            self.parents.expand(rows, -1),
            kinds=self.kinds.expand(rows, -1),
            extras=self.extras.expand(rows, -1),
        )


def _template(tree: PromptTree, first: int, device: torch.device) -> _Template:
    candidates = [(len(path) - 1, path[-1], tree.slots[path[:-1]]) for path in tree.paths]
    parents, extras = [slot for _, _, slot in candidates], [0] * len(candidates)
    for slot, prompts in enumerate(tree.prompts):
        for i in range(prompts):
            parents.append(len(parents) if i else slot)
            extras.append(first + i)
    kinds = [Kind.AUXILIARY if number else Kind.CHOSEN for number in extras]
    levels, ranks, _ = torch.tensor(candidates, device=device).reshape(-1, 3).long().T
    return _Template(
        levels,
        ranks,
        torch.tensor(parents, device=device).long(),
        torch.tensor(kinds, dtype=torch.int8, device=device),
        torch.tensor(extras, device=device).long(),
    )
