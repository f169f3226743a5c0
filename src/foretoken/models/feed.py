"""The input of one pass of a model: tokens, positions and attention mask.

`chain_feed` appends plain tokens (prefill, a drafter catching up), `tree_feed` a root and its draft
tree, `token_feed` one more token, `frontier_feed` the next level of a tree that is still growing,
`block_feed` a block whose tokens all attend to each other. `scratch_feed` and `rerun_feed` are for
draft passes, whose keys and values are overwritten. Masks are derived here and nowhere else.

Legend: B rows, T tokens of the pass, E uncommitted tokens before it, C cache place of the first of
the T, L = longest C + T.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foretoken.models.cache import KVCache
from foretoken.tree import DraftTree

_STEP = 64  # cells


@dataclass(slots=True)
class Feed:
    """One pass over `tokens` [B, T], written from place C of each slot on.

    positions: [B, T] for the rotary or learned embedding.
    ancestors: [B, T, E + T] bool, which of the E tokens before the pass and of its own T tokens
    each token attends to; all attend to everything before these. E is 0 except for `frontier_feed`
    and `rerun_feed`.
    starts: C of each row. slots: cache row of each. limit: cells of a cache row. counts: tokens of
    each row, None where all have T; the padding after them goes to the last cell, which is never
    read.
    last: the only place of each row at which logits are computed; None for all.
    replaced: (mask [B, T] bool, embeddings [B, T, D]) that are used instead of token embeddings.
    earlier: positions [B, E], where E is not 0.
    amateur_logits: [B, T, V] raw, of a contrastive model's amateur, where they are known.
    """

    tokens: Tensor
    positions: Tensor
    ancestors: Tensor
    slots: list[int]
    starts: list[int]
    limit: int
    last: list[int] | None = None
    logits: bool = True
    replaced: tuple[Tensor, Tensor] | None = None
    earlier: Tensor | None = None
    counts: list[int] | None = None
    amateur_logits: Tensor | None = None
    _masks: dict[tuple[object, ...], Tensor | None] = field(default_factory=dict)
    _index: tuple[Tensor, Tensor] | None = None
    _real: Tensor | None = None

    @property
    def aligned(self) -> bool:
        """Row b is cache slot b, so the cache can be read as a view."""
        return self.slots == list(range(len(self.slots)))

    @property
    def alone(self) -> bool:
        """There is one row, whose cells lie together and can be written as a slice."""
        return len(self.slots) == 1 and not self.ragged

    @property
    def ragged(self) -> bool:
        """Some rows have padding."""
        return self.counts is not None and min(self.counts) < self.tokens.shape[1]

    def packed(self, each: Tensor) -> Tensor:
        """[B, T, ...] -> [P, ...] what belongs to a token that is not padding, row by row."""
        flat: Tensor = each.flatten(0, 1)
        return flat[self.real_places()] if self.ragged else flat

    def unpacked(self, packed: Tensor) -> Tensor:
        """[P, ...] -> [B, T, ...], 0 where there is padding."""
        shape = self.tokens.shape
        if not self.ragged:
            return packed.view(*shape, *packed.shape[1:])
        flat = packed.new_zeros(shape.numel(), *packed.shape[1:])
        flat[self.real_places()] = packed
        return flat.view(*shape, *packed.shape[1:])

    def real_places(self) -> Tensor:
        """[P] where the tokens that are not padding stand among all B·T."""
        if self._real is None:
            width = self.tokens.shape[1]
            counts = enumerate(self.counts or ())
            places = [row * width + at for row, count in counts for at in range(count)]
            self._real = torch.tensor(places, device=self.tokens.device)
        return self._real

    @property
    def length(self) -> int:
        """L: how much of the cache the longest row sees."""
        return min(max(self.starts) + self.tokens.shape[1], self.limit)

    @property
    def reach(self) -> int:
        """What all positions lie below: a tree's are at most those of a chain of its tokens."""
        return max(self.starts) + self.tokens.shape[1]

    def cells(self) -> tuple[Tensor, Tensor]:
        """(slots [B, 1], cache positions [B, T]) that this pass writes."""
        if self._index is None:
            device = self.tokens.device
            starts = torch.tensor(self.starts, device=device)[:, None]
            ahead = torch.arange(self.tokens.shape[1], device=device)
            places = starts + ahead
            if self.ragged:
                counts = torch.tensor(self.counts, device=device)[:, None]
                places.masked_fill_(ahead >= counts, self.limit - 1)
            self._index = (torch.tensor(self.slots, device=device)[:, None], places)
        return self._index

    def mask(self, dtype: torch.dtype, window: int | None = None, groups: int = 1) -> Tensor | None:
        """[B, 1, groups·T, L] additive, or None where everything is seen. Made once a pass."""
        key = (window, dtype, groups)
        if key not in self._masks:
            mask = self._additive(dtype, window) if groups == 1 else self.mask(dtype, window)
            self._masks[key] = mask if mask is None else mask.repeat(1, 1, groups, 1)
        return self._masks[key]

    def _additive(self, dtype: torch.dtype, window: int | None) -> Tensor | None:
        seen = self.seen(window)
        if seen is None:
            return None
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
            ~seen, -torch.inf
        )[:, None]

    def chunked(self, dtype: torch.dtype, chunk: int) -> Tensor:
        """`mask` of tokens that see the positions from the last multiple of `chunk` on."""
        key = ("chunk", chunk, dtype)
        if (mask := self._masks.get(key)) is None:
            own = self.positions[..., None] // chunk == self.key_positions()[:, None] // chunk
            hidden = ~(self.visible() & own)[:, None]
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._masks[key] = mask.masked_fill_(hidden, -torch.inf)
        return mask

    def seen(self, window: int | None = None) -> Tensor | None:
        """`visible`, or None where everything is. Made once a pass."""
        key = (window,)
        if key not in self._masks:
            single = len(self.slots) == 1 and self.ancestors.shape[-1] == 1
            everything = single and (window is None or self.length <= window)
            self._masks[key] = None if everything else self.visible(window).contiguous()
        return self._masks[key]

    def visible(self, window: int | None = None) -> Tensor:
        """[B, T, L] bool: token t sees cache position j (the last `window` positions only)."""
        if self.alone:
            seen = self._seen_alone()
        else:
            place, inside = self._places()
            index = place[:, None].expand(-1, self.tokens.shape[1], -1)
            before = (place < 0)[:, None]
            seen = (self.ancestors.gather(2, index.clamp(min=0)) & inside[:, None]) | before
        if window is not None:
            seen = seen & (self.positions[..., None] - self.key_positions()[:, None] < window)
        return seen

    def _seen_alone(self) -> Tensor:
        """`visible` of one row, whose tokens lie together: two operations instead of ten."""
        width, length = self.ancestors.shape[2], self.length
        first = self.starts[0] - width + self.tokens.shape[1]
        seen = self.ancestors.new_ones(1, self.tokens.shape[1], length)
        seen[:, :, first:] = self.ancestors[:, :, : length - first]
        return seen

    def passed(self, start: int, window: int | None) -> int:
        """How many of the first cells lie before the windows of a row that begins at `start`, in
        whole steps, as a GPU's attention wants its masks aligned."""
        if window is None:
            return 0
        earlier = self.ancestors.shape[-1] - self.tokens.shape[1]
        return max(0, start - earlier - window + 1) // _STEP * _STEP

    def key_positions(self) -> Tensor:
        """[B, L] the position of the token at each cache place: in the history the place itself,
        after it `earlier` and `positions` of the E + T tokens."""
        place, inside = self._places()
        positions = self.positions
        if self.earlier is not None:
            positions = torch.cat((self.earlier, positions), 1)
        columns = torch.arange(self.length, device=positions.device)
        return torch.where(inside, positions.gather(1, place.clamp(min=0)), columns)

    def _places(self) -> tuple[Tensor, Tensor]:
        """For each cache place [B, L]: the index of the one of the E + T tokens that stands there
        (negative in the history, the last index after them), and whether one does."""
        device, width = self.tokens.device, self.ancestors.shape[2]
        first = torch.tensor(self.starts, device=device)[:, None] - width + self.tokens.shape[1]
        place = torch.arange(self.length, device=device) - first
        return place.clamp(max=width - 1), (place >= 0) & (place < width)


