"""Kangaroo: the target's first layers and a small adapter draft; the other layers verify.

Source: Liu et al. 2024 (Kangaroo), section 3. The adapter is one attention between two norms, and
shares the language-model head. A draft ends after the first token whose distribution has no
probability of at least the threshold (the second exit). Verification resumes from the states of
the first layers. Training: cross-entropy to the target's distribution, the target frozen.
Weights are named as its code names them. Departures: the probability is the likeliest token's, when
sampling too; the adapter's entries of drafted tokens are computed again once they are accepted.

Legend: B rows, T places, N drafted places, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ChainDrafter
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.length import Confidence, LengthRule
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.feature_layer import unroll
from foretoken.trainable.head_losses import heads_loss
from foretoken.trainable.layer import Attend, Attention, LayerShape
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, drawn_chance
from foretoken.trainable.shallow import ShallowModel
from foretoken.tree import DraftTree

_CHUNK = 64  # places of each row whose logits exist at once


class AdapterLayer(nn.Module):
    """x + attention(norm(x))."""

    def __init__(self, decoder: LayerShape) -> None:
        super().__init__()
        self.self_attn = Attention(decoder)
        self.input_layernorm = nn.RMSNorm(decoder.outer, decoder.norm_eps)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        out: Tensor = x + self.self_attn(self.input_layernorm(x), positions, attend)
        return out


class KangarooAdapter(Trained):
    """Kangaroo's adapter. exit_layer: how many of the target's layers draft, None for 2; heads,
    kv_heads and `layer` (as in `LayerShape`): of its attention."""

    method: ClassVar[str] = "kangaroo"
    decoder_layers: ClassVar[int] = 1

    def __init__(
        self,
        facts: Facts,
        exit_layer: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        **layer: Any,
    ) -> None:
        decoder = LayerShape.for_width(facts.hidden_size, 1, heads, kv_heads, **layer)
        depth = min(2, facts.layers - 1) if exit_layer is None else exit_layer
        if not 1 <= depth < facts.layers:
            raise ForetokenError(
                f"exit_layer is {depth} and the target has {facts.layers} layers; it must be at "
                "least 1 and less than that."
            )
        super().__init__(
            facts, exit_layer=depth, heads=decoder.heads, kv_heads=decoder.kv_heads, **layer
        )
        self.layer_shape = decoder
        self.layers = nn.ModuleList([AdapterLayer(decoder)])
        self.norm = nn.RMSNorm(decoder.outer, decoder.norm_eps)

    @property
    def exit_layer(self) -> int:
        depth: int = self.shape["exit_layer"]
        return depth

    @property
    def hidden(self) -> tuple[int, ...]:  # type: ignore[override]
        """The exit layer, and the last state, from which the target's distributions follow."""
        return (self.exit_layer, -1)

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The target's states after the exit layer."""
        return hidden[self.exit_layer]

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """[B, T, D] -> normed [B, T, D]; the tokens after are not read."""
        out: Tensor = self.norm(self.layers[0](features, positions, attends[0]))
        return out

    def logits(self, outputs: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> logits [..., V]."""
        return head(outputs)

    def outputs(self, lesson: Lesson) -> Tensor:
        """[B, T, D] the outputs that predict each place's next token."""
        states = self.features(lesson.hidden)
        return unroll(self, states, states, lesson, 1)[:, :, 0]

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        ahead = self.outputs(lesson).roll(-1, 1)[
            :, :, None
        ]  # as head 0, which predicts two places on
        return heads_loss(lesson, ahead, lesson.head, [], objective)

    def predictions(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """[B, T] the chance that what is drafted after each place is accepted and is the text's
        token, 0 or 1 at temperature 0; and the probability of the likeliest token there."""
        outputs, goal = self.outputs(lesson), lesson.tokens.roll(-1, 1)
        right, likely = [], []
        parts = (x.split(_CHUNK, 1) for x in (outputs, lesson.hidden[-1], goal))
        for part, states, tokens in zip(*parts, strict=True):
            logits, heat = lesson.head(part), lesson.temperature
            best = (logits / (heat or 1.0)).softmax(-1).max(-1)
            hit = drawn_chance(logits, lesson.head(states), tokens, heat) if heat else None
            right.append((best.indices == tokens).to(logits.dtype) if hit is None else hit)
            likely.append(best.values)
        inside = lesson.records.roll(-1, 1) == lesson.records
        inside[:, -1] = False
        return torch.cat(right, 1) * inside, torch.cat(likely, 1)


@dataclass(eq=False)
class Kangaroo(ChainDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: longest draft;
    assistant_confidence_threshold: the probability below which a token is the draft's last."""

    model: Any = None
    num_speculative_tokens: int = 6
    assistant_confidence_threshold: float = 0.6

    module: ClassVar[type[Trained]] = KangarooAdapter
    wants = Wants("acde")

    def __post_init__(self) -> None:
        KangarooAdapter.check_source(self.model)
        self.length: LengthRule = Confidence(
            self.num_speculative_tokens, self.assistant_confidence_threshold
        )

    def bind(self, access: Access) -> None:
        adapter = KangarooAdapter.load(self.model, access)
        self.wants = Wants("acde", (adapter.exit_layer,))
        self._lm: ShallowModel = ShallowModel(
            access, adapter.exit_layer, adapter, adapter.layer_shape, self.nodes
        )

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        """Sequences that draft nothing are run too, so that verification can resume from all."""
        tree = self._chain(sequences, self._limits(sequences, budgets), draws)
        resume = self._lm.resume_point()
        return tree if resume is None else replace(tree, resume=resume)

    def acceptance(self, adapter: KangarooAdapter, lesson: Lesson) -> Tensor:
        """[B, T, N] the chance that a step whose root is there accepts more than n places."""
        right, likely = adapter.predictions(lesson)
        drafted, reached = torch.ones_like(right), []
        for n in range(self.num_speculative_tokens):
            accepted = drafted * right.roll(-n, 1) * (lesson.max_nodes > n)
            reached.append(accepted)
            drafted = accepted * (likely.roll(-n, 1) >= self.assistant_confidence_threshold)
        return torch.stack(reached, 2)
