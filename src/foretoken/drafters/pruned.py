"""A pruned copy of the target drafts for it: whole heads and feed-forward columns are left out.

The copy is made when the model is loaded, without training, by the norm of the weights
(`models/prune.py`; the criterion is Li et al. 2017's for filters, magnitude by structure). From
then on it is a small language model like any other, with its own cache.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.errors import ForetokenError
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.model import CausalLM
from foretoken.models.prune import prune


@dataclass(eq=False)
class Pruned(ScheduledChain):
    """checkpoint: what is pruned, None for the target; kept_heads, kept_columns: shares of its
    key/value heads, with their query heads, and of its feed-forward columns that stay;
    num_speculative_tokens: draft length; num_assistant_tokens_schedule,
    assistant_confidence_threshold: when a draft ends before it."""

    checkpoint: Any = None
    kept_heads: float = 1.0
    kept_columns: float = 0.75
    num_speculative_tokens: int = 4

    wants = Wants("a")
    pass_per_token = True

    def __post_init__(self) -> None:
        if not (0 < self.kept_heads <= 1 and 0 < self.kept_columns <= 1):
            raise ForetokenError(
                f"kept_heads is {self.kept_heads} and kept_columns {self.kept_columns}; both are "
                "shares above 0 and at most 1."
            )
        self.length = self.rule(self.num_speculative_tokens)
        self.pass_per_token = not self.length.stops_before  # else one more ends a draft

    def bind(self, access: Access) -> None:
        source = access.source if self.checkpoint is None else self.checkpoint
        copy = prune(source, self.kept_heads, self.kept_columns, access)
        self._lm: DraftModel = DraftModel(copy, access, self.nodes + 1)

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)
