"""Early exit: the target drafts for itself with its first layers alone, then norm and head.

Source: Elhoushi et al. 2024 (LayerSkip), section 3.3, which trains models so that this drafts well;
their checkpoints are ordinary ones and need nothing special. Defaults are its code's for a 7B
model: a quarter of the layers, six tokens. The keys and values of these layers are the target's
own, shared in both directions. Departure: verification runs all layers for the drafted tokens too;
theirs takes up the first layers' states from the draft, which changes the arithmetic, not the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.errors import ForetokenError
from foretoken.models.drafting.self_model import SelfModel


@dataclass(eq=False)
class EarlyExit(ScheduledChain):
    """exit_layer: how many layers draft, None for a quarter; num_speculative_tokens: draft length;
    num_assistant_tokens_schedule, assistant_confidence_threshold: when a draft ends before it."""

    exit_layer: int | None = None
    num_speculative_tokens: int = 6

    wants = Wants("ace")

    def __post_init__(self) -> None:
        self.length = self.rule(self.num_speculative_tokens)

    def bind(self, access: Access) -> None:
        layer = max(1, access.layers // 4) if self.exit_layer is None else self.exit_layer
        if not 1 <= layer < access.layers:
            raise ForetokenError(
                f"exit_layer is {layer} and this target has {access.layers} layers; it must be at "
                "least 1 and less than that."
            )
        self._lm = SelfModel(access, range(2 * layer))
