"""EAGLE's decoder layers on a target's states: unrolled over texts to train, with a cache to serve.

Entry t of a text reads the target's state of token t (its feature) and the embedding of token
t + 1. Its output predicts the feature of token t + 1, and so token t + 2. While drafting, an
entry's feature is the output of the entry before it. Source: Li et al. 2024 (EAGLE), section 3.1.
Weights are named as in a Llama layer.

Legend: B rows, T entries, S chosen ones, M frontier nodes, D width, H heads, K key/value heads, W
head width, V vocabulary, I unrolled steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.models.cache import KVCache, alike
from foretoken.models.feed import Feed, chain_feed, frontier_feed
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.layer import Attend, Attention, LayerShape, Mlp, attend_cached
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.masked_attention import attend_masked, for_heads, in_parts
from foretoken.trainable.root_states import kept_slots, prompt_slot
from foretoken.trees.grow import Frontier

_SPARE = 1024  # cache places after the context, at least: nodes of a draft that starts at its end
_MOST_WAITING = 128  # features of a sequence, where other drafters draft


class FeatureLayer(nn.Module):
    """Attention and feed-forward; the module computes what the attention reads."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape.outer, shape.intermediate)
        self.post_attention_layernorm = nn.RMSNorm(shape.outer, eps=shape.norm_eps)

    def forward(self, x: Tensor, residual: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The attention of x [B, T, reads] is added to residual [B, T, D]."""
        residual = residual + self.self_attn(x, positions, attend)
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class FeaturePredictor(Protocol):
    """A module that predicts states with such layers, as many as `decoder_layers`."""

    @property
    def decoder_layers(self) -> int: ...

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The target's states by layer [..., D] -> the entries' features [..., D]."""
        ...

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """Features, and embeddings of the tokens after them -> outputs, all [B, T, D]; attends: of
        each layer."""
        ...

    def logits(self, outputs: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> logits [..., V]; head: the target's."""
        ...


def unroll(
    module: FeaturePredictor, features: Tensor, embeddings: Tensor, lesson: Lesson, steps: int
) -> Tensor:
    """The layers run on their own outputs along a text: [B, T, I, D]. Step i from entry t predicts
    token t + 2 + i, as a draft that starts there does.

    features, embeddings: [B, T, D] of the tokens themselves. Steps after the first are computed
    only for places with a step whose predicted token counts, and may be 0 elsewhere: most of a row
    is prompts, where nothing is drafted.
    """
    chosen = lesson.places_to_draft(steps)[..., None]  # [B, S, 1]
    attends = [_growing(lesson, chosen[..., 0]) for _ in range(module.decoder_layers)]
    following = embeddings.roll(-1, 1)  # what wraps around counts nowhere
    outputs = [module.predict(features, following, lesson.positions, attends)]
    if steps == 1:
        return outputs[0][:, :, None]
    state = outputs[0].take_along_dim(chosen, 1)
    places = lesson.positions.take_along_dim(chosen[..., 0], 1)
    for i in range(1, steps):
        following = embeddings.roll(-1 - i, 1).take_along_dim(chosen, 1)
        state = module.predict(state, following, places + i, attends)
        outputs.append(state.new_zeros(features.shape).scatter(1, chosen.expand_as(state), state))
    return torch.stack(outputs, 2)


def _growing(lesson: Lesson, chosen: Tensor) -> Attend:
    """A layer's attention, called once a step: at first along the text, then from the chosen places
    [B, S]."""
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q.shape[2]
        keys.append(for_heads(k, heads))
        values.append(for_heads(v, heads))
        if len(keys) == 1:
            return attend_masked(q, keys[0], values[0], lesson.mask)
        own, text = (q, *keys[1:], *values[1:]), (keys[0], values[0])
        scores = len(q) * heads * keys[0].shape[1]
        return in_parts(_attend_unrolled, lambda at: lesson.sees(chosen[:, at]), own, text, scores)

    return attend


def _attend_unrolled(visible: Tensor, q: Tensor, *given: Tensor) -> Tensor:
    """Each place attends to the first step's keys [B, T, H, W] where `visible` [B, S, T] is true,
    and to those of its own later steps. given: of these steps the keys and then the values, as q
    [B, S, H, W]; the first step's keys and values."""
    *later, first, first_values = given
    keys, values = later[: len(later) // 2], later[len(later) // 2 :]
    first, first_values = first.transpose(1, 2), first_values.transpose(1, 2)
    queries, scale = q.transpose(1, 2), q.shape[-1] ** -0.5
    history = (queries @ first.mT * scale).masked_fill(~visible[:, None], -torch.inf)
    own = torch.stack([(q * k).sum(-1) for k in keys], -1) * scale  # [B, S, H, I - 1]
    shares = torch.cat((history, own.transpose(1, 2)), -1).softmax(-1)
    length = first.shape[2]
    mixed = (shares[..., :length] @ first_values).transpose(1, 2)
    for i, value in enumerate(values):
        mixed = mixed + shares[..., length + i].transpose(1, 2)[..., None] * value
    return mixed.flatten(2)


@dataclass
class _Features:
    """A sequence's features. waiting: those without an entry in the cache yet; prompt: that of
    the token before the prompt's last one, if there is one."""

    waiting: Tensor
    prompt: Tensor


class FeatureModel:
    """Serves a `FeaturePredictor`, with a cache for the entries of each sequence.

    In a text of n tokens whose last one is the root, entry n - 2 is the last; a draft's first pass
    runs it with all that came since the draft before. Entries of drafted nodes are discarded.
    """

    def __init__(
        self,
        module: FeaturePredictor,
        shape: LayerShape,
        access: Access,
        embed: Callable[[Tensor], Tensor] | None = None,
        nodes: int = 0,
    ) -> None:
        """embed: ids -> embeddings [..., D], where they aren't the target's. nodes: the most that a
        draft runs."""
        self.device = access.device
        self._module, self._access, self._embed = module, access, embed or access.embed
        self._cache = KVCache(
            alike(module.decoder_layers, shape.kv_heads, shape.head_dim),
            access.slots,
            access.max_length,
            access.dtype,
            access.device,
            spare=max(_SPARE, nodes),
            budget=access.budget,
        )
        self._depths: list[int] = []  # of a growing tree's nodes so far, the root first
        self._outputs: Tensor | None = None  # [B, M, D] of the frontier before

    def begin(self, sequence: Sequence) -> None:
        self._cache.acquire(sequence.id)

    def end(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        """The copy starts after the prompt, however far the other is."""
        features = sequence.state.get(self)
        if features is not None and len(features.prompt):
            source, target = self._cache.slot(sequence.id), self._cache.slot(copy.id)
            self._cache.copy(source, target, copy.prompt_length - 2)
            copy.state[self] = _Features(features.prompt, features.prompt)

    def ready(self, sequence: Sequence) -> bool:
        """Whether there is a feature to draft from."""
        features = sequence.state.get(self)
        return features is not None and len(features.waiting) > 0

    def ready_rows(self, sequences: Seq[Sequence], budgets: Seq[int]) -> list[int]:
        """The rows that may draft nodes and have a feature to draft from."""
        pairs = enumerate(zip(sequences, budgets, strict=True))
        return [row for row, (sequence, budget) in pairs if budget > 0 and self.ready(sequence)]

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Take the features of what was read or accepted."""
        if not steps:
            return
        features = self._module.features(steps[0].scores.hidden)
        for sequence, step in zip(sequences, steps, strict=True):
            new = features[step.row, kept_slots(step)]
            kept = sequence.state.setdefault(self, _Features(new[:0], new[:0]))
            if step.read:
                before = self._cache.lengths[self._cache.slot(sequence.id)] + len(kept.waiting)
                slot = prompt_slot(sequence, step, before)
                if slot is not None:
                    kept.prompt = features[step.row, slot : slot + 1].clone()
            kept.waiting = torch.cat((kept.waiting, new))
        most = [1 if step.read else _MOST_WAITING for step in steps]
        pairs = zip(sequences, most, strict=True)
        if reading := [s for s, few in pairs if len(s.state[self].waiting) > few]:
            self._run_waiting(reading, 1)

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, D] outputs of the last entries, those before the roots; runs waiting features."""
        return self._run_waiting(sequences, 0)

    def with_appended(self, sequences: Seq[Sequence], tokens: Seq[int], features: Tensor) -> Tensor:
        """[B, 1 + A, D] outputs of the last entries, and of entries with these tokens [A] and
        features [A, D] that follow them in this pass and are not kept; runs waiting features."""
        return self._run_waiting(sequences, 0, tokens, features)

    def level(self, sequences: Seq[Sequence], frontier: Frontier) -> Tensor:
        """[B, M, V] logits after the nodes of a growing tree's frontier, in one pass."""
        if not frontier.depth:
            self._depths = [0]
            self._outputs = self.root_logits(sequences)
        else:
            assert self._outputs is not None
            self._depths += [frontier.depth] * frontier.slots.shape[1]
            slots = [self._cache.slot(s.id) for s in sequences]
            feed = frontier_feed(self._cache, slots, frontier.tokens, frontier.sees, self._depths)
            place = frontier.parents[..., None].expand(-1, -1, self._outputs.shape[-1])
            self._outputs = self._run(self._outputs.gather(1, place), feed)
        return self._module.logits(self._outputs, self._access.head)

    def _run_waiting(
        self,
        sequences: Seq[Sequence],
        leave: int,
        more: Seq[int] = (),
        more_features: Tensor | None = None,
    ) -> Tensor:
        """Run all waiting features but the last `leave`, and more entries after them as
        `with_appended` has them; outputs [B, 1 + A, D] of the last entries and of those.

        One is left after a prompt, so that there is something to run when its draft begins.
        """
        slots = [self._cache.slot(s.id) for s in sequences]
        kept = [s.state[self] for s in sequences]
        counts = [len(each.waiting) - leave for each in kept]
        tokens = []
        for sequence, slot, count in zip(sequences, slots, counts, strict=True):
            start = self._cache.lengths[slot] + 1
            tokens.append([*sequence.tokens[start : start + count], *more])
        feed = chain_feed(self._cache, slots, tokens)
        features = [each.waiting[:count] for each, count in zip(kept, counts, strict=True)]
        if more_features is not None:
            features = [torch.cat((own, more_features)) for own in features]
        outputs = self._run(nn.utils.rnn.pad_sequence(features, batch_first=True), feed)
        for each, slot, count in zip(kept, slots, counts, strict=True):
            each.waiting = each.waiting[count:]
            self._cache.lengths[slot] += count
        rows = torch.arange(len(slots), device=outputs.device)[:, None]
        last = torch.tensor(counts, device=outputs.device)[:, None] - 1
        return outputs[rows, last + torch.arange(1 + len(more), device=outputs.device)]

    def _run(self, features: Tensor, feed: Feed) -> Tensor:
        following = self._embed(feed.tokens).to(features.dtype)
        attends = [attend_cached(layer, feed) for layer in self._cache.layer]
        return self._module.predict(features, following, feed.positions, attends)
