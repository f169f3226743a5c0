"""SPEED: the next tokens run through the first layers together with this one's last layers.

Source: Hooper et al. 2023 (SPEED). The target's layers are a few, run through several times in
cycles (a decoder that shares its parameters). After the first cycle the final norm and the head
guess the next token, which enters the pipeline while this one is in its later cycles; its own
successor follows a cycle later. At every tick each token on its way takes one cycle, all by the
same weights, which are read once. Once a token has left the pipeline and the one after it was
guessed otherwise than sampled, all after it are thrown away. Nothing is drafted: every token is the
target's own, at any temperature.

On a target whose layers share nothing it is exact too and saves nothing; a stage is a layer there.

Legend: B sequences, R tokens on their way, D width.
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
class Moving:
    """A token on its way. token: its id. feed: of it alone. states: [1, 1, D] after `done`
    stages."""

    token: int
    feed: Feed
    states: Tensor
    done: int = 0


class Queue(NamedTuple):
    """A sequence's tokens on their way between two passes. tokens: those after its last one. slot,
    start: the cache slot and the place of the first of them, void if there were `draft_passes`
    since."""

    tokens: list[Moving]
    slot: int
    start: int
    draft_passes: int


@dataclass
class Pipeline:
    """What was saved and spent. stages: that a token passes.

    passes: of the target, as plain decoding counts them, for the batch; ticks: of the pipeline;
    reads: of a stage's weights; runs: stages run, of all tokens. tokens: written; tried: those for
    which one was on its way; matched: those that it was.
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
        """Share of the tokens on their way that the target wrote."""
        return self.matched / self.tried if self.tried else 0.0

    @property
    def passes_per_token(self) -> float:
        """Times that all weights are read for a token (of each sequence); plain decoding has 1."""
        return self.reads / (self.stages * self.passes) if self.passes else 1.0

    @property
    def extra_compute(self) -> float:
        """Stages run for tokens that came to nothing, as a share of plain decoding's."""
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
    """A target that runs tokens to come along with the present one. `pipeline` counts what came of
    it."""

    def __init__(
        self, target: ModelTarget, stage_layers: int | None = None, exit_stage: int = 1
    ) -> None:
        """Raises `ForetokenError` for stages that don't divide the layers, or aren't there."""
        super().__init__(target)
        layers, cycle = target.layers, self.model.cycle
        own = cycle if cycle < layers else 1
        self._stage, self._exit = own if stage_layers is None else stage_layers, exit_stage
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
        """The roots' states after all stages, while the tokens after them are taken along."""
        model, feed = self.model, self.target.feed(sequences, trees)
        places = list(zip(feed.slots, feed.starts, strict=True))
        queues = [self._queue(s, *place) for s, place in zip(sequences, places, strict=True)]
        while any(queue[0].done < self.pipeline.stages for queue in queues):
            self._tick(sequences, queues)
        self.pipeline.passes += 1
        for sequence, queue, (slot, start) in zip(sequences, queues, places, strict=True):
            sequence.state[self] = Queue(queue[1:], slot, start + 1, self.target.draft_passes)
        return Pass(model.head(model.normed(torch.cat([queue[0].states for queue in queues]))))

    def _queue(self, sequence: Sequence, slot: int, start: int) -> list[Moving]:
        """The sequence's last token, with those after it if it was on its way itself.

        Tokens on their way don't move to another slot with the sequence, and draft passes overwrite
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

    def _entering(self, slot: int, token: int, ahead: int) -> Moving:
        tokens = torch.tensor([[token]], device=self.device)
        feed = scratch_feed(self.cache, [slot], tokens, ahead)
        return Moving(token, feed, self.model.embed(tokens))

    def _tick(self, sequences: Seq[Sequence], queues: Seq[list[Moving]]) -> None:
        """Every token on its way takes a stage; those after which one can be guessed get it."""
        model, counts, stage = self.model, self.pipeline, self._stage
        moving = [token for queue in queues for token in queue if token.done < counts.stages]
        firsts = [token.done * stage for token in moving]
        feeds = [token.feed for token in moving]
        states = torch.cat([token.states for token in moving])
        states = model.run_together(states, feeds, firsts, stage, self.cache)
        for row, token in enumerate(moving):
            token.states, token.done = states[row : row + 1], token.done + 1
        counts.ticks, counts.runs = counts.ticks + 1, counts.runs + len(moving)
        counts.reads += len({first % model.cycle for first in firsts})
        rows = [row for row, queue in enumerate(queues) if self._guesses(sequences[row], queue)]
        if rows:
            last = torch.cat([queues[row][-1].states for row in rows])
            guessed = model.head(model.normed(last))[:, 0].argmax(-1).tolist()
            for row, token in zip(rows, guessed, strict=True):
                slot, ahead = queues[row][0].feed.slots[0], len(queues[row])
                queues[row].append(self._entering(slot, token, ahead))

    def _guesses(self, sequence: Sequence, queue: Seq[Moving]) -> bool:
        """Whether the next token is to be guessed now: never after the context's end, and not
        while the first one is waiting for other sequences."""
        within = len(sequence.tokens) + len(queue) <= self.max_length
        return queue[-1].done >= self._exit and within and len(queue) < 2 * self.pipeline.stages
