"""The base of drafters whose trained module predicts a chain's places in one pass.

Legend: B rows, T places of a text, R places with a block after them, C predicted places, D width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.drafters.shared.depth import draft_depth
from foretoken.trainable.appended import block_acceptance
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Lesson, drawn_acceptance


class PlacedModule(Protocol):
    """A module that predicts what follows a text at the text's end and at tokens put after it."""

    @property
    def places(self) -> int:
        """How many it predicts, C."""
        ...

    def ahead(self, lesson: Lesson, places: Tensor) -> Tensor:
        """[B, R, C, D] the states that predict what follows the places [B, R]."""
        ...

    def head_logits(self, states: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., V] of such states [..., D]; head: the target's."""
        ...


@dataclass(eq=False)
class PlacedChain(ScheduledChain):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: draft length,
    at most, and by default, as many places as the checkpoint predicts. A drafter names the class of
    its `module`, which is a `PlacedModule`."""

    model: Any = None
    num_speculative_tokens: int | None = None

    module: ClassVar[type[Trained]]

    def __post_init__(self) -> None:
        self.module.check_source(self.model)
        self.length = self.rule(self.num_speculative_tokens or 1)  # a wrong name fails here

    def depth(self, module: PlacedModule) -> int:
        """How many of the module's places are drafted."""
        most = module.places
        return draft_depth(
            self.num_speculative_tokens, most, f"the checkpoint predicts {most} places"
        )

    def acceptance(self, module: PlacedModule, lesson: Lesson) -> Tensor:
        """[B, T, C] the chance that a step whose root is there accepts more than n places."""
        most = self.depth(module)
        chances = block_acceptance(
            lesson,
            lesson.max_nodes >= 0,
            lambda at: module.ahead(lesson, at)[:, :, :most],
            1,
            most,
            lambda states: module.head_logits(states, lesson.head),
        )
        return drawn_acceptance(chances, lesson.max_nodes)
