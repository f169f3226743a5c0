"""Texts of a request as token ids, and pairs of prompts and continuations."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

from engines import BYTES
from foretoken import ForetokenError, SamplingParams
from foretoken.engine.encoded import encoded, paired


def ids(text: str) -> list[int]:
    """Without special tokens."""
    found: list[int] = BYTES(text, add_special_tokens=False)["input_ids"]
    return found


def test_references_become_ids() -> None:
    """Those that are ids stay; the caller's parameters are not touched."""
    params = SamplingParams(references=["ab", [1, 2]])
    found = encoded("hey", params, BYTES)
    assert found.text == "hey" and found.ids == BYTES("hey")["input_ids"]
    assert [list(text) for text in found.params.references] == [ids("ab"), [1, 2]]
    assert params.references == ("ab", (1, 2))
    plain = SamplingParams()
    assert encoded([1, 2], plain, None) == ([1, 2], None, plain)


def test_no_more_is_read_than_is_of_use() -> None:
    """Of a prompt and of a prediction that are far too long."""
    params = SamplingParams(prediction="b" * 9_000)
    for most, read in ((None, 9_000), (100, 1_200)):
        found = encoded("a" * 9_000, params, BYTES, most)
        assert (len(found.ids), len(found.params.prediction or ())) == (read, read)


class Words:
    """A tokenizer of few texts; a space changes a word's first token, or adds one."""

    IDS: ClassVar = {"bad": [3], " bad": [4], "so bad": [5, 3], " so bad": [6, 3], "ab": [7, 8]}
    IDS |= {" ab": [9, 7, 8], "own": [2], " own": [2], "": [], " ": [1]}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": list(self.IDS[text])}


def test_bad_words_become_ids() -> None:
    """As in vLLM: each text alone, and after a space where only its first token differs then."""

    def ids_of(*words: Any) -> Any:
        return encoded([1], SamplingParams(bad_words=words), Words()).params.bad_words

    assert ids_of("bad") == ids_of("  bad") == ((3,), (4,))
    assert ids_of("so bad", [1, 2]) == ((5, 3), (6, 3), (1, 2))
    assert ids_of("ab", "own") == ((7, 8), (2,))
    with pytest.raises(ForetokenError, match="bad_words has ' ', a text without a token"):
        ids_of(" ")
    with pytest.raises(ForetokenError, match="no tokenizer"):
        encoded([1], SamplingParams(bad_words=["bad"]), None)


def test_a_prompts_own_salt() -> None:
    """It stands before the parameters', which are of all prompts of a call."""
    params = SamplingParams(cache_salt="all")
    for given, salt in (({"cache_salt": "own"}, "own"), ({}, "all")):
        found = encoded({"prompt_token_ids": [1], **given}, params, None)
        assert found.ids == [1] and found.params.cache_salt == salt


def test_schemas_are_read_here() -> None:
    """And not on the engine's thread, which a large one would hold up."""
    with pytest.raises(ForetokenError, match="no JSON"):
        encoded([1], SamplingParams(structured_outputs={"json": "{"}), None)


def test_pairs() -> None:
    """A text, ids, a mapping; one alone or several."""
    assert paired([1, 2], [3], None) == ([([1, 2], [3])], True)
    assert paired([[1, 2]], [[3]], None) == ([([1, 2], [3])], False)
    pairs, alone = paired(["ab", {"prompt_token_ids": [4]}], ["c", "d"], BYTES)
    assert not alone and pairs == [(BYTES("ab")["input_ids"], ids("c")), ([4], ids("d"))]


class Llama:
    """A tokenizer of words with the space before them, that puts a space before a text, and a token
    before that."""

    def __init__(self) -> None:
        self.words: list[str] = ["<s>"]

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        found = re.findall(r" [^ ]+| ", f" {text}")
        self.words += [word for word in dict.fromkeys(found) if word not in self.words]
        return {"input_ids": [0] * add_special_tokens + [self.words.index(word) for word in found]}


def test_a_continuation_stands_after_its_prompt() -> None:
    """It has the tokens that it has there, with one space and not with two, unless that would
    change the prompt's."""
    tokenizer = Llama()

    def words(prompt: Any, text: str) -> tuple[list[str], ...]:
        [pair], _ = paired([prompt], [text], tokenizer)
        return tuple([tokenizer.words[token] for token in ids] for ids in pair)

    assert words("the house", " is red") == (["<s>", " the", " house"], [" is", " red"])
    assert words({"prompt": "the"}, " is") == (["<s>", " the"], [" is"])
    assert words("the house", "s are") == (["<s>", " the", " house"], [" s", " are"])
    assert words([0], "is") == (["<s>"], [" is"])


@pytest.mark.parametrize(
    ("prompts", "continuations", "said"),
    [
        ([[1]], [[2], [3]], "There are 1 prompts and 2 continuations"),
        ([1], [[2]], "give one alone of each"),
        ([[1], [2]], [[3], []], "A prompt or its continuation is empty"),
        ({"prompt_token_ids": []}, [1], "A prompt or its continuation is empty"),
        ("a", "b", "no tokenizer"),
        (3, [1], "prompts is 3"),
    ],
)
def test_what_is_no_pair(prompts: Any, continuations: Any, said: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError, match=said):
        paired(prompts, continuations, None)
