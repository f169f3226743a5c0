"""SPEED: the next tokens' first layers run together with this token's last layers.

Source: Hooper et al. 2023 (SPEED). The target runs a few layers several times, in cycles (a decoder
that shares its parameters). After the first cycle the final norm and the head guess the next token,
which enters the pipeline while this one is in its later cycles; the token after that follows a
cycle later. At every tick each token in flight takes one cycle, all by the same weights, which are
read once. If the token that is then sampled differs from the guess, the guess and all tokens after
it are discarded. Nothing is drafted: every token is the target's own, at any temperature.

On a target whose layers share no weights it is exact too but saves nothing; a stage is then a
layer.

Legend: B sequences, R tokens in flight, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from foretoken.access import Pass
from foretoken.errors import ForetokenError
from foretoken.models.feed import Feed, scratch_feed
from foretoken.models.target import ModelTarget
from foretoken.models.wrapped_target import WrappedTarget
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree


@dataclass
class InFlight:
    """A token in the pipeline. token: its id. feed: of this token alone. states: [1, 1, D] after
    `done` stages."""

    token: int
    feed: Feed
    states: Tensor
    done: int = 0


class Queue(NamedTuple):
    """A sequence's tokens in flight between two passes. tokens: guesses for those after its last
    one. slot, start: the cache slot and the place of the first of them. draft_passes: of the target
    by then; later ones may have overwritten their keys and values."""

    tokens: list[InFlight]
    slot: int
    start: int
    draft_passes: int


@dataclass
class Pipeline:
    """What the pipeline saved and cost. stages: how many a token passes.

    passes: of the target over the batch, as in plain decoding; ticks: of the pipeline; reads: of
    one stage's weights; runs: stages run, over all tokens. tokens: written; tried: those for which
    a guess was in flight; matched: those that had been guessed.
    """

    stages: int
    passes: int = 0
    ticks: int = 0
    reads: int = 0
    runs: int = 0
    tokens: int = 0
    tried: int = 0
    matched: int = 0

    @property
    def match_rate(self) -> float:
        """Share of the guesses in flight that the target then wrote."""
        return self.matched / self.tried if self.tried else 0.0

    @property
    def passes_per_token(self) -> float:
        """How often all weights are read for a token of each sequence; 1 in plain decoding."""
        return self.reads / (self.stages * self.passes) if self.passes else 1.0

    @property
    def extra_compute(self) -> float:
        """Stages run for discarded tokens, as a share of the stages that plain decoding runs."""
        return self.runs / (self.stages * self.tokens) - 1 if self.tokens else 0.0


@dataclass(frozen=True)
class Speed:
    """stage_layers: layers of a stage, None for the target's cycle; exit_stage: stages after which
    the next token is guessed."""

    stage_layers: int | None = None
    exit_stage: int = 1

    levels: ClassVar[str] = "ace"

    def __call__(self, target: ModelTarget) -> CyclicTarget:
        return CyclicTarget(target, self.stage_layers, self.exit_stage)


class CyclicTarget(WrappedTarget):
    """A target that runs guesses of the next tokens along with the present one. `pipeline` counts
    what that saved and cost."""

    def __init__(
        self, target: ModelTarget, stage_layers: int | None = None, exit_stage: int = 1
    ) -> None:
        """Raises `ForetokenError` for stages that don't divide the layers, or aren't there."""
        super().__init__(target)
        layers, cycle = target.layers, self.model.cycle
        default = cycle if cycle < layers else 1
        self._stage, self._exit = default if stage_layers is None else stage_layers, exit_stage
        if self._stage < 1 or layers % self._stage:
            raise ForetokenError(
                f"stage_layers is {self._stage} and this target has {layers} layers; it must "
                "divide them."
            )
        stages = layers // self._stage
        if not 1 <= exit_stage <= stages:
            raise ForetokenError(
                f"exit_stage is {exit_stage} and this target has {stages} stages; it must be at "
                "least 1 and no more than that."
            )
        self.pipeline = Pipeline(stages)

    def score_roots(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        """Run the roots through all stages, along with the guessed tokens after them."""
        model, feed = self.model, self.target.feed(sequences, trees)
        places = list(zip(feed.slots, feed.starts, strict=True))
        queues = [self._queue(s, *place) for s, place in zip(sequences, places, strict=True)]
        while any(queue[0].done < self.pipeline.stages for queue in queues):
            self._tick(sequences, queues)
        self.pipeline.passes += 1
        for sequence, queue, (slot, start) in zip(sequences, queues, places, strict=True):
            sequence.state[self] = Queue(queue[1:], slot, start + 1, self.target.draft_passes)
        return Pass(model.head(model.normed(torch.cat([queue[0].states for queue in queues]))))

    def _queue(self, sequence: Sequence, slot: int, start: int) -> list[InFlight]:
        """The sequence's last token, with those after it if it was in flight itself.

        Tokens in flight don't move to another slot with the sequence, and draft passes overwrite
        them.
        """
        queue: Queue | None = sequence.state.pop(self, None)
        self.pipeline.tokens += 1
        valid = slot, start, self.target.draft_passes
        if queue is not None and queue[1:] == valid and queue.tokens:
            self.pipeline.tried += 1
            if queue.tokens[0].token == sequence.tokens[-1]:
                self.pipeline.matched += 1
                return queue.tokens
        return [self._entering(slot, sequence.tokens[-1], 0)]

    def _entering(self, slot: int, token: int, ahead: int) -> InFlight:
        tokens = torch.tensor([[token]], device=self.device)
        feed = scratch_feed(self.cache, [slot], tokens, ahead)
        return InFlight(token, feed, self.model.embed(tokens))

    def _tick(self, sequences: Seq[Sequence], queues: Seq[list[InFlight]]) -> None:
        """Run a stage of every token in flight, then guess the next token where one may enter."""
        model, counts, stage = self.model, self.pipeline, self._stage
        in_flight = [token for queue in queues for token in queue if token.done < counts.stages]
        firsts = [token.done * stage for token in in_flight]
        feeds = [token.feed for token in in_flight]
        states = torch.cat([token.states for token in in_flight])
        states = model.run_together(states, feeds, firsts, stage, self.cache)
        for row, token in enumerate(in_flight):
            token.states, token.done = states[row : row + 1], token.done + 1
        counts.ticks, counts.runs = counts.ticks + 1, counts.runs + len(in_flight)
        counts.reads += len({first % model.cycle for first in firsts})
        rows = [row for row, queue in enumerate(queues) if self._guesses(sequences[row], queue)]
        if rows:
            last = torch.cat([queues[row][-1].states for row in rows])
            guessed = model.head(model.normed(last))[:, 0].argmax(-1).tolist()
            for row, token in zip(rows, guessed, strict=True):
                slot, ahead = queues[row][0].feed.slots[0], len(queues[row])
                queues[row].append(self._entering(slot, token, ahead))

    def _guesses(self, sequence: Sequence, queue: Seq[InFlight]) -> bool:
        """Whether to guess the next token now: not beyond the context's end, and not while the
        first token waits for other sequences."""
        within = len(sequence.tokens) + len(queue) <= self.max_length
        return queue[-1].done >= self._exit and within and len(queue) < 2 * self.pipeline.stages
