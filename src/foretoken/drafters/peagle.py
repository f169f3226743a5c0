"""P-EAGLE: EAGLE-3's layers run once for a whole chain, at masks after the text.

Source: Hui et al. 2026 (P-EAGLE: Parallel-Drafting EAGLE with Scalable Training), and the module of
`speculators` for names and masks. The last entry of the text predicts the first place, as in
EAGLE-3. Masks after it predict the places that follow: each has the embedding of the mask token
and, in place of the target's states, the trained `mask_hidden`, and attends to the text's entries
and to the masks before it. So no place's distribution depends on the tokens drafted before it: at
temperature 0 the draft is the chain of likeliest tokens, above it each is drawn from its
distribution. The embedding is the drafter's own and trained. Departure: training draws `blocks`
places of a row at random and predicts all `depths` places from each; the paper draws fewer of the
later ones.

Legend: B rows, T entries, R blocks of a row, A masks, X = R · A, C = A + 1 places, D width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import AllAtOnce, ChainDrafter
from foretoken.errors.values import check_range
from foretoken.length import Fixed
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.appended import block_acceptance, block_positions, blocks_loss, draw_places
from foretoken.trainable.checkpoint import Facts, Trained, VocabularyLayers
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.trainable.feature_layer import FeatureModel
from foretoken.trainable.lesson import Lesson, drawn_acceptance
from foretoken.trainable.losses import Objective
from foretoken.trainable.masked_attention import attend_masked

_FIRST = 2  # the entry of token t predicts token t + 2
_MOST = 512  # places of a draft, for which the cache has room after the context

Embed = Callable[[Tensor], Tensor]
"""Ids -> embeddings [..., D]."""


class PEagleModule(Eagle3Module):
    """P-EAGLE's weights. mask_token_id: whose embedding masks have, None for the vocabulary's last;
    own_embedding: whether the embedding is the drafter's own; depths: places that training predicts
    from each of `blocks` entries of a row; the others as `Eagle3Module` has them."""

    method: ClassVar[str] = "peagle"
    by_reach = False

    def __init__(
        self,
        facts: Facts,
        mask_token_id: int | None = None,
        own_embedding: bool = True,
        depths: int = 8,
        blocks: int = 64,
        **rest: Any,
    ) -> None:
        super().__init__(facts, **{"num_layers": 4, **rest})
        mask = facts.vocab_size - 1 if mask_token_id is None else mask_token_id
        if not 0 <= mask < facts.vocab_size or depths < 2:
            raise ValueError(
                f"mask_token_id is {mask} and depths {depths}; they must be tokens of the "
                f"{facts.vocab_size} and at least 2"
            )
        self.shape |= {
            "mask_token_id": mask,
            "own_embedding": own_embedding,
            "depths": depths,
            "blocks": blocks,
        }
        captured, width = len(self.shape["capture"]), facts.hidden_size
        self.mask_hidden = nn.Parameter(0.02 * torch.randn(1, 1, captured * width))
        self.embed_tokens = nn.Embedding(facts.vocab_size, width) if own_embedding else None

    def copy_from(self, target: VocabularyLayers) -> None:
        super().copy_from(target)
        if self.embed_tokens is not None:
            weight = self.embed_tokens.weight
            with torch.no_grad():
                weight.copy_(target.embed(torch.arange(len(weight), device=weight.device)))

    def embedding(self, target: Embed) -> Embed:
        """Its own, or the target's."""
        return target if self.embed_tokens is None else self.embed_tokens

    def mask_feature(self) -> Tensor:
        """[D] what masks have in place of a feature of the target's states."""
        return self.joined(self.mask_hidden)[0, 0]

    def places(self, lesson: Lesson, entries: Tensor, count: int) -> Tensor:
        """[B, R, C, D] what the head reads at the entries [B, R] and at the masks after each, so
        many in all."""
        features, embed = self.features(lesson.hidden), self.embedding(lesson.embed)
        positions, mask = block_positions(lesson, entries, count - 1)
        (rows, length), many = lesson.tokens.shape, positions.shape[1]
        token = torch.full((1,), self.shape["mask_token_id"], device=entries.device)
        # What wraps around counts nowhere.
        following = embed(torch.cat((lesson.tokens.roll(-1, 1), token.expand(rows, many)), 1))
        features = torch.cat((features, self.mask_feature().expand(rows, many, -1)), 1)
        outputs = self.normed(
            self.predict(
                features,
                following.to(features.dtype),
                torch.cat((lesson.positions, positions), 1),
                [partial(attend_masked, mask=mask)] * self.decoder_layers,
            )
        )
        roots = outputs[:, :length].take_along_dim(entries[..., None], 1)
        masks = outputs[:, length:].unflatten(1, (entries.shape[1], count - 1))
        return torch.cat((roots[:, :, None], masks), 2)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        entries = draw_places(lesson, self.shape["blocks"], _FIRST)
        states = self.places(lesson, entries, self.shape["depths"])
        (head, weights), goal = self.learning(lesson), self.own_objective(objective)
        return blocks_loss(lesson, entries, states, _FIRST, head, weights, goal)


class MaskedModel(AllAtOnce):
    """A `ChainModel`: the layers over a text, and over masks after it for all places but the
    first."""

    def __init__(self, module: PEagleModule, places: int, access: Access) -> None:
        self.device = access.device
        self._module, self._access, self._places = module, access, places
        embed = module.embedding(access.embed)
        self._entries = FeatureModel(module, module.layer_shape, access, embed)
        self._masks = [module.shape["mask_token_id"]] * (places - 1)
        self.begin, self.fork = self._entries.begin, self._entries.fork
        self.end = self._entries.end

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted: none where there is no state to read."""
        return self._places if self._entries.ready(sequence) else 0

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._entries.observe(sequences, steps)

    def ahead(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, C, V] logits of all places, by one pass."""
        features = self._module.mask_feature().expand(len(self._masks), -1)
        outputs = self._entries.with_appended(sequences, self._masks, features)
        return self._module.logits(outputs, self._access.head)


@dataclass(eq=False)
class PEagle(ChainDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: length of the
    chain, 1 to 512. Checkpoints don't bound it; places beyond those that one was trained for are
    seldom accepted."""

    model: Any = None
    num_speculative_tokens: int = 5

    module: ClassVar[type[Trained]] = PEagleModule
    wants = Wants("acd", (-1,))  # the layers follow from the checkpoint

    def __post_init__(self) -> None:
        check_range(1, _MOST, num_speculative_tokens=self.num_speculative_tokens)
        PEagleModule.check_source(self.model)
        self.length = Fixed(self.num_speculative_tokens)

    def bind(self, access: Access) -> None:
        module = PEagleModule.load(self.model, access)
        self._lm: MaskedModel = MaskedModel(module, self.num_speculative_tokens, access)
        self.wants = replace(self.wants, hidden=tuple(dict.fromkeys(module.shape["capture"])))

    def acceptance(self, module: PEagleModule, lesson: Lesson) -> Tensor:
        """[B, T, C] the chance that a step whose root is there accepts more than n places."""
        most = self.num_speculative_tokens
        roots = (lesson.max_nodes >= 0) & (lesson.positions > 0)
        chances = block_acceptance(
            lesson,
            roots.roll(-1, 1),
            lambda entries: module.places(lesson, entries, most),
            _FIRST,
            most,
            lambda states: module.head_logits(states, lesson.head),
        ).roll(1, 1)
        return drawn_acceptance(chances, lesson.max_nodes)
