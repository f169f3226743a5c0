"""How tokens are spelled beside their log-probabilities."""

from __future__ import annotations

from typing import Any

from foretoken.engine.outputs import Logprob
from foretoken.serve.logprobs import LOWEST, Spelling
from foretoken.testing import ByteTokenizer

A, B = 65, 66


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
    told = spelling.completion([B, A], [None, entry], 1, 4)
    assert told["text_offset"] == [4, 5] and told["token_logprobs"] == [None, LOWEST]
    assert told["top_logprobs"] == [None, {"b": -0.1, "a": LOWEST}]
