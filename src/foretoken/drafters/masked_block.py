"""An encoder–decoder whose masks are filled in one pass drafts a block.

Source: Xia et al. 2023 (SpecDec), section 3.1: k masks after the text, which see it, the source
and each other, predict the next k tokens independently. The checkpoint is an encoder–decoder's
folder with `foretoken_block` in its config.json: {"mask_token_id": id, "size": k}. The text before
the masks is read causally, so that it is read once; in the paper it sees the masks too. The paper's
heads have attention queries of their own for each place; here all masks are one token, and their
positions tell them apart. Its own relaxed acceptance is the rule `top_beta`.

Legend: B rows, T tokens of the pass, k masks, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import AllAtOnce, ChainDrafter
from foretoken.drafters.shared.depth import draft_depth
from foretoken.errors import ForetokenError, shown
from foretoken.errors.values import check_range
from foretoken.files import read_json
from foretoken.length import LengthRule, schedule
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.feed import chain_feed
from foretoken.models.load import find
from foretoken.models.model import CausalLM
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES

_FIELD = "foretoken_block"


class MaskedModel(AllAtOnce, DraftModel):
    """A `ChainModel`: the encoder–decoder, with `size` masks after the text."""

    def __init__(self, model: Any, access: Access, mask: int, size: int) -> None:
        """Raises `ForetokenError` where the target is no encoder–decoder of its vocabulary."""
        super().__init__(model, access, size)
        self._mask, self._size = mask, size

    def room(self, sequence: Sequence) -> int:
        """As many tokens as there are masks, and no more than the context holds."""
        return min(super().room(sequence), self._size)

    def ahead(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, k, V] logits of the masks after each text, which aren't kept."""
        slots, missing = self._following(sequences)
        masks = [self._mask] * self._size
        feed = chain_feed(self._cache, slots, [[*tokens, *masks] for tokens in missing])
        first = torch.tensor([len(tokens) for tokens in missing], device=self.device)[:, None]
        number = torch.arange(feed.tokens.shape[1], device=self.device) - first  # [B, T]
        block = (number >= 0) & (number < self._size)
        feed.ancestors = feed.ancestors | (block[:, :, None] & block[:, None])
        feed.last = None
        logits = self._run(feed)
        self._keep(slots, missing)
        where = first + torch.arange(self._size, device=self.device)
        return logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1]))


@dataclass(eq=False)
class MaskedBlock(ChainDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: draft length,
    at most, and by default, as many as the checkpoint was trained to fill."""

    model: Any = None
    num_speculative_tokens: int | None = None

    wants = Wants("a")
    follows = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        if not isinstance(self.model, (str, Path)):
            raise ForetokenError(
                "This drafter fills masks by an encoder–decoder that was trained to; name its "
                'folder, e.g. {"method": "masked_block", "model": "my-block"}.'
            )
        self.length: LengthRule = schedule("constant", self.num_speculative_tokens or 1, {})

    def bind(self, access: Access) -> None:
        mask, size = read_block(find(self.model))
        if not access.opening:
            raise ForetokenError(
                "This drafter serves encoder–decoders, and the target is a decoder-only model; use "
                "method 'specdec'."
            )
        if not 0 <= mask < access.vocab_size:
            raise ForetokenError(
                f"{self.model} has the mask {mask} and the target's vocabulary {access.vocab_size} "
                "tokens; use a drafter of the target's tokenizer."
            )
        count = draft_depth(self.num_speculative_tokens, size, f"the checkpoint fills {size} masks")
        self.length = schedule("constant", count, {})
        self._lm: MaskedModel = MaskedModel(self.model, access, mask, size)

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)


def read_block(folder: Path) -> tuple[int, int]:
    """The mask's id and how many masks are filled. Raises `ForetokenError` for a folder that
    doesn't say so."""
    given = read_json(folder / "config.json", "a model's configuration").get(_FIELD)
    if isinstance(given, dict):
        mask, size = given.get("mask_token_id"), given.get("size")
        if type(mask) is int and type(size) is int and 1 <= size <= MOST_NODES:
            return mask, size
    raise ForetokenError(
        f"{folder} isn't a block drafter: {_FIELD} in its config.json is {shown(given)} and must "
        'be like {"mask_token_id": 2, "size": 8}.'
    )
