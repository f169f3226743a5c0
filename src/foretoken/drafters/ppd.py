"""Predictive Pipelined Decoding: the next token's lower layers run beside this one's upper layers.

Source: Yang et al. 2024 (Predictive Pipelined Decoding), section 3. After an intermediate layer
the final norm and the head guess the k likeliest next tokens. While one worker takes the token
through the upper layers, another runs the lower layers for the guesses. If the token that the
target then says is among them, its lower layers are done already; if not, they are run. Nothing is
drafted: every token is the target's own, at any temperature.

Two workers that share one memory bus, or one GPU, have nothing to win, so what independent devices
would gain is counted: see `Pipelining`. Departure: all guesses go through the lower layers in one
pass, where the paper has a process for each.

Legend: B sequences, k guesses, D width, V vocabulary, L layers, l the layer that guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


class Guesses(NamedTuple):
    """What is known beforehand of a sequence's next token.

    tokens: the k guesses. states: [k, D] after the lower layers. slot, start: the cache row, and
    the place after which the guesses' keys and values stand, unless `scratches` has grown.
    """

    tokens: list[int]
    states: Tensor
    slot: int
    start: int
    scratches: int


@dataclass
class Pipelining:
    """What was saved and spent. layers: L; layer: l; guesses: k.

    tokens: written. tried: those for which guesses stood ready. matched: those found among them.
    """

    layers: int
    layer: int
    guesses: int
    tokens: int = 0
    tried: int = 0
    matched: int = 0

    @property
    def match_rate(self) -> float:
        """Share of the tokens with guesses that were among them."""
        return self.matched / self.tried if self.tried else 0.0

    @property
    def extra_compute(self) -> float:
        """Layers run for guesses that came to nothing, as a share of plain decoding's."""
        if not self.tokens:
            return 0.0
        wasted = self.guesses * self.tokens - self.matched
        return wasted * self.layer / (self.layers * self.tokens)

    @property
    def predicted_latency(self) -> float:
        """Time for a token as a share of plain decoding's, if both workers had devices of their own
        on which k tokens take as long as one: a match leaves the longer part, a miss both."""
        if not self.tokens:
            return 1.0
        longer = max(self.layer, self.layers - self.layer) / self.layers
        return 1 - (1 - longer) * self.matched / self.tokens


@dataclass(eq=False)
class PPD(BaseDrafter):
    """num_guesses: tokens guessed for each place (k); guess_layer: the layer after which they are
    (l), None for the middle. `pipelining` counts what came of it."""

    num_guesses: int = 3
    guess_layer: int | None = None

    wants = Wants("ace")

    def __post_init__(self) -> None:
        if not 1 <= self.num_guesses <= 32:
            raise ForetokenError(f"num_guesses is {self.num_guesses}; it must be 1 to 32.")

    def bind(self, access: Access) -> None:
        layer = access.layers // 2 if self.guess_layer is None else self.guess_layer
        if not 1 <= layer < access.layers:
            raise ForetokenError(
                f"guess_layer is {layer} and this target has {access.layers} layers; it must be at "
                "least 1 and less than that."
            )
        guesses = min(self.num_guesses, access.vocab_size)
        self.pipelining = Pipelining(access.layers, layer, guesses)
        self._access = access
        self._lower, self._upper = range(2 * layer), range(2 * layer, 2 * access.layers)
        self._beside = _Stream(access.device) if access.device.type == "cuda" else _Thread()
        access.score_by(self._score)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return empty(len(sequences), self._access.device)

    def _score(self, sequences: Seq[Sequence], feed: Any) -> Pass:
        """The root's pass, in two halves, beside the first half of the guesses'."""
        access = self._access
        if feed.tokens.shape[1] > 1 or access.hidden:  # another drafter's nodes, or what it reads
            return access.whole(sequences, feed)
        entered = self._entered(sequences, feed)
        top = access.head(access.norm(entered))[:, 0].topk(self.pipelining.guesses).indices
        ahead = access.scratch_next(sequences, top, 1)

        def guess() -> Tensor:
            return access.run(access.embed(top), ahead, self._lower)

        with self._beside(guess) as guessed:
            states = access.run(entered, feed, self._upper)
            logits = access.head(access.norm(states))
        for row, (sequence, tokens) in enumerate(zip(sequences, top.tolist(), strict=True)):
            place = feed.slots[row], feed.starts[row], access.scratches
            sequence.state[self] = Guesses(tokens, guessed()[row], *place)
        return Pass(logits)

    def _entered(self, sequences: Seq[Sequence], feed: Any) -> Tensor:
        """[B, 1, D] the roots' states after the lower layers, guessed or run."""
        access = self._access
        found = [
            self._found(sequence, slot, start)
            for sequence, slot, start in zip(sequences, feed.slots, feed.starts, strict=True)
        ]
        hits = [row for row, states in enumerate(found) if states is not None]
        missed = [row for row in range(len(sequences)) if row not in hits]
        self.pipelining.tokens += len(sequences)
        self.pipelining.matched += len(hits)
        if not missed:
            return torch.stack([s for s in found if s is not None])[:, None]
        some = [sequences[row] for row in missed]
        again = access.scratch_next(some, feed.tokens[missed], 0)
        run = access.run(access.embed(again.tokens), again, self._lower)
        states = run.new_empty(len(sequences), *run.shape[1:])
        states[missed] = run
        for row, known in enumerate(found):
            if known is not None:
                states[row, 0] = known
        return states

    def _found(self, sequence: Sequence, slot: int, start: int) -> Tensor | None:
        """[D] the state of the sequence's last token, if it was guessed; its cells are put right.

        Guesses don't move to another slot with the sequence, and another drafter that runs a part
        of the target overwrites them.
        """
        held: Guesses | None = sequence.state.pop(self, None)
        now = slot, start - 1, self._access.scratches
        if held is None or (held.slot, held.start, held.scratches) != now:
            return None
        self.pipelining.tried += 1
        token = sequence.tokens[-1]
        if token not in held.tokens:
            return None
        place = held.tokens.index(token)
        if place:
            self._access.scratch_first(sequence, place)
        return held.states[place]


class _Thread:
    """A second worker on the CPU."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "foretoken-ppd")

    @contextmanager
    def __call__(self, work: Callable[[], Tensor]) -> Iterator[Callable[[], Tensor]]:
        """`work` runs during the block; what it gave is there after it."""
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
    """The same on a stream of its own of a GPU."""

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
