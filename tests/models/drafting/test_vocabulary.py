"""What tokens stand for, alone and after other text, and what two vocabularies share."""

from __future__ import annotations

import pytest

from foretoken import ForetokenError
from foretoken.models.drafting.vocabulary import Vocabulary, shared
from foretoken.testing import ByteTokenizer
from pieces import Pieces

PIECES = ["a", "b", " ", "ab", " a", "<end>"]


def vocabulary() -> Vocabulary:
    return Vocabulary(Pieces(PIECES, end=5), len(PIECES))


def test_texts_and_names() -> None:
    """Each token's text; special ones have a name that all vocabularies share, and no text."""
    mine = vocabulary()
    assert mine.texts == ["a", "b", " ", "ab", " a", None]
    assert mine.special == {5: "<eos>"}
    assert mine.ids == {"a": 0, "b": 1, " ": 2, "ab": 3, " a": 4, "<eos>": 5}
    assert mine.beginning == []


def test_bytes_that_are_no_whole_character_have_no_text() -> None:
    """A part of a character is left out, alone and at the end of several tokens."""
    mine = Vocabulary(ByteTokenizer(), 257)
    euro = ByteTokenizer().encode("€")
    assert [mine.texts[i] for i in euro] == [None] * 3
    assert mine.text([*ByteTokenizer().encode("x"), *euro[:2]]) == "x"
    assert mine.text(euro) == "€"


def test_text_after_other_text_is_not_merged_with_it() -> None:
    """The tokens of "b" after an "a" are its own, though "ab" is one token."""
    mine = vocabulary()
    assert mine.starting("ab") == [3]
    assert mine.continuing("b") == [1] and mine.continuing("ab") == [3]


def test_groups_end_where_a_word_begins() -> None:
    """A space begins a group, and a special token is one by itself."""
    assert list(vocabulary().groups([0, 1, 4, 1, 5, 2, 2, 0])) == [[0, 1], [4, 1], [5], [2, 2, 0]]


def test_what_two_vocabularies_share() -> None:
    """Tokens of one text, and special ones of one name, wherever they stand."""
    theirs = Vocabulary(Pieces(["<stop>", "ab", "c", "a"], end=0), 4)
    assert sorted(shared(vocabulary(), theirs)) == [(0, 3), (3, 1), (5, 0)]


class Endless(Pieces):
    """A tokenizer that doesn't say how many tokens it has."""

    __len__ = None  # type: ignore[assignment]


def test_a_tokenizer_without_a_length() -> None:
    with pytest.raises(ForetokenError, match="The tokenizer Endless has no length"):
        _ = Vocabulary(Endless(PIECES, end=5), len(PIECES)).texts


def test_groups_are_bounded() -> None:
    """Also where no word begins, so that a step is never long."""
    assert [len(group) for group in vocabulary().groups([0] * 70)] == [32, 32, 6]


class Alike(Pieces):
    """A tokenizer whose texts begin and end with the same token."""

    bos_token_id = 5


def test_a_token_that_begins_and_ends_texts_is_an_end() -> None:
    assert Vocabulary(Alike(PIECES, end=5), len(PIECES)).special == {5: "<eos>"}


def test_tokens_that_the_model_lacks() -> None:
    """Special ones among them are left out; those that only the model has have no text."""
    few, many = (Vocabulary(Pieces(PIECES, end=5), size) for size in (5, 8))
    assert few.special == {} and few.texts == PIECES[:5]
    assert Vocabulary(Pieces(PIECES, end=5), 3).starting("abb") == [1]
    assert many.texts == [*PIECES[:5], None, None, None]


def test_of_several_tokens_of_one_text_the_last_counts() -> None:
    """Single bytes come first."""
    assert Vocabulary(Pieces(["a", "b", "a"]), 3).ids == {"a": 2, "b": 1}


class Joining(Pieces):
    """Leaves out a space after a letter."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return super().__call__(text.replace("a ", "a"))


def test_text_after_other_text_is_all_there() -> None:
    """After another character, where the tokenizer would leave out some of it after a letter."""
    mine = Vocabulary(Joining(["a", "b", " ", "\n"]), 4)
    assert mine.continuing(" b") == [2, 1]
