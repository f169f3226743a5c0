"""A training job: its settings, what it loads, its progress and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foretoken.engine.stats import AcceptanceStats
from foretoken.files import fingerprint
from foretoken.llm import LLM
from foretoken.models import gguf
from foretoken.models.load import find
from foretoken.models.model import CausalLM
from foretoken.spellings import Conversation
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Estimate


@dataclass
class Progress:
    """How far a training is. best: the highest estimate; stale: estimates since then."""

    step: int = 0
    best: float = 0.0
    stale: int = 0
    loss: float = math.nan

    def judge(self, estimate: float) -> bool:
        """Whether this estimate is a new best."""
        better = estimate > self.best or not self.best  # of nothing the newest is the best
        self.best, self.stale = max(estimate, self.best), 0 if better else self.stale + 1
        return better

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


Report = Callable[[Progress], None]
"""Called after every step."""
PRECISIONS = AUTO, BFLOAT16, FLOAT32 = "auto", "bfloat16", "float32"
"""Of the products of a training; auto: bfloat16 on GPUs that have it, else float32."""


@dataclass(frozen=True)
class Job:
    """One training: what `make` in `run.py` was called with, where its arguments are explained."""

    method: str
    target: str
    conversations: Seq[Conversation]
    recipe: Recipe
    out: Path
    source: str = "target"
    after: Seq[Path | str] = ()
    seed: int = 0
    every: float = 60.0
    keep_every: int | None = None
    log_with: Seq[str] = ()
    shard: bool = False
    shard_target: bool = False
    states: Path | None = None
    show: bool = True
    report: Report = lambda progress: None
    dtype: str = "auto"
    device: str = "auto"
    precision: str = "auto"
    trust_remote_code: bool = False

    @cached_property
    def weights(self) -> str:
        """What tells the target from others of its shape."""
        return fingerprint(*gguf.files_of(find(self.target)))


@dataclass(frozen=True)
class Setting:
    """A job with its target loaded and its texts written.

    llm: writes and serves, where the target isn't shared out. model: the same target, on a backend
    that gradients pass through. records: what is learned from, by source. held_out: what estimates
    are made on. digest: of all texts.
    """

    job: Job
    llm: LLM
    model: CausalLM
    facts: Facts
    records: dict[str, Records]
    held_out: Records
    digest: str


@dataclass(frozen=True)
class Outcome:
    """What a finished training reached: the estimate on held-out records, and what the engine
    counted when it served their prompts, nothing where the target was shared out."""

    progress: Progress
    expected: Estimate
    served: AcceptanceStats
