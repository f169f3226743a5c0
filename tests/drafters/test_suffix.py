"""Suffix decoding, against counting by hand."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given

from copying_drafters import bound, draft, ends, few, paths, sequence, some
from foretoken import ForetokenError
from foretoken.drafters.suffix import Suffix
from foretoken.lookup.earlier_outputs import AT_ONCE


def tree_by_hand(
    texts: Seq[Seq[int]],
    phrase: Seq[int],
    most: int,
    least: float,
    starts: int | None = None,
    references: Seq[Seq[int]] = (),
) -> list[float]:
    """Weights of the likeliest paths after a phrase, counted in texts; falling.

    starts: only phrases that begin before it count, but for those in references.
    """
    known = [(text, at) for text in texts for at in ends(text, phrase)]
    known = [(t, at) for t, at in known if starts is None or at - len(phrase) < starts]
    known += [(text, at) for text in references for at in ends(text, phrase)]
    found: list[float] = []
    waiting = [((), known, 1.0)]
    while waiting:
        path, places, weight = waiting.pop()
        for token in {t[at] for t, at in places if at < len(t)}:
            after = [(t, at + 1) for t, at in places if at < len(t) and t[at] == token]
            share = weight * len(after) / len(places)
            if share >= least and len(phrase) + len(path) < 6:
                found.append(share)
                waiting.append(((*path, token), after, share))  # type: ignore[arg-type]
    return sorted(found, reverse=True)[:most]


@given(few, some, some)
def test_suffix_decoding(
    text: list[int], earlier: list[list[int]], references: list[list[int]]
) -> None:
    """The score is the best over both trees and all phrases, counted by hand; and the draft has
    that score. References are counted with the text."""
    drafter = bound(Suffix(4, max_tree_depth=6, min_token_prob=0.2))
    for output in earlier:
        drafter.end([sequence([9], output)])
    own = sequence(text, references=references)
    guess = drafter.guess(own, 4, drafter.shared.index)
    first = next(i for i in range(len(text) + 1) if _stood_before(text, i, references))
    best = 0.0
    for size in range(1, 6):
        if size > len(text):
            break
        phrase = text[-size:]
        others = tree_by_hand(earlier, phrase, min(4, size), 0.2)
        mine = tree_by_hand([text], phrase, min(4, size), 0.2, first, references)
        best = max(best, sum(others), sum(mine) if size <= len(text) - first else 0)
    assert guess.score == pytest.approx(best)
    assert len(paths(drafter, own)) == len(guess.tokens)


def _stood_before(text: list[int], start: int, references: Seq[Seq[int]]) -> bool:
    """Whether all from `start` on is a phrase of earlier, and not too long to be looked for."""
    size = len(text) - start
    earlier = any(text[at : at + size] == text[start:] for at in range(start))
    earlier = earlier or any(ends(reference, text[start:]) for reference in references)
    return size == 0 or (size < 6 and earlier)


def test_suffix_paths_and_trees() -> None:
    """Branches by their counts; with one child each, the most frequent path, as a chain."""
    text = [1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2]
    tree, path = bound(Suffix(max_spec_factor=2)), bound(Suffix(max_spec_factor=2, max_children=1))
    assert paths(tree, sequence(text)) == {(3,), (4,), (3, 0), (3, 5)}
    assert (tree.trees, tree.wants.levels) == (True, "ab")
    assert (path.trees, path.wants.levels) == (False, "a")
    chain = path.draft([sequence(text)], [64], None)
    assert chain.is_chain and chain.tokens.tolist() == [[3, 0, 1, 2]]
    assert path.draft([sequence([1, 2, 1])], [0], None).counts == [0]
    offset = bound(Suffix(max_spec_factor=1, max_spec_offset=2, max_children=1))
    assert draft(offset, sequence(text)) == [3, 0, 1, 2]
    huge = bound(Suffix(max_spec_factor=1e308, max_children=1))
    assert draft(huge, sequence(text))[:4] == [3, 0, 1, 2]


def test_references_are_copied_from() -> None:
    """By how often what follows stands in them, up to their ends."""
    own = sequence([9, 1, 2], references=[[1, 2, 3, 4], [], [1, 2, 5], [2, 3]])
    assert paths(bound(Suffix(max_spec_factor=2)), own) == {(3,), (5,), (3, 4)}
    assert paths(bound(Suffix(max_spec_factor=2)), sequence([9, 1, 2])) == set()


def test_suffix_learns_from_outputs() -> None:
    """What ended is drafted for others; prompts are not kept."""
    drafter = bound(Suffix())
    drafter.end([sequence([7, 8, 9], [1, 2, 3, 4])])
    assert draft(drafter, sequence([5, 1, 2])) == [3, 4]
    assert draft(drafter, sequence([5, 7, 8])) == []
    assert drafter.shared.tokens == 4
    assert bound(Suffix(max_cached_tokens=0)).shared is None


def test_a_request_with_a_salt_is_kept_apart() -> None:
    """It copies its own text alone, and no other request, of its salt or without one, copies it."""
    drafter = bound(Suffix())
    drafter.end([sequence([9], [1, 2, 3, 4]), sequence([9], [5, 6, 7, 8], salt="a")])
    assert drafter.shared.tokens == 4
    assert draft(drafter, sequence([0, 1, 2], salt="a")) == []
    assert draft(drafter, sequence([1, 2, 5, 0, 1, 2], salt="a")) == [5, 0]
    assert draft(drafter, sequence([0, 1, 2])) == [3, 4]
    assert draft(drafter, sequence([0, 5, 6], salt="a")) == draft(drafter, sequence([5, 6])) == []


def test_a_long_text_is_read_in_several_steps() -> None:
    """References first. Meanwhile what is there is copied from; in the end the draft is that of a
    tree that had it all at once."""
    tail, filling = [7, 8, 9], list(range(20, 90))
    references = [[*tail, 1, *filling * 9], [*tail, 2, *filling * 9], [*tail, 2]]
    whole = sequence([*tail, 3, *filling * 30, *tail], references=references)
    drafter, sizes = bound(Suffix(max_spec_factor=0.5)), []
    for _ in range(8):
        guess = drafter.guess(whole, 1, None)
        sizes.append(whole.state[drafter].tree.read)
        if not sizes[-1]:
            assert guess.tokens[:1] == [1] or len(sizes) > 1
    assert sizes[:2] == [0, 0] and sizes[-1] == len(whole.tokens)
    assert all(after - before <= AT_ONCE for before, after in pairwise(sizes))
    at_once = bound(Suffix(max_spec_factor=0.5)).guess(whole.afresh(), 1, None, 10_000)
    assert (guess.tokens, guess.score) == (at_once.tokens, at_once.score) and guess.tokens == [2]


def test_a_step_takes_in_a_little_of_what_others_wrote() -> None:
    """However many sequences are drafted for."""
    drafter = bound(Suffix())
    drafter.end([sequence([9], list(range(90)) * 30)])
    drafter.draft([sequence([1]) for _ in range(8)], [4] * 8, None)
    assert draft(drafter, sequence([1, 2]))  # from the first places
    assert drafter.shared._entering._done == 2 * AT_ONCE


def test_sequences_share_what_a_step_reads() -> None:
    """But each reads at least as much as a step may write, and what a step read of its prompt."""
    drafter, texts = bound(Suffix()), [sequence(list(range(96)) * 20) for _ in range(16)]
    draft_of = SimpleNamespace(read=0)
    drafter.observe(texts, [draft_of] * 15 + [SimpleNamespace(read=700)])
    read = [text.state[drafter].tree.read for text in texts]
    assert read == [64] * 15 + [700]
    drafter.observe(texts[:2], [draft_of] * 2)
    assert texts[0].state[drafter].tree.read == 64 + AT_ONCE // 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Suffix(0), "at least 1 and 2"),
        (lambda: Suffix(max_tree_depth=1), "at least 1 and 2"),
        (lambda: Suffix(max_spec_factor=-1), "max_spec_factor is -1"),
        (lambda: Suffix(max_children=0), "max_children 0"),
        (lambda: bound(Suffix(max_cached_tokens=-1)), "max_cached_tokens is -1"),
    ],
)
def test_wrong_options(make: Callable[[], object], message: str) -> None:
    """The message names the option and what it must be."""
    with pytest.raises(ForetokenError, match=message):
        make()
