"""Hydra: heads that read the tokens drafted before theirs, filling the same tree as Medusa's.

Source: Ankner et al. 2024 (Hydra), sections 3 and 4. Head i reads the state that the root was read
from and the embeddings of the root and of the i tokens drafted after it on the same path; its first
layer projects them to one width, the others are blocks x + SiLU(Wx), and a language-model head
follows. Hydra++ has deeper heads (`num_layers` 4) that learn the target's whole distribution
("kl_div"). Hydra++ also has a decoder layer over the states before the heads (`prefix`), with a
cache that follows the text. Departures: the last state is added to the first layer's
output, which starts at zero, and the decoder layer starts as the identity, so that an untrained
head predicts what the target predicts.

Legend: B rows, T places, H heads, M frontier nodes, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.drafters.shared.head_tree import GrownHeadTree, Heads
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.feature_layer import FeatureLayer, FeatureModel, unroll
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.root_states import LastStates, RootStates
from foretoken.trees.grow import Frontier, Propose


class PrefixLayer(FeatureLayer):
    """A decoder layer over the target's states, at first the identity."""

    decoder_layers: ClassVar[int] = 1

    def __init__(self, decoder: LayerShape) -> None:
        super().__init__(decoder)
        self.layer_shape = decoder
        self.input_layernorm = nn.RMSNorm(decoder.outer, eps=1e-6)
        nn.init.zeros_(self.self_attn.o_proj.weight)
        nn.init.zeros_(self.mlp.down_proj.weight)

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The target's normed last states."""
        return hidden[-1]

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; the tokens after the states are not read."""
        out: Tensor = self(self.input_layernorm(features), features, positions, attends[0])
        return out

    def logits(self, outputs: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> logits [..., V]."""
        return head(outputs)


class PrefixStates:
    """`RootStates`: the layer's output at the state that each root was read from."""

    last: int | None = None

    def __init__(self, layer: PrefixLayer, access: Access) -> None:
        self._model = FeatureModel(layer, layer.layer_shape, access)
        self.begin, self.observe = self._model.begin, self._model.observe
        self.fork, self.end = self._model.fork, self._model.end

    def available(self, sequences: Seq[Sequence]) -> tuple[list[int], Tensor | None]:
        """The rows that have a state, and these states [rows, D]."""
        rows = [row for row, sequence in enumerate(sequences) if self._model.ready(sequence)]
        ready = [sequences[row] for row in rows]
        return rows, self._model.root_logits(ready)[:, 0] if rows else None


class HydraHead(nn.Module):
    """Head `index`: its first layer reads the state and index + 1 embeddings; its residual is the
    state, or a `learned` projection of all that it reads."""

    def __init__(
        self, width: int, index: int, num_layers: int, vocab_size: int | None, learned: bool
    ) -> None:
        super().__init__()
        self.skip = nn.Linear((index + 2) * width, width) if learned else None
        self.join = nn.Linear((index + 2) * width, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers - 1))
        for layer in (self.join, *self.blocks):
            for weight in layer.parameters():
                nn.init.zeros_(weight)
        if vocab_size is not None:
            self.lm_head = nn.Linear(width, vocab_size, bias=learned)

    def forward(self, state: Tensor, embeddings: Tensor) -> Tensor:
        """[..., D] and [..., index + 1, D] -> [..., D]."""
        joined = torch.cat((state, embeddings.flatten(-2)), -1)
        x = (state if self.skip is None else self.skip(joined)) + F.silu(self.join(joined))
        for block in self.blocks:
            x = x + F.silu(block(x))
        return x


