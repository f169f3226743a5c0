"""`online`: a drafter learns from its mistakes while it serves.

Source: Liu et al. 2024 (Online Speculative Decoding), section 3 and algorithm 1. Places where a
draft was rejected are stored with the target's distribution there, and every `every` requests the
drafter takes one step of distillation on them while decoding continues (`drafters.shared.learner`).
Departures: a step learns from the mistakes since the last one began, at most `buffer_mib`; the
target's distribution is stored as a hidden state; places that were drafted right count too, with a
lower weight, so that the drafter doesn't unlearn them.

All drafts are verified, whatever version made them, so learning changes no text's distribution,
only the speed. Keys and values of running requests stay those of the version that computed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import ClassVar

from foretoken.access import Access, Wants
from foretoken.drafters.shared.learner import Learner, learnable
from foretoken.drafters.shared.mistakes import Recording
from foretoken.drafters.shared.salt import shares
from foretoken.drafters.shared.wrapper import Wrapper
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.losses import Objective
from foretoken.tree import DraftTree


@dataclass(eq=False)
class Online(Wrapper):
    """drafters: the drafter that learns, alone in a list. every: requests between two training
    steps; lr: learning rate; objective: divergences and their weights; known: weight of a token
    that was drafted right (wrong ones weigh 1); window: tokens of a text that a training step
    reads, and of all texts that it reads at a time; buffer_mib: most mistakes stored, in MiB;
    versions: how many `learner.rollback` can restore in addition to the first. With four more
    copies of the weights (the one that learns, its optimiser's two, and the next to serve) these
    bound the memory."""

    every: int = 8
    lr: float = 1e-4
    objective: Mapping[str, float] = field(default_factory=lambda: {"kl_div": 1.0})
    known: float = 0.3
    window: int = 512
    buffer_mib: float = 64.0
    versions: int = 4

    least: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"every": self.every, "window": self.window, "versions": self.versions}
        for name, value in {**sizes, "lr": self.lr, "buffer_mib": self.buffer_mib}.items():
            if value <= 0:
                raise ForetokenError(f"{name} is {value}; it must be above 0.")
        if not 0 <= self.known <= 1:
            raise ForetokenError(f"known is {self.known}; it must be between 0 and 1.")
        self._objective = Objective(self.objective)
        self._part = self.drafters[0]
        self.wants = Wants("".join(sorted({*self.wants.levels, "c"})), self._hidden())

    def bind(self, access: Access) -> None:
        self._part, weights = learnable(self._part, access)
        self.drafters = [self._part]
        super().bind(access)
        self.shared = self.learner = Learner(
            weights,
            access,
            every=self.every,
            lr=self.lr,
            objective=self._objective,
            right_weight=self.known,
            window=self.window,
            most_bytes=round(self.buffer_mib * 2**20),
            versions=self.versions,
        )

    def _hidden(self) -> tuple[int, ...]:
        return tuple(sorted({*super()._hidden(), -1}))

    def _last(self) -> None:
        """It records the whole text."""

    def begin(self, sequence: Sequence) -> None:
        super().begin(sequence)
        sequence.state[self] = Recording(self.window)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        self.learner.turn()
        self.chose = [f"online {self.learner.version}"] * len(sequences)
        return self._part.draft(sequences, budgets, draws)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._part.observe(sequences, steps)
        for sequence, step in zip(sequences, steps, strict=True):
            sequence.state[self].add(step)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        super().fork(sequence, copy)
        copy.state[self] = sequence.state[self].copy(copy.prompt_length - 1)

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in filter(shares, sequences):
            recording: Recording | None = sequence.state.pop(self, None)
            if recording is None or not sequence.output:  # it failed, or starts again
                continue
            self.learner.note(recording.example(sequence.tokens, sequence.prompt_length))
