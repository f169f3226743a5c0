"""SPEED: tokens to come run through the first layers beside the present one's last layers.

Source: Hooper et al. 2023 (SPEED). The target's layers are a few, run through several times in
cycles (a decoder that shares its parameters). After the first cycle the final norm and the head
guess the next token, which enters the pipeline while this one goes on; its own successor follows a
cycle later. At every tick each token on its way takes one cycle, all by the same weights, which are
read once. When the target's word on a token is there and the one after it was guessed otherwise,
all after it are thrown away. Nothing is drafted: every token is the target's own, at any
temperature.

On a target whose layers share nothing it is exact too and saves nothing; a stage is a layer there.

Legend: B sequences, R tokens on their way, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretoken.access import Access, Pass, Wants
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, empty


@dataclass
class OnItsWay:
    """token: its id. feed: of it alone. states: [1, 1, D] after `done` stages."""

    token: int
    feed: Any
    states: Tensor
    done: int = 0


class Held(NamedTuple):
    """A sequence's pipeline between two passes. tokens: those after its last one. slot, start: the
    cache row and the place of the first of them, all void once `scratches` has grown."""

    tokens: list[OnItsWay]
    slot: int
    start: int
    scratches: int


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


@dataclass(eq=False)
class Speed(BaseDrafter):
    """stage_layers: layers of a stage, None for the target's cycle; exit_stage: stages after which
    the next token is guessed. `pipeline` counts what came of it."""

    stage_layers: int | None = None
    exit_stage: int = 1

    wants = Wants("ace")

    def bind(self, access: Access) -> None:
        own = access.cycle if access.cycle < access.layers else 1
        self._stage = own if self.stage_layers is None else self.stage_layers
        if self._stage < 1 or access.layers % self._stage:
            raise ForetokenError(
                f"stage_layers is {self._stage} and this target has {access.layers} layers; it "
                "must divide them."
            )
        stages = access.layers // self._stage
        if not 1 <= self.exit_stage <= stages:
            raise ForetokenError(
                f"exit_stage is {self.exit_stage} and this target has {stages} stages; it must be "
                "at least 1 and no more than that."
            )
        self.pipeline = Pipeline(stages)
        self._access = access
        access.score_by(self._score)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return empty(len(sequences), self._access.device)

    def _score(self, sequences: Seq[Sequence], feed: Any) -> Pass:
        """The roots' states after all stages, those of others being taken along."""
        access = self._access
        if feed.tokens.shape[1] > 1:  # another drafter's nodes are to be scored too
            return access.whole(sequences, feed)
        places = list(zip(feed.slots, feed.starts, strict=True))
        pipes = [self._pipe(s, *place) for s, place in zip(sequences, places, strict=True)]
        while any(pipe[0].done < self.pipeline.stages for pipe in pipes):
            self._tick(sequences, pipes)
        self.pipeline.passes += 1
        for sequence, pipe, (slot, start) in zip(sequences, pipes, places, strict=True):
            sequence.state[self] = Held(pipe[1:], slot, start + 1, access.scratches)
        return Pass(access.head(access.norm(torch.cat([pipe[0].states for pipe in pipes]))))

    def _pipe(self, sequence: Sequence, slot: int, start: int) -> list[OnItsWay]:
        """The sequence's last token, with those after it if it was on its way itself.

        What is on its way doesn't move to another slot with the sequence, and another drafter that
        runs a part of the target overwrites it.
        """
        held: Held | None = sequence.state.pop(self, None)
        self.pipeline.tokens += 1
        if held is not None and held[1:] == (slot, start, self._access.scratches) and held.tokens:
            self.pipeline.tried += 1
            if held.tokens[0].token == sequence.tokens[-1]:
                self.pipeline.matched += 1
                return held.tokens
        return [self._entering(sequence, sequence.tokens[-1], 0)]

    def _entering(self, sequence: Sequence, token: int, ahead: int) -> OnItsWay:
        tokens = torch.tensor([[token]], device=self._access.device)
        feed = self._access.scratch_next([sequence], tokens, ahead)
        return OnItsWay(token, feed, self._access.embed(tokens))

    def _tick(self, sequences: Seq[Sequence], pipes: Seq[list[OnItsWay]]) -> None:
        """Every token on its way takes a stage; those after which one can be guessed get it."""
        access, counts, stage = self._access, self.pipeline, self._stage
        moving = [token for pipe in pipes for token in pipe if token.done < counts.stages]
        firsts = [token.done * stage for token in moving]
        states = torch.cat([token.states for token in moving])
        states = access.run_beside(states, [token.feed for token in moving], firsts, stage)
        for row, token in enumerate(moving):
            token.states, token.done = states[row : row + 1], token.done + 1
        counts.ticks, counts.runs = counts.ticks + 1, counts.runs + len(moving)
        counts.reads += len({first % access.cycle for first in firsts})
        rows = [row for row, pipe in enumerate(pipes) if self._guesses(sequences[row], pipe)]
        if rows:
            last = torch.cat([pipes[row][-1].states for row in rows])
            guessed = access.head(access.norm(last))[:, 0].argmax(-1).tolist()
            for row, token in zip(rows, guessed, strict=True):
                pipes[row].append(self._entering(sequences[row], token, len(pipes[row])))

    def _guesses(self, sequence: Sequence, pipe: Seq[OnItsWay]) -> bool:
        """Whether the next token is to be guessed now: never after the context's end, and not
        while the first one is waiting for other sequences."""
        within = len(sequence.tokens) + len(pipe) <= self._access.max_length
        return pipe[-1].done >= self.exit_stage and within and len(pipe) < 2 * self.pipeline.stages