class HydraHeads(Heads):
    """Hydra's heads. num_heads: places predicted; num_layers: of each head; own_lm_heads: whether
    each head has a language-model head; prefix: fields of the `LayerShape` of the decoder layer
    before the heads (Hydra++), or None for no such layer; learned_residual: whether heads add a
    learned projection instead of the state, and have biases, as Ankner's do."""

    method: ClassVar[str] = "hydra"

    def __init__(
        self,
        facts: Facts,
        num_heads: int = 4,
        num_layers: int = 1,
        own_lm_heads: bool = True,
        prefix: Mapping[str, Any] | None = None,
        learned_residual: bool = False,
    ) -> None:
        super().__init__(
            facts,
            num_heads=num_heads,
            num_layers=num_layers,
            own_lm_heads=own_lm_heads,
            prefix=prefix,
            learned_residual=learned_residual,
        )
        width, vocab = facts.hidden_size, facts.vocab_size if own_lm_heads else None
        layer = None if prefix is None else LayerShape.for_width(width, 1, **prefix)
        self.prefix = None if layer is None else PrefixLayer(layer)
        self.heads = nn.ModuleList(
            HydraHead(width, i, num_layers, vocab, learned_residual) for i in range(num_heads)
        )

    def root_states(self, access: Access) -> RootStates:
        return LastStates() if self.prefix is None else PrefixStates(self.prefix, access)

    def language_model_heads(self) -> list[Tensor]:
        heads: list[Any] = list(self.heads) if self.shape["own_lm_heads"] else []
        return [weight for head in heads for weight in head.lm_head.parameters()]

    def head_states(self, lesson: Lesson, places: Tensor) -> Tensor:
        """[B, S, H, D]: head i at place t reads the text's tokens t + 1 … t + 1 + i."""
        state, at, outputs = lesson.hidden[-1], places[..., None], []
        embedded = lesson.embed(lesson.tokens).to(state.dtype)
        if self.prefix is not None:
            state = unroll(self.prefix, state, embedded, lesson, 1)[:, :, 0]
        state = state.take_along_dim(at, 1)
        ahead = torch.arange(1, len(self.heads) + 1, device=places.device)
        tokens = (at + ahead) % embedded.shape[1]  # [B, S, H]; what wraps around counts nowhere
        after = embedded.take_along_dim(tokens.flatten(1)[..., None], 1).unflatten(
            1, tokens.shape[1:]
        )
        for i, head in enumerate(self.heads):
            outputs.append(head(state, after[:, :, : i + 1]))
        return torch.stack(outputs, -2)

    def head_logits(self, index: int, states: Tensor, head: Any) -> Tensor:
        """One head's logits [..., V] of its states [..., D]; head: the target's."""
        chosen: Any = self.heads[index]
        logits: Tensor = (chosen.lm_head if self.shape["own_lm_heads"] else head)(states)
        return logits

    def logits(self, states: Tensor, head: Any) -> Tensor:
        parts = [self.head_logits(i, states[..., i, :], head) for i in range(len(self.heads))]
        return torch.stack(parts, -2)


@dataclass(eq=False)
class Hydra(GrownHeadTree):
    """model: a checkpoint's folder, hub id or bundled name; tree: "paper" (Medusa's 63
    nodes), "auto" (planned for measured costs, at most the likeliest `tree_nodes` of these, which
    are drafted where no costs are known), "planned" (of `tree_nodes` nodes, for the rates that the
    checkpoint was measured at) or rank paths; tree_nodes: 63 by default, not with rank paths;
    num_speculative_tokens: fewer levels than the checkpoint has heads."""

    module: ClassVar[type[Heads]] = HydraHeads

    def ask(self, states: Tensor, roots: Tensor) -> Propose:
        """As `GrownHeadTree` has it: head i reads the state and the path to each node."""
        heads, access = self._heads, self._access

        def ask(frontier: Frontier) -> Tensor:
            nodes = frontier.slots.shape[1]
            path = torch.cat((roots[:, None, None].expand(-1, nodes, -1), frontier.paths), 2)
            head, state = heads.heads[frontier.depth], states[:, None].expand(-1, nodes, -1)
            out = head(state, access.embed(path).to(state.dtype))
            probs: Tensor = heads.head_logits(frontier.depth, out, access.head).softmax(-1)
            return probs

        return ask
