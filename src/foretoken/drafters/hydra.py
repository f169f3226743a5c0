"""Hydra: heads that see the tokens drafted before theirs, filling the same tree as Medusa's.

Source: Ankner et al. 2024 (Hydra), sections 3 and 4. Head i reads the state that the root was read
from and the embeddings of the root and of the i tokens drafted behind it on the same path; its
first layer brings them to one width, the others are blocks x + SiLU(Wx), and a language-model head
follows. Hydra++ has deeper heads (`num_layers` 4) that learn the target's whole law ("kl_div").
Departures: the last state is added to the first layer's output, which starts at zero, so that an
untrained head says what the target says; Hydra++'s extra decoder layer over the states is not
there.

Legend: B rows, T places, H heads, M frontier nodes, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.builders import Frontier, expand, widths_of
from foretoken.draws import Draws
from foretoken.heads import (
    LastStates,
    Paths,
    accepted,
    fitting,
    heads_loss,
    heads_ranks,
    rank_counts,
    rates_of,
    tree_of,
)
from foretoken.lesson import Lesson
from foretoken.losses import Objective
from foretoken.protocols import Access, BaseDrafter, Sequence, Step, Wants
from foretoken.trained import Ends, Facts, Trained, weight_of
from foretoken.tree import DraftTree, placed


class HydraHead(nn.Module):
    """Head `index`: its first layer reads the state and index + 1 embeddings."""

    def __init__(self, width: int, index: int, num_layers: int, vocab_size: int | None) -> None:
        super().__init__()
        self.join = nn.Linear((index + 2) * width, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers - 1))
        for layer in (self.join, *self.blocks):
            for weight in layer.parameters():
                nn.init.zeros_(weight)
        if vocab_size is not None:
            self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, state: Tensor, embeddings: Tensor) -> Tensor:
        """[..., D] and [..., index + 1, D] -> [..., D]."""
        x = state + F.silu(self.join(torch.cat((state, embeddings.flatten(-2)), -1)))
        for block in self.blocks:
            x = x + F.silu(block(x))
        return x


class HydraHeads(Trained):
    """num_heads: places guessed ahead; num_layers: of each head; own_lm_heads: whether each head
    has a language-model head of its own."""

    method: ClassVar[str] = "hydra"

    def __init__(
        self, facts: Facts, num_heads: int = 4, num_layers: int = 1, own_lm_heads: bool = True
    ) -> None:
        super().__init__(
            facts, num_heads=num_heads, num_layers=num_layers, own_lm_heads=own_lm_heads
        )
        vocab = facts.vocab_size if own_lm_heads else None
        self.heads = nn.ModuleList(
            HydraHead(facts.hidden_size, i, num_layers, vocab) for i in range(num_heads)
        )

    def _own(self) -> list[Tensor]:
        """The language-model heads' matrices [V, D], or none."""
        heads: list[Any] = list(self.heads) if self.shape["own_lm_heads"] else []
        return [head.lm_head.weight for head in heads]

    def start(self, target: Ends) -> None:
        with torch.no_grad():
            for weight in self._own():
                weight.copy_(weight_of(target, self.facts.hidden_size, weight))

    def states(self, lesson: Lesson) -> Tensor:
        """[B, T, H, D]: head i at place t sees the true tokens t + 1 … t + 1 + i."""
        state, found = lesson.hidden[-1], []
        near = lesson.embed(lesson.tokens).to(state.dtype)
        ahead = [near.roll(-1 - i, 1) for i in range(len(self.heads))]  # what wraps counts nowhere
        for i, head in enumerate(self.heads):
            found.append(head(state, torch.stack(ahead[: i + 1], -2)))
        return torch.stack(found, -2)

    def logits(self, states: Tensor, head: Any) -> Tensor:
        """[..., H, D] -> [..., H, V]; head: the target's."""
        parts = [self.say(i, states[..., i, :], head) for i in range(len(self.heads))]
        return torch.stack(parts, -2)

    def say(self, index: int, state: Tensor, head: Any) -> Tensor:
        """One head's logits [..., V] of its states [..., D]."""
        own = self._own()
        said: Tensor = F.linear(state, own[index]) if own else head(state)
        return said

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        return heads_loss(
            lesson, self.states(lesson), lambda x: self.logits(x, lesson.head), self._own(),
            objective,
        )  # fmt: skip

    def ranks(self, lesson: Lesson) -> Tensor:
        """[B, T, H], as `heads_ranks` has it."""
        return heads_ranks(lesson, self.states(lesson), lambda x: self.logits(x, lesson.head))

    def tally(self, lesson: Lesson) -> Tensor:
        return rank_counts(self.ranks(lesson), lesson.room)

    def note(self, counts: Tensor) -> None:
        self.notes["rates"] = rates_of(counts)


@dataclass(eq=False)
class Hydra(BaseDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree: "medusa" (63 nodes), "planned"
    (of `tree_nodes` nodes, for the rates that the checkpoint was measured at) or rank paths."""

    model: Any = None
    tree: str | Seq[Seq[int]] = "medusa"
    tree_nodes: int = 63

    module: ClassVar[type[Trained]] = HydraHeads
    wants = Wants("bc", (-1,))
    trees = True

    def __post_init__(self) -> None:
        HydraHeads.named(self.model)

    def bind(self, access: Access) -> None:
        self._heads = HydraHeads.load(self.model, access)
        self._access, self._states = access, LastStates()
        self._widths = widths_of(self._tree(self._heads))

    def _tree(self, heads: Trained) -> Paths:
        """Level by level, as `expand` makes it."""
        paths = tree_of(self.tree, self.tree_nodes, heads.notes.get("rates"))
        fit = fitting(paths, heads.shape["num_heads"], heads.facts.vocab_size)
        return tuple(sorted(fit, key=lambda path: (len(path), path)))

    def reached(self, heads: HydraHeads, lesson: Lesson) -> Tensor:
        """[B, T, depth] whether a step whose root stands there accepts more than n places."""
        return accepted(heads.ranks(lesson), lesson.room, self._tree(heads))

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows, states = self._states.of(sequences)
        device = self._access.device
        if states is None or not self._widths:
            return placed([], len(sequences), device)
        roots = torch.tensor([[sequences[row].tokens[-1]] for row in rows], device=device)

        def ask(frontier: Frontier) -> Tensor:
            nodes = frontier.slots.shape[1]
            path = torch.cat((roots[:, None].expand(-1, nodes, -1), frontier.paths), 2)
            head, state = self._heads.heads[frontier.depth], states[:, None].expand(-1, nodes, -1)
            out = head(state, self._access.embed(path).to(state.dtype))
            return self._heads.say(frontier.depth, out, self._access.head).softmax(-1)

        tree = expand(ask, self._widths, [budgets[row] for row in rows], device)
        return placed([(rows, tree)], len(sequences), device)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._states.observe(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._states.fork(sequence, copy)
