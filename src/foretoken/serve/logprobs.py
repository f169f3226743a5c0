"""Log-probabilities in the two spellings: of chats, and of completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import cache, cached_property
from typing import Any

from foretoken.engine.logprobs import TokenTexts
from foretoken.engine.outputs import Logprob
from foretoken.models.gguf.tokenizer import alphabet

LOWEST = -9999.0
"""What stands for a probability of 0, as JSON has no infinity."""

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no whole character
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")

Entry = Mapping[int, Logprob] | None
"""A token's, with the likeliest others of its place; None for the first of a prompt."""


class Spelling:
    """Tokens as texts, or as "token_id:7"."""

    def __init__(self, tokenizer: Any, as_ids: bool = False) -> None:
        self._tokenizer, self._text_of = tokenizer, TokenTexts(None if as_ids else tokenizer)

    def token(self, token: int) -> str:
        """A token's text, alone; one that has none by its id."""
        text = self._text_of(token)
        return f"token_id:{token}" if text is None else text

    def chat(self, tokens: Seq[int], entries: Seq[Entry], top: int) -> dict[str, Any]:
        """A chat's `logprobs`: of each token written, and of the `top` likeliest in its place."""
        content = []
        for token, entry in zip(tokens, entries, strict=True):
            known = entry or {}
            others = [self._spelled(other, known[other]) for other in _likeliest(known, top)]
            content.append({**self._spelled(token, known[token]), "top_logprobs": others})
        return {"content": content, "refusal": None}

    def completion(
        self, tokens: Seq[int], entries: Seq[Entry], top: int, offsets: Seq[int]
    ) -> dict[str, Any]:
        """A completion's `logprobs`; offsets: where its tokens begin in the text."""
        pairs = list(zip(tokens, entries, strict=True))
        return {
            "tokens": [self.token(token) for token in tokens],
            "token_logprobs": [None if e is None else _bounded(e[t]) for t, e in pairs],
            "top_logprobs": [None if e is None else self._top(t, e, top) for t, e in pairs],
            "text_offset": list(offsets),
        }

    def prompt(self, entries: Seq[Entry]) -> list[dict[str, Any] | None]:
        """A prompt's, in vLLM's spelling: token id -> its log-probability, rank and text."""
        return [None if entry is None else self._ranked(entry) for entry in entries]

    def _ranked(self, entry: Mapping[int, Logprob]) -> dict[str, Any]:
        return {
            str(token): {
                "logprob": _bounded(value),
                "rank": value.rank,
                "decoded_token": self.token(token),
            }
            for token, value in entry.items()
        }

    def _top(self, token: int, entry: Mapping[int, Logprob], top: int) -> dict[str, float]:
        """By text. Of tokens that are spelled alike, as parts of characters are, the one that was
        written counts, else the likeliest."""
        told: dict[str, float] = {}
        for other in _likeliest(entry, top):
            told.setdefault(self.token(other), _bounded(entry[other]))
        return told | {self.token(token): _bounded(entry[token])}

    def _spelled(self, token: int, logprob: Logprob) -> dict[str, Any]:
        text = self.token(token)
        return {"token": text, "logprob": _bounded(logprob), "bytes": self._bytes(token, text)}

    def _bytes(self, token: int, text: str) -> list[int] | None:
        """A token's bytes, by which clients join the parts of a character; None for a part of one
        whose bytes the tokenizer doesn't tell."""
        if _BROKEN in text:
            if not self._decoder:
                return None
            piece = self._tokenizer.convert_ids_to_tokens(token)
            if '"ByteLevel"' in self._decoder and _by_character().keys() >= set(piece):
                return [_by_character()[character] for character in piece]
            if '"ByteFallback"' in self._decoder and (byte := _BYTE.fullmatch(piece)):
                return [int(byte[1], 16)]
        return list(text.encode())

    @cached_property
    def _decoder(self) -> str:
        """What makes texts of a tokenizer's pieces, as JSON; "" for one that isn't of the package
        tokenizers."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = None if backend is None else backend.decoder
        return "" if decoder is None else decoder.__getstate__().decode()


@cache
def _by_character() -> dict[str, int]:
    """Bytes by the characters that byte-level tokenizers write for them."""
    return {character: byte for byte, character in alphabet().items()}


def _likeliest(entry: Mapping[int, Logprob], top: int) -> list[int]:
    return [token for token, logprob in entry.items() if logprob.rank <= top][:top]


def _bounded(logprob: Logprob) -> float:
    return max(logprob.logprob, LOWEST)
