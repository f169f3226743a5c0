"""Log-probabilities of the tokens that are emitted, and the tokens' texts.

Legend: T emitted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from typing import Any

from torch import Tensor

from foretoken.engine.outputs import Logprob, RequestOutput
from foretoken.engine.stopping import decoded
from foretoken.errors import caught


class TokenTexts:
    """The text of a token, alone; None without a tokenizer, or where that can't decode it, as ids
    are that pad a vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # A long prompt's likeliest tokens are many times the same, and all requests wait for them.
        self._known: dict[int, str | None] = {}

    def __call__(self, token: int) -> str | None:
        if token not in self._known:
            self._known[token] = self._alone(token)
        return self._known[token]

    def _alone(self, token: int) -> str | None:
        """One that begins with a space, or is one, shows it, though a tokenizer that reads words
        would leave it out at the beginning of a text."""
        if self._tokenizer is None:
            return None
        with suppress(caught()):
            alone = decoded(self._tokenizer, [token], False)
            both = decoded(self._tokenizer, [token, token], False)
            return f" {alone}" if both == f"{alone} {alone}" else alone
        return None


def continuation_logprobs(output: RequestOutput, start: int) -> list[float]:
    """The log-probabilities of the prompt's tokens from place `start` on, at least 1."""
    entries_of = output.prompt_logprobs or []
    tokens = output.prompt_token_ids[start:]
    return [
        entry[token].logprob
        for token, entry in zip(tokens, entries_of[start:], strict=True)
        if entry is not None
    ]


def log_probabilities(logits: Tensor) -> Tensor:
    """Raw log-probabilities of [..., V] logits, as vLLM's default `raw_logprobs` reports them."""
    wide = logits if logits.itemsize > 4 else logits.float()
    return wide.log_softmax(-1)


def entries(
    logits: Tensor, tokens: Seq[int], wanted: int, text_of: Callable[[int], str | None]
) -> Iterator[tuple[dict[int, Logprob], float]]:
    """For each of T tokens, sampled at raw logits [T, V]: the likeliest `wanted` tokens and the
    token itself with their log-probabilities, ranks and texts; and the token's own
    log-probability."""
    logprobs = log_probabilities(logits)
    top = logprobs.topk(max(1, wanted), -1)
    for row, token in enumerate(tokens):
        logprob = float(logprobs[row, token])
        rank = int((logprobs[row] > logprob).sum()) + 1
        ids, values = top.indices[row, :wanted].tolist(), top.values[row, :wanted].tolist()
        entry = {
            other: Logprob(value, place, text_of(other))
            for place, (other, value) in enumerate(zip(ids, values, strict=True), 1)
        }
        entry.setdefault(token, Logprob(logprob, rank, text_of(token)))
        yield entry, logprob
