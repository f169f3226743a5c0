"""SAM-Decoding: its own text, and a corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from copying_drafters import VOCAB, bound, draft, ends, few, paths, sequence
from foretoken import ForetokenError
from foretoken.drafters.sam import Sam
from foretoken.lookup.longest_match import repeated
from foretoken.lookup.suffix_automaton import StaticAutomaton


@given(few, few)
def test_sam_reads_its_own_text(text: list[int], more: list[int]) -> None:
    """After the first occurrence of the longest end that occurred before, α tokens for each."""
    drafter, own = bound(Sam(draft_factor=1.5)), sequence(text)
    for token in [*more, None]:
        read = own.tokens
        known = [n for n in range(1, len(read)) if ends(read, read[-n:])[0] < len(read)]
        expected = []
        if known:
            start = ends(read, read[-max(known) :])[0]
            expected = repeated(read, start, int(1.5 * max(known)))
        assert draft(drafter, own) == expected
        if token is not None:
            own.tokens.append(token)


def test_references_stand_before_the_text() -> None:
    """Their phrases are earlier ones; a draft ends where its reference does."""
    drafter = bound(Sam(draft_factor=2))
    own = sequence([9, 1, 2], references=[[1, 2, 3], [], [7, 8, 9, 1, 2, 5, 6, 4, 3]])
    assert draft(drafter, own) == [5, 6, 4, 3]
    own.tokens.append(3)
    assert draft(drafter, own) == []
    own.tokens += [4, 7]
    assert draft(drafter, own) == [8, 9]
    assert draft(drafter, sequence([9, 1, 2])) == []
    huge = bound(Sam(draft_factor=1e308))  # as many as there are
    own = sequence([9, 1, 2], references=[[1, 2, 3], [], [7, 8, 9, 1, 2, 5, 6, 4, 3]])
    assert draft(huge, own)[:4] == [5, 6, 4, 3]


def test_sam_chooses_by_match_length(tmp_path: Path) -> None:
    """The corpus counts where its match is longer than the bias and the text's own; as a tree."""
    corpus = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [2, 3, 4, 5]]
    drafter = bound(Sam(draft_factor=1, static_bias=2, corpus=corpus))
    assert drafter.trees and not Sam().trees and Sam().wants.levels == "a"
    assert paths(drafter, sequence([9, 2, 3])) == set()  # two tokens are not more than the bias
    assert paths(drafter, sequence([9, 1, 2, 3])) == {(4,)}
    assert paths(drafter, sequence([9, 1, 2, 3, 4])) == {(5,), (7,)}
    assert paths(drafter, sequence([4, 9, 1, 2, 3, 4])) == {(5,), (7,)}  # two against one
    assert paths(drafter, sequence([3, 4, 9, 1, 2, 3, 4])) == {(9,), (9, 1)}  # two against two
    file = tmp_path / "corpus"
    StaticAutomaton.of(corpus).save(file, VOCAB)
    assert paths(bound(Sam(draft_factor=1, static_bias=2, corpus=file)), sequence([1, 2, 3])) == {
        (4,)
    }
    narrow = bound(Sam(draft_factor=1, static_bias=2, corpus=corpus, max_children=1))
    assert draft(narrow, sequence([9, 1, 2, 3, 4])) == [5, 6]
    with pytest.raises(ForetokenError, match="made for vocab_size 97"):
        bound(Sam(corpus=file), 98)
    with pytest.raises(ForetokenError, match="token id 8 and the target's vocabulary 8"):
        bound(Sam(corpus=corpus), 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sam(draft_factor=0), "draft_factor above 0"),
        (lambda: bound(Sam(corpus="no/file")), "can't be read as a suffix automaton"),
    ],
)
def test_wrong_options(make: Callable[[], object], message: str) -> None:
    """The message names the option and what it must be."""
    with pytest.raises(ForetokenError, match=message):
        make()
