"""How much two texts have in common."""

from __future__ import annotations

import random

from foretoken.models.warm import Text, common_length
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence


def test_the_common_beginning() -> None:
    """As one by one, counted up to a number."""
    rng = random.Random(0)
    for _ in range(500):
        one = [rng.randrange(2) for _ in range(rng.randrange(12))]
        other = one[: rng.randrange(12)] + [rng.randrange(2) for _ in range(rng.randrange(6))]
        most = rng.randrange(14)
        pairs = zip(one, other, strict=False)
        alike = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
        assert common_length(one, other) == alike
        assert common_length(one, other, most) == min(alike, most)


def test_a_sequence_that_shares_nothing_has_no_text() -> None:
    sequence = Sequence.start([1, 2, 3], SamplingParams())
    assert Text.of(sequence) is None
    sequence.salt = "a"
    text = Text.of(sequence)
    assert text is not None
    assert [text.common(Text([1, 2, 4], salt), 5) for salt in ("a", "b")] == [2, 0]
    sequence.tokens.append(4)
    assert text.common(Text([1, 2, 3, 4, 5], "a"), 5) == 4  # as it has grown


def test_the_later_use_counts() -> None:
    first, second = Text([1], "a"), Text([2], "a")
    assert first.used < second.used
    first.touch()
    assert first.used > second.used
