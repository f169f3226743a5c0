"""How tokens are spelled beside their log-probabilities."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from foretoken.engine.outputs import Logprob
from foretoken.serve.logprobs import LOWEST, Spelling
from foretoken.testing import ByteTokenizer
from json_tokenizer import ids, tokenizer

A, B = 65, 66


class Counting(ByteTokenizer):
    """Counts what it is asked."""

    decoded = 0

    def decode(self, *given: Any, **options: Any) -> str:
        self.decoded += 1
        return super().decode(*given, **options)


class Words:
    """A tokenizer that leaves out the space of a text's first word."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join("word" for _ in ids)


def test_tokens() -> None:
    bytewise = Spelling(ByteTokenizer(257))
    assert bytewise.token(A) == "a"
    assert Spelling(ByteTokenizer(257), as_ids=True).token(A) == f"token_id:{A}"
    assert Spelling(None).token(A) == f"token_id:{A}"
    assert Spelling(Words()).token(1) == " word"


def test_both_spellings() -> None:
    spelling = Spelling(ByteTokenizer(257))
    entry = {B: Logprob(-0.1, 1), A: Logprob(float("-inf"), 9)}
    chat = spelling.chat([A], [entry], 1)["content"][0]
    assert chat["token"] == "a" and chat["logprob"] == LOWEST and chat["bytes"] == [97]
    assert [other["token"] for other in chat["top_logprobs"]] == ["b"]
    told = spelling.completion([B, A], [None, entry], 1, [4, 5])
    assert told["text_offset"] == [4, 5] and told["token_logprobs"] == [None, LOWEST]
    assert told["top_logprobs"] == [None, {"b": -0.1, "a": LOWEST}]


def test_tokens_that_are_spelled_alike() -> None:
    """As parts of characters are: the one that was written is told, else the likeliest."""
    spelling, (one, two, three) = Spelling(ByteTokenizer(257)), (200, 201, 202)
    entry = {one: Logprob(-0.5, 1), two: Logprob(-1.0, 2), three: Logprob(-7.0, 80)}
    told = spelling.completion([one, two, three], [entry] * 3, 2, [0] * 3)
    assert told["tokens"] == ["\ufffd"] * 3
    assert told["top_logprobs"] == [{"\ufffd": -0.5}, {"\ufffd": -1.0}, {"\ufffd": -7.0}]
    written = spelling.completion([A], [entry | {A: Logprob(-2.0, 3)}], 2, [0])
    assert written["top_logprobs"] == [{"\ufffd": -0.5, "a": -2.0}]


def test_no_more_tokens_are_told_than_asked_for() -> None:
    """Of those that are as likely, and so have one rank, the first."""
    entry = {A: Logprob(-0.7, 1), B: Logprob(-0.7, 1)}
    [told] = Spelling(ByteTokenizer(257)).chat([A], [entry], 1)["content"]
    assert [other["token"] for other in told["top_logprobs"]] == ["a"]


def test_a_token_is_spelled_once() -> None:
    """In however many places of a long prompt it stands."""
    tokenizer = Counting(257)
    spelling, entry = Spelling(tokenizer), {A: Logprob(-0.1, 1), B: Logprob(-2.0, 2)}
    spelling.completion([A, B] * 500, [entry] * 1000, 2, range(1000))
    spelling.prompt([entry] * 1000)
    assert tokenizer.decoded == 4


def joined(spelling: Spelling, tokens: list[int]) -> bytes:
    """What a client makes of the tokens of a chat."""
    entries = [{token: Logprob(-0.1, 1)} for token in tokens]
    told = spelling.chat(tokens, entries, 0)["content"]
    return b"".join(bytes(entry["bytes"]) for entry in told)


def test_parts_of_a_character_have_their_bytes() -> None:
    """Also where the text has the very character that stands for what is broken."""
    bytewise = tokenizer()
    for text in ("🙂", "\ufffd", "name: é 🙂", "a\n"):
        assert joined(Spelling(bytewise), ids(text)) == text.encode()
    assert len(ids("🙂")) == 4


def test_bytes_as_sentencepiece_names_them() -> None:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\ufffd": 256, "▁a": 257}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(parts)
    spelling = Spelling(PreTrainedTokenizerFast(tokenizer_object=made))
    assert joined(spelling, [257, *"🙂".encode(), 256]) == " a🙂\ufffd".encode()


def test_a_tokenizer_that_does_not_tell_bytes() -> None:
    entry = {200: Logprob(-0.1, 1)}
    [told] = Spelling(ByteTokenizer(257)).chat([200], [entry], 0)["content"]
    assert told["token"] == "\ufffd" and told["bytes"] is None
