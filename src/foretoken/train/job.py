"""A training job: its settings, what it loads, its progress and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import KW_ONLY, dataclass
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
    """One training.

    Attributes:
        method: a trainable drafter's, or "medusa2", which leaves a new target in `out`/target and
            its heads in `out`/heads.
        target: folder, hub id or bundled name.
        conversations: the prompts, or the texts, to learn from.
        recipe: shape, objective, steps and what else decides how it learns.
        out: the folder for checkpoint and card.
        source: "target" (what it writes to the prompts), "fixed" (the file's own texts), "drafter"
            (what a small model writes itself while it learns), or several with "+" between them.
        after: checkpoints of small models that this one is to be served together with; it learns
            what they miss.
        seed: of the drafter's first weights, of the order of texts, and of all that is drawn.
        every: seconds between two states to resume from, which are kept in `out` too.
        keep_every: steps between two checkpoints that stay, in `out`/checkpoints.
        log_with: "tensorboard" or "wandb", beside `out`/metrics.jsonl.
        shard: the drafter's weights, gradients and optimiser's numbers are shared out over the
            processes.
        shard_target: the target's layers are, it is run by transformers' code, and nothing is
            served at the end.
        states: a folder for the target's states along the texts, which are then computed once.
        show: progress bars.
        report: called after each step.
        dtype: of the target's weights; "auto" is the checkpoint's own, and float32 on a CPU.
        device: "auto" is a GPU where there is one.
        precision: of the products, one of `PRECISIONS`.
        trust_remote_code: whether code that comes with the target may run.
    """

    method: str
    target: str
    conversations: Seq[Conversation]
    recipe: Recipe
    out: Path
    _: KW_ONLY
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

    @property
    def name(self) -> str:
        """The folder's, also where it is given as "."."""
        return self.out.resolve().name

    @cached_property
    def weights(self) -> str:
        """A fingerprint of the target's weights."""
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
