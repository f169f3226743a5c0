"""Where a text ends: the first place at which a token, a string or a limit ends it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from engines import BYTES
from foretoken import ForetokenError, SamplingParams
from foretoken.engine.stopping import (
    OutputText,
    StopChecker,
    TextTracker,
    decoded,
    decoded_after,
)

LETTERS = st.sampled_from(["a", "b", "ab", "é", "€", "😀", " "])


WORDS = st.lists(LETTERS, min_size=1, max_size=12).map("".join)


def reference_end(
    tokens: list[int], stops: list[str], ends: set[int], limit: int, minimum: int
) -> tuple[int, str]:
    """Token by token: how many are emitted, and why it ends there."""
    for length in range(1, len(tokens) + 1):
        text = BYTES.decode(tokens[:length]).rstrip("\ufffd")
        before = BYTES.decode(tokens[: length - 1]).rstrip("\ufffd")
        fresh = any(text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in stops)
        if fresh and text != before and length > minimum:
            return length, "stop"
        if tokens[length - 1] in ends:
            return length, "stop"
        if length >= limit:
            return length, "length"
    return len(tokens), ""


def test_an_end_of_text_has_no_reason() -> None:
    """Also where it is among the stop tokens, as in vLLM; unless it is no end of text."""
    params = SamplingParams(stop_token_ids=[5])
    assert StopChecker(params, frozenset({5}), 100).check([7, 5]).stop_reason is None
    params = SamplingParams(stop_token_ids=[5], ignore_eos=True)
    assert StopChecker(params, frozenset({5}), 100).check([7, 5]).stop_reason == 5


@settings(max_examples=200, deadline=None)
@given(
    WORDS,
    st.lists(WORDS.map(lambda w: w[:3]), max_size=3),
    st.sets(st.integers(0, 130), max_size=2),
    st.integers(1, 30),
    st.integers(0, 5),
    st.lists(st.integers(1, 5), min_size=40, max_size=40),
)
def test_ends_are_found_token_by_token(
    text: str, stops: list[str], ends: set[int], limit: int, minimum: int, cuts: list[int]
) -> None:
    """However the text is cut into blocks: the end is the first place where a token ends it.

    Stop strings straddle tokens and blocks here, and characters are several tokens long.
    """
    tokens = BYTES.encode(text)
    length, reason = reference_end(tokens, stops, ends, limit, minimum)
    params = SamplingParams(
        stop=stops, stop_token_ids=sorted(ends), min_tokens=minimum, max_tokens=40
    )
    checker, at = StopChecker(params, frozenset(), limit, BYTES), 0
    for size in cuts:
        block = tokens[at : at + size]
        if not block:
            assert (at, reason) == (length, "")
            return
        ending = checker.check(block)
        at += ending.emitted
        if ending.finish_reason:
            assert (at, ending.finish_reason) == (length, reason)
            return


@pytest.mark.parametrize("include", [False, True])
def test_the_text_ends_with_or_before_the_stop_string(include: bool) -> None:
    """The earliest of several stop strings cuts the text; it is named, and kept if asked for."""
    params = SamplingParams(stop=["wor", "orld", "o w"], include_stop_str_in_output=include)
    checker = StopChecker(params, frozenset(), 100, BYTES)
    ending = checker.check(BYTES.encode("hello world"))
    assert (ending.emitted, ending.finish_reason, ending.stop_reason) == (7, "stop", "o w")
    assert ending.text == ("hello w" if include else "hell")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 256), max_size=20), st.booleans())
def test_tracked_text_is_the_decoded_text(tokens: list[int], skip: bool) -> None:
    """Growing token by token, broken bytes and all, ends at the text of the whole; never ahead."""
    tracker = TextTracker(BYTES, skip)
    for token in tokens:
        before = tracker.text
        new = tracker.append(token)
        assert tracker.text == before + new
    assert tracker.finish() == BYTES.decode(tokens, skip_special_tokens=skip)


def test_stop_tokens_beside_the_end_of_text() -> None:
    """Each ends a text, also in a block that has only one of them."""
    for block, reason in (([7, 8, 9], 8), ([7, 5, 9], None)):
        checker = StopChecker(SamplingParams(stop_token_ids=[8]), frozenset({5}), 100)
        ending = checker.check(block)
        assert (ending.emitted, ending.finish_reason, ending.stop_reason) == (2, "stop", reason)


def test_of_two_stop_strings_the_earlier_one_cuts() -> None:
    """Where one token completes both."""
    for stops in (["c", "bc"], ["bc", "c"]):
        checker = StopChecker(SamplingParams(stop=stops), frozenset(), 100, BYTES)
        ending = checker.check(BYTES.encode("abcd"))
        assert (ending.emitted, ending.stop_reason, ending.text) == (3, "bc", "a")


class Spaced:
    """A tokenizer of words, each with a space before it that a text's first one loses."""

    def decode(self, ids: list[int], **options: object) -> str:
        return "".join(f" w{token}" for token in ids)[1:]