def chain_feed(
    cache: KVCache, slots: list[int], tokens: Seq[Seq[int]], *, logits: bool = True
) -> Feed:
    """Append plain tokens, rows of different lengths; logits, if wanted, at each row's last one."""
    device = cache.device
    width = max(len(row) for row in tokens)
    padded = torch.tensor([[*row, *([0] * (width - len(row)))] for row in tokens], device=device)
    counts = [len(row) for row in tokens]
    cache.reserve(slots, counts)
    starts = [cache.lengths[slot] for slot in slots]
    begin = torch.tensor(starts, device=device)[:, None]
    ancestors = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    positions = (begin + torch.arange(width, device=device)).clamp_(max=cache.positions - 1)
    return Feed(
        padded,
        positions,
        ancestors.expand(len(slots), -1, -1),
        slots,
        starts,
        cache.max_length + 1,
        last=[count - 1 for count in counts],
        logits=logits,
        counts=counts,
    )


def tree_feed(cache: KVCache, slots: list[int], roots: Seq[int], trees: DraftTree) -> Feed:
    """Append a root and its tree to each row."""
    device = cache.device
    counts = [count + 1 for count in trees.counts]
    cache.reserve(slots, counts)
    starts = [cache.lengths[slot] for slot in slots]
    root = torch.tensor(roots, device=device)[:, None]
    begin = torch.tensor(starts, device=device)[:, None]
    positions = (begin + trees.depths).clamp_(max=cache.positions - 1)  # of padding nodes
    return Feed(
        torch.cat([root, trees.tokens], 1),
        positions,
        trees.ancestors,
        slots,
        starts,
        cache.max_length + 1,
        counts=counts,
    )


