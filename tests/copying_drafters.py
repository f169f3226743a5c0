"""Sequences for drafters that copy, and what such a drafter drafts without a model."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from foretoken import SamplingParams
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence

VOCAB = 97
few = st.lists(st.integers(0, 2), min_size=1, max_size=14)
some = st.lists(few, max_size=3)


def bound(drafter: Any, vocab_size: int = VOCAB) -> Any:
    """A drafter that may draft, without a model."""
    drafter.bind(SimpleNamespace(device="cpu", vocab_size=vocab_size))
    return drafter


def sequence(
    prompt: Seq[int],
    output: Seq[int] = (),
    references: Seq[Seq[int]] = (),
    salt: str | None = None,
) -> Sequence:
    one = Sequence.start(prompt, SamplingParams(references=references, cache_salt=salt))
    one.tokens.extend(output)
    return one


def paths(drafter: Drafter, one: Sequence, budget: int = 64) -> set[tuple[int, ...]]:
    """The draft's nodes, each by the tokens on the way to it."""
    tree = drafter.draft([one], [budget], None)  # type: ignore[arg-type]
    found = {tuple(path) for path in tree.contexts()[0][: tree.counts[0] + 1]} - {()}
    assert len(found) == tree.counts[0] <= budget
    return found


def draft(drafter: Drafter, one: Sequence, budget: int = 64) -> list[int]:
    """The tokens of a chain."""
    return list(max(paths(drafter, one, budget), key=len, default=()))


def ends(text: Seq[int], phrase: Seq[int]) -> list[int]:
    """After which places the phrase stands."""
    size = len(phrase)
    return [at for at in range(size, len(text) + 1) if list(text[at - size : at]) == list(phrase)]
