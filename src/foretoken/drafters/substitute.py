"""A copy of the target with fewer bits a weight drafts for it, on the target's own cache.

Source: Wang et al. 2025 (SubSpec), where layers that don't fit into a GPU's memory have quantised
substitutes there, which draft with the target's keys and values. Here all layers have one and the
target stays where it is: what is saved is the reading of weights. The copy is made when the model
is loaded (`models/requantised.py`). It reads the keys and values that the target computed, writes
its own after them, and verification overwrites those, so nothing is kept twice.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.models.drafting.self_model import SubstituteModel
from foretoken.models.model import CausalLM
from foretoken.models.requantised import requantised


@dataclass(eq=False)
class Substitute(ScheduledChain):
    """checkpoint: what is copied, None for the target; draft_backend: its bits, "q4" to "q8";
    draft_vocab_size: how many tokens the copy may draft, the first ids and the ends of text;
    num_speculative_tokens: draft length; num_assistant_tokens_schedule,
    assistant_confidence_threshold: when a draft ends before it."""

    checkpoint: Any = None
    draft_backend: str = "q4"
    draft_vocab_size: int | None = None
    num_speculative_tokens: int = 4

    wants = Wants("aef")
    pass_per_token = True

    def __post_init__(self) -> None:
        self.length = self.rule(self.num_speculative_tokens)
        self.pass_per_token = not self.length.stops_before  # else one more ends a draft

    def bind(self, access: Access) -> None:
        source = access.source if self.checkpoint is None else self.checkpoint
        self._lm: SubstituteModel = SubstituteModel(
            access, requantised(source, self.draft_backend, access, self.draft_vocab_size)
        )

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)