def token_feed(cache: KVCache, slots: list[int], tokens: Tensor) -> Feed:
    """Append one token to each row, from a device tensor [B]."""
    cache.reserve(slots, [1] * len(slots))
    starts = [cache.lengths[slot] for slot in slots]
    positions = torch.tensor(starts, device=tokens.device)[:, None].clamp_(max=cache.positions - 1)
    alone = torch.ones(1, 1, 1, dtype=torch.bool, device=tokens.device)
    return Feed(
        tokens[:, None],
        positions,
        alone.expand(len(slots), -1, -1),
        slots,
        starts,
        cache.max_length + 1,
    )


def frontier_feed(
    cache: KVCache, slots: list[int], tokens: Tensor, sees: Tensor, depths: Seq[int]
) -> Feed:
    """The next nodes of a growing tree: tokens [B, M] after the E nodes that were run before.

    The root is the first of these E and is committed already; the others stand after it. sees:
    [B, M, E + M] bool. depths: of all E + M nodes, one number for all rows.
    """
    device, width = tokens.device, tokens.shape[1]
    earlier = len(depths) - width
    cache.reserve(slots, [len(depths) - 1] * len(slots))
    roots = [cache.lengths[slot] - 1 for slot in slots]
    places = torch.tensor(roots, device=device)[:, None] + torch.tensor(depths, device=device)
    places.clamp_(max=cache.positions - 1)
    return Feed(
        tokens,
        places[:, earlier:],
        sees,
        slots,
        [root + earlier for root in roots],
        cache.max_length + 1,
        earlier=places[:, :earlier],
    )


def block_feed(
    cache: KVCache, slots: list[int], roots: Tensor, size: int, causal: bool = False
) -> Feed:
    """Append a block of `size` places to each row, which all attend to each other: the root [B, 1]
    and placeholders for the tokens after it. causal: each attends to those before it alone.

    A placeholder's token is the root's; only its position tells it apart.
    """
    cache.reserve(slots, [size] * len(slots))
    starts = [cache.lengths[slot] for slot in slots]
    ahead = torch.arange(size, device=roots.device)
    positions = torch.tensor(starts, device=roots.device)[:, None] + ahead
    visible = torch.ones(size, size, dtype=torch.bool, device=roots.device)
    return Feed(
        roots.expand(-1, size),
        positions,
        (visible.tril() if causal else visible).expand(len(slots), -1, -1),
        slots,
        starts,
        cache.max_length + 1,
    )


def scratch_feed(cache: KVCache, slots: list[int], tokens: Tensor, ahead: int) -> Feed:
    """Alternative tokens [B, M] for one place, after `ahead` tokens that aren't committed.

    Each sees the history, those tokens and itself. One alternative is the next token of a chain.
    """
    device, width = tokens.device, tokens.shape[1]
    cache.reserve(slots, [ahead + width] * len(slots))
    starts = [cache.lengths[slot] + ahead for slot in slots]
    places = torch.tensor(starts, device=device)[:, None].clamp_(max=cache.positions - 1)
    alone = torch.eye(width, dtype=torch.bool, device=device)
    return Feed(
        tokens,
        places.expand(-1, width),
        alone.expand(len(slots), -1, -1),
        slots,
        starts,
        cache.max_length + 1,
    )


def rerun_feed(cache: KVCache, slots: list[int], tokens: Tensor) -> Feed:
    """Run the last committed tokens [B, T] again, without attending to their committed keys and
    values.

    The new ones are written after the committed length, so the committed ones stay.
    """
    device, width = tokens.device, tokens.shape[1]
    cache.reserve(slots, [width] * len(slots))
    starts = [cache.lengths[slot] for slot in slots]
    first = torch.tensor(starts, device=device)[:, None] - width
    places = first + torch.arange(width, device=device)  # [B, T]
    causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    sees = torch.cat((torch.zeros_like(causal), causal), 1)  # [T, E + T], E = T
    return Feed(
        tokens,
        places,
        sees.expand(len(slots), -1, -1),
        slots,
        starts,
        cache.max_length + 1,
        earlier=places,
    )
