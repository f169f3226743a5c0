"""Prompt lookup, against searching by hand."""

from __future__ import annotations

import gc
from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

from hypothesis import given

from copying_drafters import bound, draft, ends, few, sequence, some
from foretoken import SamplingParams
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.lookup.earlier_outputs import AT_ONCE
from foretoken.lookup.longest_match import repeated
from foretoken.sampling.sequence import Sequence


def looked_up(texts: Seq[Seq[int]], tail: Seq[int], sizes: Seq[int]) -> list[int]:
    """Prompt lookup by hand. The first of `texts` is the request's own, the last win after it."""
    for size in sizes:
        for text in (texts[0], *reversed(texts[1:])):
            found = [at for at in ends(text, tail[len(tail) - size :]) if at < len(text)]
            if found and size <= len(tail):
                copied = text[found[-1] : found[-1] + 4]
                return repeated(text, found[-1], 4) if text is texts[0] else list(copied)
    return []


@given(few, some, some)
def test_prompt_lookup(text: list[int], references: list[list[int]], earlier: Any) -> None:
    """The longest n-gram, in the text, then the references, then earlier outputs; the latest."""
    drafter = bound(PromptLookup(4, max_cached_tokens=1000))
    for output in earlier:
        drafter.end([sequence([9, 9], output)])
    own = sequence(text[:2], references=references)
    for token in [*text[2:], None]:
        expected = looked_up([own.tokens, *earlier, *references], own.tokens, (3, 2, 1))
        assert draft(drafter, own) == expected
        if token is not None:
            own.tokens.append(token)
            drafter.observe([own], [])


def test_prompt_lookup_forgets_across_requests_by_default() -> None:
    """Only LLMA's cache-assisted setting remembers outputs, and never prompts."""
    plain, assisted = bound(PromptLookup(2)), bound(PromptLookup(2, max_cached_tokens=50))
    for drafter in (plain, assisted):
        drafter.end([sequence([7, 8, 9], [1, 2, 3])])
        assert draft(drafter, sequence([4, 8])) == []
    assert plain.shared is None
    assert draft(plain, sequence([4, 1])) == [] and draft(assisted, sequence([4, 1])) == [2, 3]
    assert draft(assisted, sequence([1, 2, 3])) == []  # an output's end is not drafted
    assisted.shared.reset()
    assert draft(assisted, sequence([4, 1])) == []


def test_a_step_takes_in_a_little_of_what_others_wrote() -> None:
    """However many sequences are drafted for."""
    drafter = bound(PromptLookup(2, max_cached_tokens=5_000))
    drafter.end([sequence([9], list(range(90)) * 30)])
    drafter.draft([sequence([1]) for _ in range(8)], [4] * 8, None)
    assert drafter.shared._entering._done == AT_ONCE


def test_a_long_text_is_searched_as_it_is() -> None:
    """The step after a long prompt indexes nothing: a table would hold up all requests, and each of
    its entries Python's collector."""
    drafter = bound(PromptLookup(2, 5))
    texts = [sequence([*range(90), *range(9)] * 200, references=[[1, 2] * 2_000]) for _ in range(3)]
    gc.collect()
    before = len(gc.get_objects())
    for text in texts:
        assert draft(drafter, text) == [9, 10]
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_a_reference_ends_where_it_ends() -> None:
    """Nothing is copied over its end, and no phrase stands across it; what another one has later
    counts before what it has."""
    drafter = bound(PromptLookup(4))
    assert draft(drafter, sequence([5, 1, 2], references=[[1, 2, 3], [4, 1, 2]])) == [3]
    assert draft(drafter, sequence([2, 4], references=[[1, 2], [4, 7]])) == [7]
    assert draft(drafter, sequence([1], references=[[1, 2], [], [1, 3], [1]])) == [3]
    assert draft(drafter, sequence([8], references=[[8]])) == []


def test_the_shortest_phrase() -> None:
    """Shorter ones than asked for count nowhere, be they the whole text."""
    drafter = bound(PromptLookup(2, 3, 2, max_cached_tokens=50))
    drafter.end([sequence([9], [1, 2, 3, 4])])
    assert draft(drafter, sequence([2])) == [] == draft(drafter, sequence([7, 2]))
    assert draft(drafter, sequence([2, 7, 2])) == [] and draft(drafter, sequence([2, 3])) == [4]
    assert draft(drafter, sequence([5, 3, 4, 7, 3, 4])) == [7, 3]


def test_a_request_with_a_salt_is_kept_apart() -> None:
    """It copies its own text alone, and nobody copies it."""
    drafter = bound(PromptLookup(2, max_cached_tokens=50))
    drafter.end([sequence([9], [1, 2, 3]), sequence([9], [5, 6, 7], salt="a")])
    assert draft(drafter, sequence([4, 1], salt="a")) == [] and drafter.shared.tokens == 3
    assert draft(drafter, sequence([1, 5, 4, 1], salt="a")) == [5, 4]
    assert draft(drafter, sequence([4, 1])) == [2, 3]
    assert draft(drafter, sequence([4, 5], salt="a")) == draft(drafter, sequence([4, 5])) == []


def test_prompt_lookup_takes_the_longest_then_the_latest() -> None:
    """The longest n-gram wins, then its most recent occurrence; short continuations count."""
    drafter = PromptLookup(num_speculative_tokens=3)
    drafter.bind(SimpleNamespace(device="cpu"))  # type: ignore[arg-type]

    def draft(tokens: list[int], limit: int = 3) -> list[int]:
        sequence = Sequence.start(tokens, SamplingParams())
        tree = drafter.draft([sequence], [limit], None)  # type: ignore[arg-type]
        return tree.tokens[0, : tree.counts[0]].tolist()

    assert draft([1, 2, 3, 9, 8, 2, 3, 7, 7, 1, 2, 3]) == [9, 8, 2]  # three beat two
    assert draft([2, 3, 9, 5, 2, 3, 7, 6, 2, 3]) == [7, 6, 2]  # the later one
    assert draft([4, 4]) == [4]  # one token is a draft
    assert draft([4] * 9) == [4, 4, 4] and draft([1, 2] * 5) == [1, 2, 1]  # they repeat themselves
    assert draft([1, 2, 3]) == [] and draft([1]) == [] and draft([4, 4], 0) == []
