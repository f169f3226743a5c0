"""Rules that decide when a draft ends. A rule decides from the prefix, the past and the drafter's
distribution at a place, never from the token that was drawn there: dropping a token for its value
would bias the output.

A rule that looks at distributions gets each token's before the token is drawn, and decides whether
the draft ends there. That token is drafted all the same, since its distribution is paid for, so
there is at least one; only a rule that `stops_before` leaves it out.

Legend: B sequences, V vocabulary; d drafted tokens, a accepted ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, shown, unknown
from foretoken.errors.values import check_range, check_tokens
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES


@runtime_checkable
class LengthRule(Protocol):
    """Decides when a draft ends. `looks`: whether it looks at distributions, so that `ends` must be
    called; `stops_before`: whether the token at which a draft ends is left out of it."""

    @property
    def looks(self) -> bool: ...

    @property
    def stops_before(self) -> bool: ...

    @property
    def most(self) -> int:
        """The most tokens that it ever drafts."""
        ...

    def limit(self, sequence: Sequence) -> int:
        """The most tokens to draft now; asked before each draft, once."""
        ...

    def ends(self, sequences: Seq[Sequence], distributions: Tensor) -> Tensor:
        """[B] bool, whether the token at this depth is each draft's last one, from the drafter's
        distributions [B, V] of these tokens. Asked about drafts that may go on.

        At temperature 0 the distribution is the drafter's own softmax, not the one-hot that it
        becomes."""
        ...

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None: ...


@dataclass(frozen=True)
class Fixed:
    """Always drafts `tokens` tokens (Leviathan et al. 2023: gamma). key: under which sequences keep
    the rule's state; rules that are equal have keys of their own."""

    tokens: int
    key: object = field(default_factory=object, init=False, repr=False, compare=False, kw_only=True)

    looks: ClassVar[bool] = False
    stops_before: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_tokens(self.tokens, MOST_NODES)

    @property
    def most(self) -> int:
        return self.tokens

    def limit(self, sequence: Sequence) -> int:
        return self.tokens

    def ends(self, sequences: Seq[Sequence], distributions: Tensor) -> Tensor:
        return torch.zeros(len(sequences), dtype=torch.bool, device=distributions.device)

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        pass


@dataclass(frozen=True)
class Heuristic(Fixed):
    """Drafts two tokens more after a draft that was accepted whole, else one less.

    Source: transformers' `num_assistant_tokens_schedule="heuristic"`; kept per sequence. Departure:
    a draft grows to 64 tokens, or to the length that it starts from if that is more.
    """

    @property
    def most(self) -> int:
        return max(self.tokens, 64)

    def limit(self, sequence: Sequence) -> int:
        current: int = sequence.state.get(self.key, self.tokens)
        return current

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if drafted:
            now = self.limit(sequence)
            sequence.state[self.key] = (
                min(now + 2, self.most) if accepted == drafted else max(1, now - 1)
            )


@dataclass(frozen=True)
class Confidence(Fixed):
    """Ends after a token whose distribution has no probability above the threshold.

    Source: transformers' `assistant_confidence_threshold` (0.4 by default); Liu et al. 2024
    (Kangaroo, 0.6). Departures: they compare the drawn token's own probability, here it is the
    likeliest token's, which is the same at temperature 0; the threshold stays as it is.
    """

    assistant_confidence_threshold: float = 0.4

    looks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, 1, assistant_confidence_threshold=self.assistant_confidence_threshold)

    def threshold(self, sequence: Sequence) -> float:
        return self.assistant_confidence_threshold

    def certainty(self, distributions: Tensor) -> Tensor:
        """[B, V] -> [B], what is compared with the threshold."""
        return distributions.amax(-1)

    def ends(self, sequences: Seq[Sequence], distributions: Tensor) -> Tensor:
        bars = [self.threshold(sequence) for sequence in sequences]
        return self.certainty(distributions) < torch.tensor(
            bars, dtype=distributions.dtype, device=distributions.device
        )


@dataclass(frozen=True)
class Fallback(Confidence):
    """Ends before the first token whose distribution has no probability above the threshold: the
    small model writes until it is unsure, and where it is unsure at once nothing is drafted.

    Source: Kim et al. 2023 (Big Little Decoder), fallback policy, with the threshold 0.6 of their
    implementation.
    """

    assistant_confidence_threshold: float = 0.6

    stops_before: ClassVar[bool] = True


