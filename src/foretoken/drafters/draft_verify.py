"""Draft & Verify: the target drafts for itself, with some of its sub-layers left out.

Source: Zhang et al. 2024 (Draft & Verify, self-speculative decoding), sections 3.2 to 3.4. The set
is found once for a model, by Bayesian optimisation (`foretoken layers`, `tune/layers.py`); a draft
ends by the adaptive rule (`length.Adaptive`). The defaults are its code's. Departures: without a
set every second layer is left out, as SWIFT starts; the threshold starts from 0.8 when sampling
too, where their code has 0.5; drafting ends by the likeliest token's probability, never by that of
the token that was drawn, and in the distribution that is drawn from, where their code reads the
whole softmax at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.length import LengthRule
from foretoken.models.drafting.self_model import SelfModel
from foretoken.models.layer_set import kept, skipped


@dataclass(eq=False)
class DraftVerify(ScheduledChain):
    """skip: sub-layers left out, as numbers or a file of `foretoken layers`, or None for every
    second layer; num_speculative_tokens: longest draft; num_assistant_tokens_schedule,
    assistant_confidence_threshold: when a draft ends before it."""

    skip: str | Path | Seq[int] | None = None
    num_speculative_tokens: int = 8
    num_assistant_tokens_schedule: str | LengthRule = field(default="adaptive", kw_only=True)

    wants = Wants("ace")

    def __post_init__(self) -> None:
        self.length = self.rule(self.num_speculative_tokens)

    def bind(self, access: Access) -> None:
        left_out = skipped(self.skip, access)
        self._lm = SelfModel(access, kept(left_out, access.layers))