def test_spaces_between_words_stay() -> None:
    """A token is decoded after the one before it, not alone."""
    tracker = TextTracker(Spaced(), False)
    whole = Spaced().decode([*range(40)])
    assert [tracker.append(token) for token in range(40)] == [
        f"{' ' * (token > 0)}w{token}" for token in range(40)
    ]
    assert tracker.text == tracker.finish() == whole


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 256), max_size=9), max_size=9), st.booleans())
def test_tokens_that_come_together(blocks: list[list[int]], skip: bool) -> None:
    """The text after each block is what it is token by token."""
    together, apart = TextTracker(BYTES, skip), TextTracker(BYTES, skip)
    for block in blocks:
        together.extend(block)
        for token in block:
            apart.append(token)
        assert together.text == apart.text
    assert together.finish() == apart.finish()


@pytest.mark.parametrize("given", [b"x", None, 5])
def test_a_decode_that_gives_no_text(given: object) -> None:
    """It is the tokenizer that is named."""
    tokenizer = SimpleNamespace(decode=lambda *_, **__: given)
    with pytest.raises(ForetokenError, match="The tokenizer's decode gave back"):
        decoded(tokenizer, [1], True)
    with pytest.raises(ForetokenError, match="must be a text"):
        TextTracker(tokenizer, True).append(1)


class Llama:
    """A tokenizer of a few pieces, that writes texts as Llama 2's and Mistral's do."""

    PIECES = ("▁a", "▁b", "c", "▁", "<s>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>")
    STEPS = (
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    )

    def decode(self, ids: list[int], **options: object) -> str:
        pieces = [self.PIECES[token] for token in ids if token != 4]
        return decoders.Sequence(list(self.STEPS)).decode(pieces)


class Stripping:
    """A tokenizer of pieces that drops white space at both ends of a text, as Marian's does."""

    PIECES = ("▁a", "b", "▁", "\n", "<s>")

    def decode(self, ids: list[int], skip_special_tokens: bool, **options: object) -> str:
        pieces = [self.PIECES[token] for token in ids if token != 4 or not skip_special_tokens]
        return "".join(pieces).replace("▁", " ").strip()


PIECES = st.lists(st.integers(0, 4), max_size=20)


@settings(max_examples=150, deadline=None)
@given(PIECES, PIECES, st.booleans())
def test_white_space_that_a_text_does_not_end_with(
    before: list[int], tokens: list[int], skip: bool
) -> None:
    """It comes with the next text, if there is one."""
    whole = Stripping().decode([*before, *tokens], skip)
    tracker = TextTracker(Stripping(), skip, before)
    shown = "".join(map(tracker.append, tokens))
    assert Stripping().decode(before, skip) + shown == whole
    assert shown == tracker.finish() == decoded_after(Stripping(), before, tokens, skip)


def test_a_space_that_comes_alone() -> None:
    tracker = TextTracker(Stripping(), True)
    shown = [tracker.append(token) for token in (4, 2, 0, 2, 4, 3, 1)]
    assert shown == ["", "", "a", "", "", "", " \nb"]


PARTS = st.sampled_from([[0], [1], [2], [3], [4], [5, 6, 7, 8]])
TOKENS = st.lists(PARTS, max_size=9).map(lambda parts: [token for part in parts for token in part])


@settings(max_examples=150, deadline=None)
@given(TOKENS, TOKENS)
def test_a_text_goes_on_from_what_is_before_it(before: list[int], tokens: list[int]) -> None:
    """Spaces and all: the two together are the text of all tokens."""
    whole = Llama().decode([*before, *tokens])
    added = decoded_after(Llama(), before, tokens, True)
    assert Llama().decode(before) + added == whole
    tracker = TextTracker(Llama(), True, before)
    assert "".join(map(tracker.append, tokens)) == tracker.text == tracker.finish() == added