@dataclass(frozen=True)
class Adaptive(Confidence):
    """A confidence threshold that moves until `target` of what is drafted is accepted.

    Source: Zhang et al. 2024 (Draft & Verify), the adaptive draft-exiting mechanism; its published
    parameters [1, 0.5, 0.9, 1e-2, 0.9] are: after every step, `memory`, `target`, `change`,
    `inertia`. It starts from 0.8 (0.5 in their sampling). Kept per sequence.
    """

    assistant_confidence_threshold: float = 0.8
    memory: float = 0.5
    target: float = 0.9
    change: float = 0.01
    inertia: float = 0.9

    def threshold(self, sequence: Sequence) -> float:
        threshold, _ = self._state(sequence)
        return threshold

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        threshold, rate = self._state(sequence)
        rate = self.memory * rate + (1 - self.memory) * accepted / drafted
        wanted = threshold
        if rate < self.target:
            wanted += self.change
        elif drafted < self.tokens:
            wanted -= self.change
        threshold = self.inertia * threshold + (1 - self.inertia) * wanted
        sequence.state[self.key] = threshold, rate

    def _state(self, sequence: Sequence) -> tuple[float, float]:
        """The threshold, and the running mean of the acceptance rate."""
        state: tuple[float, float]
        state = sequence.state.get(self.key, (self.assistant_confidence_threshold, 0.0))
        return state


@dataclass(frozen=True)
class Entropy(Adaptive):
    """Ends after a token whose distribution has too high an entropy H: 1 - sqrt(`share` H) <
    threshold.

    Source: Agrawal et al. 2024 (AdaEDL), section 3 and algorithm 1: the left side bounds the
    probability of acceptance from below, and the threshold moves as in Draft & Verify. H in nats,
    `share` 0.2; the paper starts from 0.3 to 0.9.
    """

    assistant_confidence_threshold: float = 0.5
    share: float = 0.2

    def certainty(self, distributions: Tensor) -> Tensor:
        entropy: Tensor = torch.special.entr(distributions).sum(-1)
        return 1 - (self.share * entropy).sqrt()


RATE, CONFIDENCE = "rate", "confidence"
"""How `Cumulative` moves its threshold after an error."""


@dataclass(frozen=True)
class Cumulative(Confidence):
    """Ends after a token at which the draft as a whole is unlikely: the product of its tokens'
    likeliest probabilities is below a threshold that adapts itself. For targets whose passes take
    as long for many tokens as for one, with a `num_speculative_tokens` that is large.

    Source: Xu et al. 2023 (LLMCad), self-adaptive fallback, equation 3. The threshold halves after
    a draft that was accepted whole. After an error it becomes, by the equation (`after_error`
    "rate"), the share of the draft that was wrong; by the text beside it ("confidence"), which
    differs, it is divided by the mean cumulative confidence from the first wrong token on.
    Departures: chains, not the likeliest branch of a tree; it stays from 1e-6 to 0.9, as "rate"
    gives 1 where nothing was right; of a token that ended a draft by its length no confidence is
    known, and where none is, the threshold stays. Kept per sequence.
    """

    assistant_confidence_threshold: float = 0.01
    after_error: str = RATE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.after_error not in (RATE, CONFIDENCE):
            raise unknown("after_error", self.after_error, (RATE, CONFIDENCE))

    def limit(self, sequence: Sequence) -> int:
        sequence.state[self.key] = self.threshold(sequence), ()
        return self.tokens

    def threshold(self, sequence: Sequence) -> float:
        threshold, _ = self._state(sequence)
        return threshold

    def ends(self, sequences: Seq[Sequence], distributions: Tensor) -> Tensor:
        ends = []
        for sequence, share in zip(sequences, distributions.amax(-1).tolist(), strict=True):
            threshold, path = self._state(sequence)
            path = (*path, (path[-1] if path else 1.0) * share)
            sequence.state[self.key] = threshold, path
            ends.append(path[-1] < threshold)
        return torch.tensor(ends, device=distributions.device)

    def note(self, sequence: Sequence, path: Seq[float]) -> None:
        """Remember a draft that was made otherwise, by the cumulative confidence at each token."""
        sequence.state[self.key] = self.threshold(sequence), tuple(path)

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        threshold, path = self._state(sequence)
        wrong = path[accepted:drafted]
        if accepted == drafted:
            threshold *= 0.5
        elif self.after_error == RATE:
            threshold = (drafted - accepted) / drafted
        elif wrong:
            threshold /= max(sum(wrong) / len(wrong), _LEAST)
        sequence.state[self.key] = min(max(threshold, _LEAST), _MOST), ()

    def _state(self, sequence: Sequence) -> tuple[float, tuple[float, ...]]:
        """The threshold, and the cumulative confidence at each token of the draft so far."""
        state: tuple[float, tuple[float, ...]]
        state = sequence.state.get(self.key, (self.assistant_confidence_threshold, ()))
        return state


