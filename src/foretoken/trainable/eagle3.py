"""EAGLE-3's weights and loss: layers on states from three depths, trained on their own outputs.

Source: Li et al. 2025 (EAGLE-3), sections 3.1 and 3.2. `fc` joins the target's states after three
layers to one feature; the attention reads it and the embedding of the token after it, both normed.
The drafter's head predicts the most frequent tokens of the training text only, unless it has none
of its own and predicts with the target's, as EAGLE's first two versions. In training the
layer runs on its own outputs for `unroll` steps, as in drafting, and there is no loss on states.
The paper has one layer; published checkpoints with more have Llama's after it, each of which reads
the output of the one before, as vLLM's models/llama_eagle3.py runs them. Departures: the layers
captured in a target of fewer than 8 are 1, L/2 and L - 1; `fc` begins as the last of the three; the
loss leaves out tokens that the head lacks.

Legend: B rows, T places, I unrolled steps, D width, V vocabulary, R reduced vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.errors import unknown
from foretoken.trainable.checkpoint import Facts, VocabularyLayers
from foretoken.trainable.feature_layer import FeatureLayer, unroll
from foretoken.trainable.head_losses import heads_loss
from foretoken.trainable.headed import Headed, head_size
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective

NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Optional norms of published checkpoints: of the layer's residual; of the captured states,
together or each by itself; of the outputs, before the next entry reads them."""


class Layer3(FeatureLayer):
    """The layer, with a norm for each half of what its attention reads."""

    def __init__(self, width: int, **shape: Any) -> None:
        decoder = LayerShape.for_width(width, 2, **shape)
        super().__init__(decoder)
        self.hidden_norm = nn.RMSNorm(width, eps=decoder.norm_eps)
        self.input_layernorm = nn.RMSNorm(width, eps=decoder.norm_eps)


class LaterLayer(FeatureLayer):
    """A layer after the first: Llama's."""

    def __init__(self, width: int, **shape: Any) -> None:
        decoder = LayerShape.for_width(width, 1, **shape)
        super().__init__(decoder)
        self.input_layernorm = nn.RMSNorm(width, eps=decoder.norm_eps)


class Eagle3Module(Headed):
    """EAGLE-3's weights. num_layers: its decoder layers; heads, kv_heads, intermediate and `layer`
    (as in `LayerShape`): of each; capture: three of the target's layers, counted as `Wants.hidden`
    counts them; draft_vocab_size: tokens of a head of its own, None for the target's head; norms:
    those of `NORMS` that it has; unroll: steps that training takes on the layers' own outputs."""

    method: ClassVar[str] = "eagle3"
    like_target = True
    by_reach = True
    norms_embedding = True

    def __init__(
        self,
        facts: Facts,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        capture: Seq[int] | None = None,
        draft_vocab_size: int | None = 32_000,
        unroll: int = 7,
        norms: Seq[str] = (),
        num_layers: int = 1,
        **layer: Any,
    ) -> None:
        width = facts.hidden_size
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}, and it must be at least 1")
        if wrong := [name for name in norms if name not in NORMS]:
            raise unknown("norm", str(wrong[0]), NORMS)
        like = {"heads": heads, "kv_heads": kv_heads, "intermediate": intermediate, **layer}
        block = Layer3(width, **like)
        decoder, layers = (
            block.self_attn.layer_shape,
            list(capture or default_capture(facts.layers)),
        )
        super().__init__(
            facts,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            intermediate=decoder.intermediate,
            capture=layers,
            draft_vocab_size=head_size(draft_vocab_size, facts.vocab_size),
            unroll=unroll,
            norms=list(norms),
            num_layers=num_layers,
            **layer,
        )
        self.layer_shape = decoder
        self.fc = nn.Linear(len(layers) * width, width, bias=False)
        if "norm_before_fc" in norms:
            self.input_norm = nn.RMSNorm(len(layers) * width, eps=decoder.norm_eps)
        if "fc_norm" in norms:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(width, eps=decoder.norm_eps) for _ in layers)
        later = (LaterLayer(width, **like) for _ in range(num_layers - 1))
        self.layers = nn.ModuleList([block, *later])
        self.norm = nn.RMSNorm(width, eps=decoder.norm_eps)
        self.make_head()

    @property
    def hidden(self) -> tuple[int, ...]:  # type: ignore[override]
        """The captured layers, and the last state, which gives the target's distributions."""
        return (*dict.fromkeys(self.shape["capture"]), -1)

    @property
    def decoder_layers(self) -> int:
        """How many layers it has."""
        return len(self.layers)

    def copy_from(self, target: VocabularyLayers) -> None:
        super().copy_from(target)
        with torch.no_grad():
            width = self.facts.hidden_size
            self.fc.weight.zero_()[:, -width:].fill_diagonal_(1.0)  # the last captured layer

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """[..., D] of the captured layers' states."""
        return self.joined(torch.cat([hidden[layer] for layer in self.shape["capture"]], -1))

    def joined(self, states: Tensor) -> Tensor:
        """[..., D] of the captured states side by side [..., 3D]."""
        if "norm_before_fc" in self.shape["norms"]:
            states = self.input_norm(states)
        if "fc_norm" in self.shape["norms"]:
            parts = states.split(self.facts.hidden_size, -1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, -1)
        out: Tensor = self.fc(states)
        return out

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """[B, T, D] features and embeddings of the tokens after them -> [B, T, D]."""
        layer, *rest = list[Any](self.layers)
        normed = layer.hidden_norm(features)
        residual = normed if "norm_before_residual" in self.shape["norms"] else features
        x = torch.cat((layer.input_layernorm(following), normed), -1)
        out: Tensor = layer(x, residual, positions, attends[0])
        for later, attend in zip(rest, attends[1:], strict=True):
            out = later(later.input_layernorm(out), out, positions, attend)
        return self.norm(out) if "norm_output" in self.shape["norms"] else out

    def normed(self, outputs: Tensor) -> Tensor:
        """The outputs as the head reads them."""
        already = "norm_output" in self.shape["norms"]
        normed: Tensor = outputs if already else self.norm(outputs)
        return normed

    def logits(self, outputs: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> logits [..., V], -inf for tokens that a head of its own lacks."""
        return self.head_logits(self.normed(outputs), head)

    def outputs(self, lesson: Lesson, steps: int) -> Tensor:
        """[B, T, I, D], as `unroll` has it."""
        features = self.features(lesson.hidden)
        following = lesson.embed(lesson.tokens).to(features.dtype)
        return unroll(self, features, following, lesson, steps)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        outputs = self.normed(self.outputs(lesson, self.shape["unroll"]))
        head, weights = self.learning(lesson)
        return heads_loss(lesson, outputs, head, weights, self.own_objective(objective))


def default_capture(layers: int) -> tuple[int, int, int]:
    """The three layers that are captured of a target with this many, unless the shape names
    others."""
    return (2, layers // 2, layers - 3) if layers >= 8 else (1, layers // 2, layers - 1)
