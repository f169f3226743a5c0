"""MTP: the layer for the token after the next that some models are trained with, as a drafter.

Sources: DeepSeek-V3 technical report (2024), section 2.2: the norms of the target's last state and
of the next token's embedding, concatenated, are projected to one width and go through a decoder
layer; embedding and head are the target's. Cai et al. 2025 (FastMTP), section 3: one layer drafts
several tokens on its own outputs, and is trained so, each step weighted 0.6 of the one before.
Tensors are named as `speculators` names them. Departures: it reads the target's normed states, and
its own normed outputs after them; a model with a layer for each step drafts with the first alone.

Legend: B rows, T places, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.drafters.shared.feature_trees import FeatureDrafter, GivenTree
from foretoken.length import Fixed
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.feature_layer import FeatureLayer
from foretoken.trainable.feature_module import FeatureModule
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.tree import Kind


class MtpLayer(FeatureLayer):
    """A decoder layer with the norms and the projection before it and the norm after it."""

    def __init__(self, decoder: LayerShape) -> None:
        super().__init__(decoder)
        width, eps = decoder.outer, decoder.norm_eps
        self.hidden_layernorm, self.token_layernorm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm, self.final_layernorm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        """[B, T, D] states and embeddings of the tokens after them -> [B, T, D]."""
        both = torch.cat((self.token_layernorm(following), self.hidden_layernorm(features)), -1)
        x = self.input_proj(both)
        out: Tensor = self.final_layernorm(self(self.input_layernorm(x), x, positions, attend))
        return out


class MtpModule(FeatureModule):
    """MTP's weights. heads, kv_heads, intermediate and `layer` (as in `LayerShape`): of its one
    decoder layer; unroll: steps that training takes on the layer's own outputs."""

    method: ClassVar[str] = "mtp"
    norms_embedding = True

    def __init__(
        self,
        facts: Facts,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        unroll: int = 3,
        **layer: Any,
    ) -> None:
        decoder = LayerShape.for_width(facts.hidden_size, 1, heads, kv_heads, intermediate, **layer)
        super().__init__(
            facts,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            intermediate=decoder.intermediate,
            unroll=unroll,
            **layer,
        )
        self.layer_shape = decoder
        self.mtp_layers = nn.ModuleList([MtpLayer(decoder)])

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """[B, T, D] states and embeddings of the tokens after them -> [B, T, D]."""
        layer: Any = self.mtp_layers[0]
        out: Tensor = layer.predict(features, following, positions, attends[0])
        return out


@dataclass(eq=False)
class Mtp(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: length of the
    chain; tree: rank paths instead of it, each with all its earlier siblings and its parent."""

    tree: Seq[Seq[int]] = ()
    num_speculative_tokens: int = 3

    module: ClassVar[type[Trained]] = MtpModule
    kinds = frozenset({Kind.WITHOUT_REPLACEMENT})

    def __post_init__(self) -> None:
        super().__post_init__()
        length = Fixed(self.num_speculative_tokens).tokens
        chain = [(0,) * (n + 1) for n in range(length)]
        builder = GivenTree(self.tree or chain)
        self.tree_builder, self.trees = builder, builder.branches
