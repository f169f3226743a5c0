"""MLP speculator: stages that each add one drafted token to the state of the stage before.

Source: Wertheimer et al. 2024 (Accelerating Production LLMs with Combined Token/Embedding
Speculators), and the checkpoints that IBM publishes. The first state is the target's last one.
Stage i projects the state s before it, adds the embedding z of the token before the one that it
predicts, and has s' = GELU(norm(P s + (b / a) z)), whose language-model head gives the logits. With
n stages of width W, a = 2^(-1 / 2n) and b = sqrt((1 - a^2) W / 2), so that the first state makes up
half of the last one. The norm is by the root mean square, with weight and bias. Embeddings and
heads are the stages' own. All weights begin at random, as there; the tree, `tree`, is an option
here, and `top_k_tokens_per_head` and `n_candidates` of published configurations are not read.

Legend: B rows, T places, S chosen ones, H stages, M frontier nodes, D width, W inner width, V
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.drafters.shared.head_tree import GrownHeadTree, Heads
from foretoken.trainable.checkpoint import Facts, VocabularyLayers
from foretoken.trainable.lesson import Lesson
from foretoken.trees.grow import Frontier, Propose

_EPS = 1e-6


class BiasedNorm(nn.RMSNorm):
    """A norm by the root mean square, with a weight and a bias."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=_EPS)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias


class MlpSpeculatorStages(Heads):
    """An MLP speculator's weights, named as IBM names them. num_heads: stages, one for each place
    predicted; inner_width: of their states, None for the target's; tied: whether all stages share
    their weights, but for the first projection; scaled: whether the target's state is normed
    first."""

    method: ClassVar[str] = "mlp_speculator"

    def __init__(
        self,
        facts: Facts,
        num_heads: int = 4,
        inner_width: int | None = None,
        tied: bool = False,
        scaled: bool = False,
    ) -> None:
        if tied and num_heads < 2:
            raise ValueError(f"{num_heads} stages can't share weights, which takes 2 of them")
        width, inner = facts.hidden_size, inner_width or facts.hidden_size
        super().__init__(facts, num_heads=num_heads, inner_width=inner, tied=tied, scaled=scaled)
        own, projections = (1, 2) if tied else (num_heads, num_heads)
        vocab, kept = facts.vocab_size, 0.5 ** (0.5 / num_heads)
        self.blend: float = ((1 - kept**2) * inner / 2) ** 0.5 / kept
        self.emb = nn.ModuleList(nn.Embedding(vocab, inner) for _ in range(own))
        self.proj = nn.ModuleList(
            nn.Linear(inner if i else width, inner, bias=False) for i in range(projections)
        )
        self.ln = nn.ModuleList(BiasedNorm(inner) for _ in range(own))
        self.head = nn.ModuleList(nn.Linear(inner, vocab, bias=False) for _ in range(own))
        for layer in (*self.emb, *self.proj, *self.head):
            for weight in layer.parameters():
                nn.init.normal_(weight, std=inner**-0.5)

    def copy_from(self, target: VocabularyLayers) -> None:
        """Nothing: embeddings and heads aren't the target's."""

    def language_model_heads(self) -> list[Tensor]:
        return [weight for head in self.head for weight in head.parameters()]

    def of_vocabulary(self) -> list[Tensor]:
        return [*super().of_vocabulary(), *self.emb.parameters()]

    def first(self, states: Tensor) -> Tensor:
        """The target's states [..., D] as the first stage reads them."""
        if not self.shape["scaled"]:
            return states
        return F.rms_norm(states, states.shape[-1:], eps=_EPS) / 2**0.5

    def stage(self, index: int, before: Tensor, tokens: Tensor) -> Tensor:
        """The states before a stage ([..., D] before the first, else [..., W]) and token ids [...]
        -> its states [..., W]."""
        projected = _of(self.proj, index)(before)
        mixed = projected + self.blend * _of(self.emb, index)(tokens)
        return F.gelu(_of(self.ln, index)(mixed))

    def head_states(self, lesson: Lesson, places: Tensor) -> Tensor:
        """[B, S, H, W]: stage i at place t reads the text's token t + 1 + i."""
        state = self.first(lesson.hidden[-1].take_along_dim(places[..., None], 1))
        outputs = []
        for i in range(self.shape["num_heads"]):
            ahead = (places + 1 + i) % lesson.tokens.shape[1]  # what wraps around counts nowhere
            state = self.stage(i, state, lesson.tokens.gather(1, ahead))
            outputs.append(state)
        return torch.stack(outputs, -2)

    def head_logits(self, index: int, states: Tensor) -> Tensor:
        """One stage's logits [..., V] of its states [..., W]."""
        logits: Tensor = _of(self.head, index)(states)
        return logits

    def logits(self, states: Tensor, head: Any) -> Tensor:
        """[..., H, W] -> [..., H, V]; the target's head is not read."""
        parts = [self.head_logits(i, states[..., i, :]) for i in range(states.shape[-2])]
        return torch.stack(parts, -2)


def _of(layers: nn.ModuleList, index: int) -> Any:
    """A stage's own layer, or the last one, which it shares with those after it."""
    return layers[min(index, len(layers) - 1)]


@dataclass(eq=False)
class MlpSpeculator(GrownHeadTree):
    """model: a checkpoint's folder, hub id or bundled name; tree: "paper" (Medusa's 63
    nodes), "auto" (planned for measured costs, at most the likeliest `tree_nodes` of these, which
    are drafted where no costs are known), "planned" (of `tree_nodes` nodes, for the rates that the
    checkpoint was measured at) or rank paths; tree_nodes: 63 by default, not with rank paths;
    num_speculative_tokens: fewer levels than the checkpoint has heads."""

    module: ClassVar[type[Heads]] = MlpSpeculatorStages

    def ask(self, states: Tensor, roots: Tensor) -> Propose:
        """As `GrownHeadTree` has it: stage i reads the state of each node's parent."""
        stages = self._heads
        state = stages.first(states)[:, None]  # [B, M, D] at first, of the frontier before

        def ask(frontier: Frontier) -> Tensor:
            nonlocal state
            tokens = frontier.tokens if frontier.depth else roots[:, None]
            parents = frontier.parents[..., None].expand(-1, -1, state.shape[-1])
            state = stages.stage(frontier.depth, state.gather(1, parents), tokens)
            probs: Tensor = stages.head_logits(frontier.depth, state).softmax(-1)
            return probs

        return ask
