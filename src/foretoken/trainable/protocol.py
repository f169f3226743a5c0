"""What a drafter declares so that `foretoken train` and online learning can train it."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Lesson


@runtime_checkable
class Trainable(Protocol):
    """A drafter with weights to train; an `isinstance` check takes the drafter or its class.

    module: the class of these weights. Its `forward` is the training loss, its `hidden` names the
    layers of the target whose states it reads, and its `shape` is what a recipe may set. model: a
    checkpoint (folder, hub id or bundled name) or such a module; None by default.
    """

    module: ClassVar[type[Trained]]
    model: Any

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, N] the chance that a step accepts more than n drafted places, if its root stands
        at place t of the text; 0 or 1 where the text alone tells."""
        ...
