"""Predictive Pipelined Decoding: the next token's lower layers run during this token's upper ones.

Source: Yang et al. 2024 (Predictive Pipelined Decoding), section 3. After an intermediate layer
the final norm and the head guess the k likeliest next tokens. While one worker takes the token
through the upper layers, another runs the lower layers for the guesses. If the token that is then
sampled is among them, its lower layers are done already; if not, they are run. Nothing is drafted:
every token is the target's own, at any temperature.

Two workers that share one memory bus, or one GPU, gain nothing, so `Pipelining` works out what
independent devices would gain. Departure: all guesses go through the lower layers in one
pass, where the paper has a process for each.

Legend: B sequences, k guesses, D width, V vocabulary, L layers, l the layer that guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


class Guesses(NamedTuple):
    """The guesses for a sequence's next token, with their states.

    tokens: the k guesses. states: [k, D] after the lower layers. slot, start: the cache slot, and
    the place after which the guesses' keys and values stand. draft_passes: of the target by then;
    later ones may have overwritten them.
    """

    tokens: list[int]
    states: Tensor
    slot: int
    start: int
    draft_passes: int


@dataclass
class Pipelining:
    """What pipelining saved and cost. layers: L; layer: l; guesses: k.

    tokens: written. tried: those for which there were guesses. matched: those that had been
    guessed.
    """

    layers: int
    layer: int
    guesses: int
    tokens: int = 0
    tried: int = 0
    matched: int = 0

    @property
    def match_rate(self) -> float:
        """Share of the tokens with guesses that had been guessed."""
        return self.matched / self.tried if self.tried else 0.0

    @property
    def extra_compute(self) -> float:
        """Layers run for wrong guesses, as a share of the layers that plain decoding runs."""
        if not self.tokens:
            return 0.0
        wasted = self.guesses * self.tokens - self.matched
        return wasted * self.layer / (self.layers * self.tokens)

    @property
    def predicted_latency(self) -> float:
        """Time for a token as a share of plain decoding's, if each worker had its own device, on
        which k tokens take as long as one. A match takes as long as the longer part of the
        layers, a miss as long as both."""
        if not self.tokens:
            return 1.0
        longer = max(self.layer, self.layers - self.layer) / self.layers
        return 1 - (1 - longer) * self.matched / self.tokens


@dataclass(frozen=True)
class PPD:
    """num_guesses: tokens guessed for each place (k); guess_layer: the layer after which they are
    guessed (l), None for the middle."""

    num_guesses: int = 3
    guess_layer: int | None = None

    levels: ClassVar[str] = "ace"

    def __post_init__(self) -> None:
        if not 1 <= self.num_guesses <= 32:
            raise ForetokenError(f"num_guesses is {self.num_guesses}; it must be 1 to 32.")

    def __call__(self, target: ModelTarget) -> PipelinedTarget:
        return PipelinedTarget(target, self.num_guesses, self.guess_layer)


class PipelinedTarget(WrappedTarget):
    """A target whose passes also run the lower layers for guesses of the next token. `pipelining`
    counts what that saved and cost."""

    def __init__(
        self, target: ModelTarget, num_guesses: int = 3, guess_layer: int | None = None
    ) -> None:
        """Raises `ForetokenError` for a layer that isn't there."""
        super().__init__(target)
        layers = target.layers
        layer = layers // 2 if guess_layer is None else guess_layer
        if not 1 <= layer < layers:
            raise ForetokenError(
                f"guess_layer is {layer} and this target has {layers} layers; it must be at least "
                "1 and less than that."
            )
        self.pipelining = Pipelining(layers, layer, min(num_guesses, target.vocab_size))
        self._lower, self._upper = range(2 * layer), range(2 * layer, 2 * layers)
        self._meanwhile = _Stream(target.device) if target.device.type == "cuda" else _Thread()

    def score_roots(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        """The roots' pass: the lower layers, then the upper ones while the guesses run the lower
        ones."""
        model, feed = self.model, self.target.feed(sequences, trees)
        lower = self._lower_states(sequences, feed)
        best = model.head(model.normed(lower))[:, 0].topk(self.pipelining.guesses).indices
        ahead = scratch_feed(self.cache, feed.slots, best, 1)

        def guess() -> Tensor:
            return model.run(model.embed(best), ahead, self.cache, self._lower)

        with self._meanwhile(guess) as guessed:
            states = model.run(lower, feed, self.cache, self._upper)
            logits = model.head(model.normed(states))
        for row, (sequence, tokens) in enumerate(zip(sequences, best.tolist(), strict=True)):
            place = feed.slots[row], feed.starts[row], self.target.draft_passes
            sequence.state[self] = Guesses(tokens, guessed()[row], *place)
        return Pass(logits)

    def _lower_states(self, sequences: Seq[Sequence], feed: Feed) -> Tensor:
        """[B, 1, D] the roots' states after the lower layers, guessed or run."""
        guessed = [
            self._guessed(sequence, slot, start)
            for sequence, slot, start in zip(sequences, feed.slots, feed.starts, strict=True)
        ]
        missed = [row for row, states in enumerate(guessed) if states is None]
        self.pipelining.tokens += len(sequences)
        self.pipelining.matched += len(sequences) - len(missed)
        if not missed:
            return torch.stack([states for states in guessed if states is not None])[:, None]
        slots = [feed.slots[row] for row in missed]
        rest = scratch_feed(self.cache, slots, feed.tokens[missed], 0)
        run = self.model.run(self.model.embed(rest.tokens), rest, self.cache, self._lower)
        lower = run.new_empty(len(sequences), *run.shape[1:])
        lower[missed] = run
        for row, states in enumerate(guessed):
            if states is not None:
                lower[row, 0] = states
        return lower

    def _guessed(self, sequence: Sequence, slot: int, start: int) -> Tensor | None:
        """[D] the state of the sequence's last token, if it was guessed; its keys and values are
        moved to their place.

        Guesses don't move to another slot with the sequence, and draft passes overwrite them.
        """
        guesses: Guesses | None = sequence.state.pop(self, None)
        if guesses is None or guesses[2:] != (slot, start - 1, self.target.draft_passes):
            return None
        self.pipelining.tried += 1
        token = sequence.tokens[-1]
        if token not in guesses.tokens:
            return None
        place = guesses.tokens.index(token)
        if place:
            self.cache.move(slot, start + place, start)
        return guesses.states[place]


class _Thread:
    """A second worker on the CPU."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "foretoken-ppd")

    @contextmanager
    def __call__(self, work: Callable[[], Tensor]) -> Iterator[Callable[[], Tensor]]:
        """Runs `work` during the block, which gets a function that returns its result."""
        inference = torch.is_inference_mode_enabled()  # a thread has its own

        def run() -> Tensor:
            with torch.inference_mode(inference):
                return work()

        future = self._pool.submit(run)
        try:
            yield future.result
        finally:
            future.result()


class _Stream:
    """A second worker on a GPU: another stream."""

    def __init__(self, device: torch.device) -> None:
        self._side, self._device = torch.cuda.Stream(device), device

    @contextmanager
    def __call__(self, work: Callable[[], Tensor]) -> Iterator[Callable[[], Tensor]]:
        main = torch.cuda.current_stream(self._device)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            result = work()
        yield lambda: result
        main.wait_stream(self._side)
