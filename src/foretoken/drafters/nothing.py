"""Draft nothing: plain autoregressive decoding, through the same loop."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access
from foretoken.draws import Draws
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, empty


@dataclass(eq=False)
class Nothing(BaseDrafter):
    """Every step is a plain decoding step."""

    @property
    def nodes(self) -> int:
        return 0

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return empty(len(sequences), self._device)
