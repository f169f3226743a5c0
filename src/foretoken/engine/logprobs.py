"""Log-probabilities of the tokens that are emitted.

Legend: T emitted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from torch import Tensor

from foretoken.engine.outputs import Logprob, RequestOutput


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
    logits: Tensor, tokens: Seq[int], wanted: int
) -> Iterator[tuple[dict[int, Logprob], float]]:
    """For each of T tokens, sampled at raw logits [T, V]: the likeliest `wanted` tokens and the
    token itself with their log-probabilities and ranks; and the token's own log-probability."""
    logprobs = log_probabilities(logits)
    top = logprobs.topk(max(1, wanted), -1)
    for row, token in enumerate(tokens):
        logprob = float(logprobs[row, token])
        rank = int((logprobs[row] > logprob).sum()) + 1
        ids, values = top.indices[row, :wanted].tolist(), top.values[row, :wanted].tolist()
        entry = {
            other: Logprob(value, place)
            for place, (other, value) in enumerate(zip(ids, values, strict=True), 1)
        }
        entry.setdefault(token, Logprob(logprob, rank))
        yield entry, logprob
