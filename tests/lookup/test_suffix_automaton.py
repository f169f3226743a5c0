"""Suffix automata against searching the text, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError
from foretoken.lookup.longest_match import repeated
from foretoken.lookup.suffix_automaton import START, StaticAutomaton, SuffixAutomaton

few = st.lists(st.integers(0, 2), max_size=16)


def occurrences(text: list[int], phrase: list[int]) -> list[int]:
    """The places after them."""
    return [
        end for end in range(len(phrase), len(text) + 1) if text[end - len(phrase) : end] == phrase
    ]


def joined(texts: list[list[int]]) -> list[int]:
    return [token for mark, text in enumerate(texts, 1) for token in (*text, -mark)]


@given(few)
def test_the_longest_repeat(text: list[int]) -> None:
    """The longest end of the text that occurred before, and where first."""
    growing = SuffixAutomaton()
    for length in range(1, len(text) + 1):
        growing.extend(text[length - 1 : length])
        read, found = text[:length], (0, 0)
        for size in range(1, length):
            if (first := occurrences(read, read[-size:])[0]) < length:
                found = size, first
        assert growing.repeat == found
    assert len(growing.next) <= max(1, 2 * len(text))


@given(st.lists(few, max_size=3), few)
def test_a_text_after_whole_ones(texts: list[list[int]], text: list[int]) -> None:
    """What they have in common is found in them; what is read there ends where they do."""
    growing, whole, found = SuffixAutomaton.after_texts(texts), [*joined(texts), *text], (0, 0)
    growing.extend(text)
    for size in range(1, len(text) + 1):
        if (first := occurrences(whole, text[-size:])[0]) < len(whole):
            found = size, first
    assert growing.repeat == found
    after = repeated(whole, found[1], 4)
    stop = next((i for i, token in enumerate(after) if token < 0), 4)
    assert growing.after(found[1], 4) == after[:stop]


@given(st.lists(few, min_size=1, max_size=4), few)
def test_following_texts(texts: list[list[int]], said: list[int]) -> None:
    """At every token: the longest end that occurs, how often, where first, and what follows it."""
    automaton, whole, match = StaticAutomaton.of(texts), joined(texts), START
    assert list(automaton.text) == whole
    for done in range(1, len(said) + 1):
        match = automaton.step(match, said[done - 1])
        length = max(n for n in range(done + 1) if occurrences(whole, said[done - n : done]))
        ends = occurrences(whole, said[done - length : done])
        assert match[1] == length
        if length:
            assert (automaton.count(match), automaton.first(match)) == (len(ends), ends[0])
            next_ones = [whole[end] for end in ends]
            assert {token: share for share, token, _ in automaton.following(match[0])} == {
                token: next_ones.count(token) / len(ends) for token in next_ones if token >= 0
            }
            after = whole[ends[0] : ends[0] + 3]
            stop = next((i for i, token in enumerate(after) if token < 0), 3)
            assert automaton.after(ends[0], 3) == after[:stop]


@given(st.lists(few, max_size=4))
def test_memory_is_bounded_by_the_text(texts: list[list[int]]) -> None:
    """60 bytes for each token and mark, and a little for the empty automaton."""
    assert StaticAutomaton.of(texts).nbytes <= 60 * len(joined(texts)) + 24


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A file holds the same automaton; other vocabularies' and broken files are refused."""
    path = tmp_path / "corpus"
    made = StaticAutomaton.of([[1, 2, 1, 3], [2, 1]])
    made.save(path, 97)
    loaded = StaticAutomaton.load(path, 97)
    for name, values in made._arrays.items():
        np.testing.assert_array_equal(values, loaded._arrays[name])
    with pytest.raises(ForetokenError, match=r"made for vocab_size 97 and this target has 98"):
        StaticAutomaton.load(path, 98)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ForetokenError, match="damaged or not a suffix automaton"):
        StaticAutomaton.load(path, 97)
    made.save(path, 3)
    with pytest.raises(ForetokenError, match="token id 3 and the target's vocabulary 3"):
        StaticAutomaton.load(path, 3)
