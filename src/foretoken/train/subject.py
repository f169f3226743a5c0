"""The protocol of what is trained: a drafter for its target, or a target and its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from torch import Tensor

from foretoken.engine.stats import AcceptanceStats
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job, Outcome, Setting
from foretoken.train.loop import Acceptance
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Lesson


class Subject(Protocol):
    """What is trained: a drafter for its target, or a target and its heads together. folders: those
    in the training's own that it writes a checkpoint to, where it isn't this one."""

    folders: ClassVar[tuple[str, ...]]

    def __init__(self, setting: Setting) -> None: ...

    @property
    def identity(self) -> dict[str, Any]:
        """This kind's entries in training.json, in addition to those of every training."""
        ...

    @property
    def extra(self) -> dict[str, Any]:
        """More entries for the checkpoint's config.json."""
        ...

    @property
    def weigh(self) -> Callable[[Lesson], Tensor] | None:
        """Changes how much each token of a lesson counts, [B, T]."""
        ...

    @classmethod
    def check(cls, job: Job) -> None:
        """Raises `ForetokenError` for a job that can't be done, before anything is loaded."""
        ...

    def new_module(self) -> Trained:
        """What is to be trained, on the CPU, before it has copied anything from the target."""
        ...

    def acceptance(self, module: Trained) -> Acceptance:
        """The estimate of what a drafter with this module accepts."""
        ...

    def serve(self, module: Trained) -> AcceptanceStats:
        """What the saved checkpoint accepts on the held-out prompts."""
        ...

    def write_card(self, module: Trained, frozen: FrozenTarget, outcome: Outcome) -> None:
        """README.md of the checkpoint's folder."""
        ...
