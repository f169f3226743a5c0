"""What drafters with a decoder layer of their own share: modules, EAGLE-1's weights, two trees.

Sources: Li et al. 2024 (EAGLE), section 3 (the layer, its loss, the static tree); Li et al. 2024
(EAGLE-2), section 4 (the dynamic tree). EAGLE's weights are named as SafeAILab names them;
embedding and head are the target's. Departure: the layer has heads of about 48 and a feed-forward
of 8/3 of the width where the shape doesn't say otherwise, since a target's own numbers aren't known
here.

Legend: B rows, T places, R roots, I unrolled steps, M frontier nodes, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.feature_layer import (
    Attend,
    FeatureLayer,
    FeatureModel,
    LayerShape,
    heads_for,
    unroll,
)
from foretoken.trainable.head_losses import Paths, accepted, fitting, heads_loss, heads_ranks
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import FEATURE, Objective
from foretoken.tree import DraftTree, Kind
from foretoken.trees.grow import Frontier, beam, expand, sample, widths_of
from foretoken.trees.join import assemble

_NOISE = 0.1  # largest noise on the features while training
_CHUNK = 128  # roots whose distributions of all levels stand at once


def layer_shape(
    width: int,
    wide: int,
    heads: int | None = None,
    kv_heads: int | None = None,
    intermediate: int | None = None,
    **rest: Any,
) -> LayerShape:
    """A layer of this width whose attention reads `wide` times it; None: what is usual; rest: what
    else a `LayerShape` says."""
    many, between = heads or heads_for(width), intermediate or 8 * width // 3
    return LayerShape(width, wide * width, many, kv_heads or many, between, **rest)


class FeatureModule(Trained):
    """A module around one decoder layer of shape `of`; subclasses say what an `entry` is. `unroll`
    in its shape: steps on its own outputs that training takes."""

    of: LayerShape

    def features(self, hidden: dict[int, Tensor]) -> Tensor:
        """The target's normed last states."""
        return hidden[-1]

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        """[B, T, D] features and embeddings of the tokens after them -> [B, T, D]."""
        raise NotImplementedError

    def logits(self, outputs: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> logits [..., V]."""
        return head(outputs)

    def outputs(self, lesson: Lesson, steps: int) -> Tensor:
        """[B, T, I, D], as `unroll` has it."""
        features = self.features(lesson.hidden)
        following = lesson.embed(lesson.tokens).to(features.dtype)
        return unroll(self, features, following, lesson, steps)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        outputs = self.outputs(lesson, self.shape["unroll"])
        return heads_loss(lesson, outputs, lesson.head, [], objective)

    def ranks(self, lesson: Lesson, depth: int) -> Tensor:
        """[B, T, depth], as `heads_ranks` has it."""
        return heads_ranks(lesson, self.outputs(lesson, depth), lesson.head)


class EagleModule(FeatureModule):
    """heads, kv_heads, intermediate and `layer` (as in `LayerShape`): of its one decoder layer;
    bias: whether `fc` has one; unroll: steps on its own outputs that training takes (the paper has
    1)."""

    method: ClassVar[str] = "eagle"

    def __init__(
        self,
        facts: Facts,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        unroll: int = 1,
        bias: bool = True,
        **layer: Any,
    ) -> None:
        width = facts.hidden_size
        of = layer_shape(width, 1, heads, kv_heads, intermediate, **layer)
        super().__init__(
            facts,
            heads=of.heads,
            kv_heads=of.kv_heads,
            intermediate=of.intermediate,
            unroll=unroll,
            bias=bias,
            **layer,
        )
        self.of = of
        self.fc = nn.Linear(2 * width, width, bias=bias)
        self.layers = nn.ModuleList([FeatureLayer(of)])

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        """[B, T, D] features and embeddings of the tokens after them -> [B, T, D]."""
        x = self.fc(torch.cat((following, features), -1))
        out: Tensor = self.layers[0](x, x, positions, attend)
        return out

    def outputs(self, lesson: Lesson, steps: int) -> Tensor:
        """[B, T, I, D], as `unroll` has it; in training from states with noise."""
        if self.training:
            noise = (2 * torch.rand_like(lesson.hidden[-1]) - 1) * _NOISE
            lesson = replace(lesson, hidden={-1: lesson.hidden[-1] + noise})
        return super().outputs(lesson, steps)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        outputs = self.outputs(lesson, self.shape["unroll"])
        loss = heads_loss(lesson, outputs, lesson.head, [], objective)
        weight = objective.mix.get(FEATURE, 0.0)
        return loss + weight * self._apart(lesson, outputs, objective.decay) if weight else loss

    def _apart(self, lesson: Lesson, outputs: Tensor, decay: float) -> Tensor:
        """Smooth L1 from each output to the state that it stands for, a mean over what counts.

        Step i of place t stands for the state of token t + 1 + i, after which token t + 2 + i is.
        """
        total, length = outputs.new_zeros(()), outputs.shape[1]
        for i in range(min(outputs.shape[2], length - 2)):
            goal, mine = lesson.hidden[-1][:, 1 + i : length - 1], outputs[:, : length - 2 - i, i]
            inside = lesson.positions[:, 2 + i :] >= 2 + i
            far = F.smooth_l1_loss(mine, goal, reduction="none").mean(-1)
            total = total + decay**i * (far * inside * lesson.weight[:, 2 + i :]).sum()
        return total / lesson.weight.sum().clamp(min=1e-9)


def in_beam(distributions: Tensor, goal: Tensor, width: int, nodes: Tensor) -> Tensor:
    """[R, I] whether tokens `goal` [R, I] are in the tree that `beam` makes of R roots, each level
    with the distribution [R, I, V] after the goals before it, whichever path it is asked after.

    nodes: [R] how many are kept of each tree.
    """
    mine = distributions.gather(-1, goal[..., None])
    right = ((distributions > mine).sum(-1) < width) & (mine[..., 0] > 0)
    tops, mine = (
        distributions.topk(min(width, distributions.shape[-1])).values,
        mine[..., 0].cumprod(-1),
    )
    paths, levels, found = distributions.new_ones(len(distributions), 1), [], []
    alive = torch.ones_like(right[:, 0])
    for i in range(distributions.shape[1]):
        every = (paths[:, :, None] * tops[:, i, None]).flatten(1)
        paths = every.topk(min(width, every.shape[1])).values
        levels.append(every)
        found.append(alive & right[:, i])
        alive = found[-1] & (mine[:, i] >= paths[:, -1])
    ranked = torch.cat(levels, 1).sort(descending=True).values
    last = ranked.gather(1, (nodes[:, None] - 1).clamp(0, ranked.shape[1] - 1))
    return torch.stack(found, 1) & (mine >= last) & (nodes > 0)[:, None]


@dataclass(eq=False)
class FeatureDrafter(BaseDrafter):
    """A drafter names its `module` and makes trees with `_model`, which follows the texts."""

    model: Any = None

    module: ClassVar[type[Trained]]
    wants = Wants("bc", (-1,))

    def __post_init__(self) -> None:
        self.module.check_source(self.model)

    def bind(self, access: Access) -> None:
        module: Any = self.module.load(self.model, access)
        self._access, self._module = access, module
        self._model = FeatureModel(module, module.of, access)

    def begin(self, sequence: Sequence) -> None:
        self._model.begin(sequence)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._model.observe(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._model.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._model.end(sequence)


@dataclass(eq=False)
class DynamicTree(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; depth: levels of the tree; top_k: paths
    that each level goes on from, and children of each; tree_nodes: nodes that are kept, those of
    the likeliest paths."""

    depth: int = 6
    top_k: int = 10
    tree_nodes: int = 59

    module: ClassVar[type[Trained]] = EagleModule
    trees = True

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows = [b for b, s in enumerate(sequences) if budgets[b] > 0 and self._model.ready(s)]
        some, device = [sequences[row] for row in rows], self._access.device
        if not rows:
            return assemble([], len(sequences), device)

        def ask(frontier: Frontier) -> Tensor:
            return self._model.level(some, frontier).softmax(-1)

        nodes = [min(self.tree_nodes, budgets[row]) for row in rows]
        tree = beam(ask, self.top_k, self.depth, nodes, device)
        return assemble([(rows, tree)], len(sequences), device)

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, depth] whether a step whose root stands there accepts more than n places.

        What is drafted after other paths isn't known from one pass: it is taken to be what is
        drafted after the text's own.
        """
        outputs, length = module.outputs(lesson, self.depth), lesson.tokens.shape[1]
        found = lesson.tokens.new_zeros(*lesson.tokens.shape, self.depth, dtype=torch.bool)
        row, root = ((lesson.room > 0) & (lesson.positions > 0)).nonzero(as_tuple=True)
        ahead = torch.arange(1, self.depth + 1, device=row.device)
        for r, t in zip(row.split(_CHUNK), root.split(_CHUNK), strict=True):
            place, room = (t[:, None] + ahead).clamp(max=length - 1), lesson.room[r, t]
            distributions = module.logits(outputs[r, t - 1], lesson.head).softmax(-1)
            nodes = room.clamp(max=self.tree_nodes)
            there = in_beam(distributions, lesson.tokens[r[:, None], place], self.top_k, nodes)
            own = lesson.records[r[:, None], place] == lesson.records[r, t][:, None]
            inside = own & (t[:, None] + ahead < length) & (ahead <= room[:, None])
            found[r, t] = (there & inside).cumprod(-1).bool()
        return found


@dataclass(eq=False)
class StaticTree(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree: rank paths, each with all its
    earlier siblings and its parent. At temperature 0 a node's children are the likeliest tokens,
    above it they are drawn without replacement."""

    tree: Seq[Seq[int]] = ()

    module: ClassVar[type[FeatureModule]]
    kinds = frozenset({Kind.WITHOUT_REPLACEMENT})

    def __post_init__(self) -> None:
        super().__post_init__()
        widths_of(self.tree)
        self.trees = any(max(path) for path in self.tree)

    def bind(self, access: Access) -> None:
        super().bind(access)
        self._widths = widths_of(self._paths(self._module.facts))

    def _paths(self, facts: Facts) -> Paths:
        """Level by level, as far as so small a vocabulary can fill them."""
        paths = tuple(sorted((tuple(p) for p in self.tree), key=lambda path: (len(path), path)))
        return fitting(paths, max(map(len, paths), default=0), facts.vocab_size)

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, depth] whether a step whose root stands there accepts more than n places, at
        temperature 0."""
        paths = self._paths(module.facts)
        ranks = module.ranks(lesson, max(map(len, paths)))
        return accepted(ranks, lesson.room, paths)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows = [b for b, s in enumerate(sequences) if budgets[b] > 0 and self._model.ready(s)]
        device = self._access.device
        if not rows or not self._widths:
            return assemble([], len(sequences), device)
        some, limits = [sequences[row] for row in rows], [budgets[row] for row in rows]
        greedy = all(s.params.greedy for s in some)
        views = [_softmax(s) for s in some] if greedy else some

        def ask(frontier: Frontier) -> Tensor:
            return fold(self._model.level(some, frontier), views, frontier.contexts).probs

        if greedy:
            tree = expand(ask, self._widths, limits, device)
        else:
            kind = Kind.WITHOUT_REPLACEMENT
            tree = sample(ask, self._widths, limits, device, draws.take(rows), kind)
        return assemble([(rows, tree)], len(sequences), device)


def _softmax(sequence: Sequence) -> Sequence:
    """The same sequence at temperature 1: what `fold` makes of it ranks the tokens."""
    warm = replace(sequence.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return replace(sequence, params=warm)