@settings(max_examples=150, deadline=None)
@given(WORDS, st.integers(0, 30))
def test_a_character_that_was_begun_before(text: str, cut: int) -> None:
    tokens = BYTES.encode(text)
    before, rest = tokens[: cut % len(tokens)], tokens[cut % len(tokens) :]
    begun = BYTES.decode(before).rstrip("\ufffd")
    assert begun + decoded_after(BYTES, before, rest, True) == text
    tracker = TextTracker(BYTES, True, before)
    tracker.extend(rest)
    assert begun + tracker.text == text


class Bytewise:
    """A tokenizer of bytes, a word, a special token and a space, that writes texts as Llama 2's
    does: where one byte of several is broken, all are. Counts the tokens that it is given."""

    WORD, SPECIAL, SPACE = 256, 257, 258
    read = 0

    def decode(self, ids: list[int], skip_special_tokens: bool, **options: object) -> str:
        self.read += len(ids)
        others = {self.WORD: "▁ab", self.SPECIAL: "<s>", self.SPACE: "▁"}
        kept = [i for i in ids if not (skip_special_tokens and i == self.SPECIAL)]
        pieces = [others.get(i, f"<0x{i:02X}>") for i in kept]
        return decoders.Sequence(list(Llama.STEPS)).decode(pieces)


@pytest.mark.parametrize(
    ("tokens", "text", "rest"),
    [
        ([*"a😀😀😀".encode()[:-1]], "a😀😀", "\ufffd" * 3),
        ([*"😀".encode(), 0xFF, Bytewise.WORD], "😀\ufffd ab", ""),
        ([*"😀".encode(), 0xFF, 0xFF], "😀", "\ufffd" * 2),
    ],
    ids=["cut off", "in the middle", "at the end"],
)
def test_broken_bytes_after_whole_characters(tokens: list[int], text: str, rest: str) -> None:
    """What was shown stays in the whole text: these characters are complete."""
    assert decoded_after(Bytewise(), (), tokens, True) == text + rest
    tracker = TextTracker(Bytewise(), True)
    assert "".join(map(tracker.append, tokens)) == tracker.text == text
    assert tracker.finish() == text + rest


BROKEN = st.sampled_from([[0x80], [0xF0], [0xFF], [256], [257], [258], [*"😀".encode()], [97]])


@settings(max_examples=200, deadline=None)
@given(st.lists(BROKEN, max_size=30), st.lists(st.integers(0, 12), max_size=30), st.booleans())
def test_parts_add_up_to_the_whole(parts: list[list[int]], cuts: list[int], skip: bool) -> None:
    """However a text with broken bytes comes: token by token, in blocks, or whole."""
    tokens, at = [token for part in parts for token in part], 0
    together, apart = TextTracker(Bytewise(), skip), TextTracker(Bytewise(), skip)
    for size in [*cuts, len(tokens)]:
        block = tokens[at : at + size]
        at += size
        together.extend(block)
        shown = apart.text
        assert shown + "".join(map(apart.append, block)) == apart.text
        assert together.text == apart.text
    whole = decoded_after(Bytewise(), (), tokens, skip)
    assert whole == together.finish() == apart.finish()
    half = len(tokens) // 2
    output = OutputText(Bytewise(), skip, ())
    output.read(tokens[:half], 1)
    assert whole == output.whole(tokens[:half], tokens[half:]) == output.whole(tokens)
    decoded_whole = Bytewise().decode(tokens, skip)
    if "\ufffd" not in decoded_whole:
        assert whole == decoded_whole


@pytest.mark.parametrize(
    "tokens",
    [[0x80] * 600, [257] * 600, [258, *[257] * 600], [256, *[257] * 600], [0xF0, 257] * 300],
    ids=["bytes", "special", "after a space", "after a word", "both"],
)
def test_text_that_does_not_come(tokens: list[int]) -> None:
    """Is not decoded again with each token: everybody waits for one who looks for a stop string."""
    tokenizer = Bytewise()
    tracker = TextTracker(tokenizer, True)
    for token in tokens:
        tracker.append(token)
    assert tokenizer.read < 50 * len(tokens)
    assert tracker.finish() == decoded_after(tokenizer, (), tokens, True)
    assert tracker.finish().count("\ufffd") == sum(token < 256 for token in tokens)