_LEAST, _MOST = 1e-6, 0.9


@dataclass(frozen=True)
class ExpectedGain(Fixed):
    """Drafts the number of tokens with the highest expected speedup, from one to `tokens`.

    Source: Leviathan et al. 2023, theorem 3.8. The acceptance rate is the share of accepted among
    tested tokens, older steps counting less by `decay` each; before the first step it is `rate`,
    with the weight of `weight` tested tokens. `draft_cost` is a drafter's pass as a share of the
    target's: measure it once and pass it, for a clock inside the rule would make the text of a seed
    depend on the machine's speed. One token is drafted even where it doesn't pay, or the rate would
    never be measured again.
    """

    draft_cost: float = 0.1
    decay: float = 0.9
    rate: float = 0.8
    weight: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_cost < 0:
            raise ForetokenError(
                f"draft_cost is {self.draft_cost}; it is the time of a drafter's pass divided by "
                "that of the target's, e.g. 0.1."
            )
        check_range(0, 1, decay=self.decay, rate=self.rate)
        if not 0 < self.weight < math.inf:
            raise ForetokenError(f"weight is {self.weight}; it must be above 0.")

    def limit(self, sequence: Sequence) -> int:
        accepted, tested = self._counts(sequence)
        gains = speedups(accepted / tested, self.tokens, self.draft_cost)
        return 1 + gains.index(max(gains))

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if drafted:
            accepted_before, tested_before = self._counts(sequence)
            tested = accepted + (accepted < drafted)
            sequence.state[self.key] = (
                self.decay * accepted_before + accepted,
                self.decay * tested_before + tested,
            )

    def _counts(self, sequence: Sequence) -> tuple[float, float]:
        """(accepted, tested) tokens, older ones counting less."""
        counts: tuple[float, float]
        counts = sequence.state.get(self.key, (self.rate * self.weight, self.weight))
        return counts


def speedup(acceptance: float, tokens: int, cost: float) -> float:
    """The expected speedup (1 - a^(g + 1)) / ((1 - a)(g c + 1)) of g drafted tokens at cost c each,
    at the acceptance rate a."""
    return [1.0, *speedups(acceptance, tokens, cost)][tokens]


def speedups(acceptance: float, most: int, cost: float) -> list[float]:
    """The expected speedups of 1, 2, … `most` drafted tokens, as `speedup` has them."""
    written = accumulate(acceptance**i for i in range(1, most + 1))
    return [(1.0 + more) / (tokens * cost + 1) for tokens, more in enumerate(written, 1)]


def check_one_length(options: Mapping[str, Any]) -> None:
    """Raise `ForetokenError` for a number of tokens beside a rule that is an object: it has one of
    its own. options: by the names of fields."""
    rule, tokens = (options.get(name) for name in ("num_assistant_tokens_schedule", _TOKENS))
    if tokens is not None and isinstance(rule, LengthRule) and not isinstance(rule, type):
        raise ForetokenError(
            f"{_TOKENS} is {shown(tokens)} and would be ignored, as num_assistant_tokens_schedule "
            f"is {shown(rule)}; give the number to that rule alone."
        )


_TOKENS = "num_speculative_tokens"

SCHEDULES: dict[str, type[Fixed]] = {
    "constant": Fixed,
    "heuristic": Heuristic,
    "confidence": Confidence,
    "adaptive": Adaptive,
    "entropy": Entropy,
    "fallback": Fallback,
    "cumulative": Cumulative,
    "expected_gain": ExpectedGain,
}


def schedule(
    name: str | LengthRule, tokens: int, options: Mapping[str, float | None] | None = None
) -> LengthRule:
    """The rule of this name (the first two are transformers'), or the rule itself.

    Options that are None are left to the rule; others must be its own.
    """
    given: dict[str, Any] = {k: v for k, v in (options or {}).items() if v is not None}
    if not isinstance(name, str):
        if given:
            raise ForetokenError(f"Give {', '.join(given)} to the length rule itself.")
        return name
    if name not in SCHEDULES:
        raise unknown("num_assistant_tokens_schedule", name, SCHEDULES)
    fields = {n: {f.name for f in dataclasses.fields(rule)} for n, rule in SCHEDULES.items()}
    for key in given:
        if key not in fields[name]:
            takers = ", ".join(repr(n) for n, names in fields.items() if key in names)
            raise ForetokenError(
                f"{key} has no meaning with num_assistant_tokens_schedule {name!r}; it belongs to "
                f"{takers or 'no schedule'}."
            )
    return SCHEDULES[name](tokens, **given)
