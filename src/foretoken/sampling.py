"""Sampling parameters, and the one function that folds them into probabilities.

Target and drafter use the same `fold`, so a verifier only ever compares like with like.
Temperature 0 is a one-hot, so greedy decoding is not a case of its own.

The order is vLLM's: allowed ids, bad ids, minimum length, logit bias, user processors, penalties,
temperature, min_p, top_k, top_p. Sources of the parts: top-k (Fan et al. 2018), nucleus (Holtzman
et al. 2020), min-p (Nguyen et al. 2024), repetition penalty (Keskar et al. 2019, section 4.1).

Legend: B sequences, M places (slots of a pass), V vocabulary, K kept candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from foretoken.errors import ForetokenError

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""As in transformers: (input_ids [rows, length], scores [rows, V]) -> scores [rows, V]."""

Contexts = Callable[[], list[list[list[int]]]]
"""Host lists [batch][place] of the draft tokens between a sequence's end and each place."""


_COLDEST = 1e-30  # what a logit divided by less than this would overflow; one-hot long before
_CACHED = 1 << 18  # numbers that are worked on at a time on a CPU
_TRIED, _MORE = 256, 16  # tokens looked at first in place of a whole sort, and how many times more


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends; names and defaults are vLLM's.

    Attributes:
        n: how many samples; they share the prompt's cache.
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set with at least this probability.
        min_p: keep tokens at least this share of the likeliest one's probability.
        repetition_penalty: divides (multiplies) positive (negative) logits of tokens in the prompt
            or output; 1 is off.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence, for output tokens.
        logit_bias: token id -> number added to its logit.
        allowed_token_ids: only these may be written.
        bad_token_ids: these are never written.
        logits_processors: callables (input_ids [1, length], scores [1, V]) -> scores.
        seed: makes the request repeatable; None takes a new one from the system.
        stop: the text ends before the first of these strings.
        include_stop_str_in_output: keep the stop string in the text.
        stop_token_ids: end the sequence like end-of-text.
        ignore_eos: write on behind end-of-text.
        max_tokens, min_tokens: bounds on the number of output tokens; None is up to the context.
        logprobs: how many log-probabilities per token to return (of the raw logits), or None.
        skip_special_tokens: leave them out of the text.
        references: texts or token ids that the output may repeat, for methods that copy (documents,
            the sentence to correct, a predicted output). They change the speed only.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Seq[int] | None = None
    bad_token_ids: Seq[int] | None = None
    logits_processors: Seq[LogitsProcessor] = ()
    seed: int | None = None
    stop: str | Seq[str] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Seq[int] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    skip_special_tokens: bool = True
    references: Seq[str | Seq[int]] = ()

    def __post_init__(self) -> None:
        checks = {
            "n": (self.n >= 1, "at least 1"),
            "temperature": (self.temperature >= 0, "at least 0 (0 is greedy)"),
            "top_k": (self.top_k >= -1, "at least 1, or 0 to keep all"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0 (1 is off)"),
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            "min_tokens": (0 <= self.min_tokens <= (self.max_tokens or self.min_tokens),
                           "between 0 and max_tokens"),
            "logprobs": (self.logprobs is None or self.logprobs >= 0, "at least 0, or None"),
            "allowed_token_ids": (self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                                  "None or a list with at least one id"),
            "stop": ("" not in self.stops, "strings that are not empty"),
            "references": (not any(isinstance(x, int) for x in self.references)
                           and not isinstance(self.references, str),
                           "a list of texts or of lists of token ids"),
        }  # fmt: skip
        for name, (holds, expected) in checks.items():
            if not holds:
                raise ForetokenError(f"{name} is {getattr(self, name)!r}; it must be {expected}.")

    @cached_property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @cached_property
    def penalises(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @cached_property
    def reads_context(self) -> bool:
        """Whether the law at a place depends on which tokens stand before it."""
        return self.penalises or bool(self.logits_processors) or self.min_tokens > 0

    @cached_property
    def edits(self) -> bool:
        """Whether logits are changed before temperature."""
        lists = (self.logit_bias, self.allowed_token_ids, self.bad_token_ids)
        return self.reads_context or any(x is not None for x in lists)


@dataclass(slots=True)
class PenaltyCounts:
    """Running counts of a sequence's tokens, so that a step costs the new tokens only."""

    seen: int = 0
    prompt: Tensor | None = None  # [V] bool
    output: Tensor | None = None  # [V] counts


class Sampled(Protocol):
    """What `fold` reads of a sequence."""

    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    end_ids: frozenset[int]
    penalty: PenaltyCounts


@dataclass(slots=True)
class Folded:
    """The laws of a pass.

    sure [B, M]: where every law is a point mass, the tokens that they are on; else None. bad [B, M]
    marks places without a law (NaN, or every token forbidden).
    """

    logits: Tensor
    law: Tensor | None
    bad: Tensor
    sure: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """[B, M, V]; point masses are written out when they are first asked for."""
        if self.law is None:
            assert self.sure is not None
            self.law = _one_hot(self.logits, self.sure)
        return self.law


def fold(logits: Tensor, sequences: Seq[Sampled], contexts: Contexts) -> Folded:
    """Turn raw logits [B, M, V] into the law each sequence samples from, place by place.

    `contexts` is called only if some sequence's law depends on the tokens before a place.
    Half-precision logits are folded in float32.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if any(s.params.edits for s in sequences):
        logits = _edited(logits, sequences, contexts)
    if all(s.params.greedy for s in sequences):
        top = likeliest(logits)
        peak = logits.gather(-1, top[..., None])[..., 0]  # NaN, if there is one, wins a maximum
        return Folded(logits, None, peak.isfinite().logical_not_(), top)
    probs, peak = _sampling_law(logits, sequences)
    bad = ~torch.isfinite(peak)
    greedy = [s.params.greedy for s in sequences]
    if any(greedy):
        rows = torch.tensor(greedy, device=logits.device)
        probs[rows] = _one_hot(logits[rows], likeliest(logits[rows]))
    # A place without a law gets some law, so that a NaN can't leak into a neighbour's arithmetic.
    # On a CPU asking is free, and saves a pass over all laws.
    if bad.device.type != "cpu" or bool(bad.any()):
        probs.masked_fill_(bad[..., None], 0)[..., 0] += bad
    return Folded(logits, probs, bad)


def best(logits: Tensor, sequences: Seq[Sampled], contexts: Contexts) -> Tensor:
    """The token [B, M] that `fold` puts all mass on at temperature 0, without the laws."""
    if any(s.params.edits for s in sequences):
        logits = _edited(logits, sequences, contexts)
    return likeliest(logits)


def likeliest(logits: Tensor) -> Tensor:
    """The first of the highest [..., V], or of the NaN if there are any: int64 [...].

    On a CPU by numpy, whose search is vectorised: 13 places of 49,152 tokens take 50 µs, torch's
    own search 1,900.
    """
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.float64):
        return logits.argmax(-1)
    return torch.from_numpy(np.asarray(logits.detach().numpy().argmax(-1)))


def _one_hot(logits: Tensor, tokens: Tensor) -> Tensor:
    return torch.zeros_like(logits).scatter_(-1, tokens[..., None], 1.0)


def _column(values: list[float], like: Tensor, places: int) -> Tensor:
    """[B * places, 1] the number of each place's sequence."""
    column = torch.tensor(values, device=like.device, dtype=like.dtype)
    return column.repeat_interleave(places)[:, None]


def _sampling_law(logits: Tensor, sequences: Seq[Sampled]) -> tuple[Tensor, Tensor]:
    """([B, M, V] temperature, min_p, top_k and top_p with each row's own numbers; [B, M] the
    highest logits)."""
    params = [s.params for s in sequences]
    flat = logits.reshape(-1, logits.shape[-1])  # [R, V]
    places = flat.shape[0] // max(1, len(params))
    temperatures = [max(p.temperature or 1.0, _COLDEST) for p in params]
    temperature = _column(temperatures, logits, places)
    floor = _column([p.min_p for p in params], logits, places).log()
    floors = any(p.min_p > 0 for p in params)
    law, peak = torch.empty_like(flat), flat.new_empty(flat.shape[0], 1)
    for part in _parts(flat):
        torch.amax(flat[part], -1, keepdim=True, out=peak[part])
        scaled = flat[part] / temperature[part]
        if floors:
            least = peak[part] / temperature[part] + floor[part]
            scaled.masked_fill_(scaled < least, -torch.inf)
        torch.softmax(scaled, -1, out=law[part])
    law = law.view_as(logits)
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        _truncate(law, params)
    return law, peak.view(logits.shape[:-1])


def _parts(flat: Tensor) -> list[slice]:
    """Rows [R, V] in parts that a CPU's cache holds, so that only the first step reads memory."""
    rows = flat.shape[0] if flat.device.type != "cpu" else max(1, _CACHED // flat.shape[1])
    return [slice(at, at + rows) for at in range(0, flat.shape[0], rows)]


def _truncate(law: Tensor, params: list[SamplingParams]) -> None:
    """Cut [B, M, V] in place to each row's top_k, then to the smallest set with top_p of the rest.

    A full sort of a large vocabulary costs more than the rest of a step, so the 256 likeliest are
    tried first, and more only for the places where these hold too little. Equals of the last token
    that is kept are kept too: which of them came first would depend on the sort.
    """
    places, vocab = law.shape[1:]
    flat = law.view(-1, vocab)  # [R, V]
    k = torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params], device=law.device)
    k = k.clamp(max=vocab).repeat_interleave(places)  # [R]
    top_p = _column([p.top_p for p in params], law, places)[:, 0]
    least = torch.zeros_like(top_p)
    rows = ((k < vocab) | (top_p < 1)).nonzero()[:, 0]
    width = max([_TRIED, *(p.top_k for p in params)])
    while len(rows):
        width = min(width, vocab)
        some = flat if len(rows) == len(flat) else flat[rows]
        least[rows], enough = _last_kept(some.topk(width).values, k[rows], top_p[rows])
        rows = rows[~enough] if width < vocab else rows[:0]
        width *= _MORE
    flat.masked_fill_(flat < least[:, None], 0)
    flat.div_(flat.sum(-1, keepdim=True))


def _last_kept(likeliest: Tensor, k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """From falling probabilities [R, K]: [R] the least that is kept, and whether K were enough."""
    width = likeliest.shape[-1]
    rank = torch.arange(width, device=k.device)
    kept = likeliest.masked_fill(rank >= k[:, None], 0)
    kept = kept / torch.where(k <= width, kept.sum(-1), 1.0)[:, None]
    reached = kept.cumsum(-1)
    keep = (reached - kept < top_p[:, None]) & (rank < k[:, None])
    last = keep.sum(-1, keepdim=True).clamp(min=1) - 1
    return likeliest.gather(-1, last)[:, 0], (k <= width) | (reached[:, -1] >= top_p)


def _edited(logits: Tensor, sequences: Seq[Sampled], contexts: Contexts) -> Tensor:
    """A copy of [B, M, V] with everything that comes before temperature applied."""
    logits = logits.clone()
    paths = contexts() if any(s.params.reads_context for s in sequences) else None
    for b, sequence in enumerate(sequences):
        params = sequence.params
        _static_edits(logits[b], params)
        if paths is None or not params.reads_context:
            continue
        _minimum_length(logits[b], sequence, paths[b])
        for process in params.logits_processors:
            _user_processor(logits[b], sequence, paths[b], process)
        if params.penalises:
            _penalise(logits[b], sequence, paths[b])
    return logits


def _ids(ids: Seq[int], like: Tensor) -> Tensor:
    index = torch.tensor(list(ids), device=like.device, dtype=torch.int64)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < like.shape[-1]:
        raise ForetokenError(
            f"Token ids {sorted(ids)[:1]} … {sorted(ids)[-1:]} are outside the vocabulary of "
            f"{like.shape[-1]}; use ids from the target's tokenizer."
        )
    return index


def _static_edits(row: Tensor, params: SamplingParams) -> None:
    """In place on [M, V]: what does not depend on the tokens before a place."""
    if params.allowed_token_ids is not None:
        mask = torch.ones(row.shape[-1], dtype=torch.bool, device=row.device)
        mask[_ids(params.allowed_token_ids, row)] = False
        row.masked_fill_(mask, -torch.inf)
    if params.bad_token_ids:
        row[:, _ids(params.bad_token_ids, row)] = -torch.inf
    if params.logit_bias:
        values = torch.tensor(list(params.logit_bias.values()), device=row.device, dtype=row.dtype)
        row[:, _ids(list(params.logit_bias), row)] += values


def _minimum_length(row: Tensor, sequence: Sampled, paths: list[list[int]]) -> None:
    missing = sequence.params.min_tokens - (len(sequence.tokens) - sequence.prompt_length)
    if missing <= 0 or not sequence.end_ids:
        return
    short = [m for m, path in enumerate(paths) if len(path) < missing]
    ends = _ids(sorted(sequence.end_ids), row)
    row[torch.tensor(short, device=row.device, dtype=torch.int64)[:, None], ends] = -torch.inf


def _user_processor(
    row: Tensor, sequence: Sampled, paths: list[list[int]], process: LogitsProcessor
) -> None:
    for m, path in enumerate(paths):
        ids = torch.tensor([[*sequence.tokens, *path]], device=row.device)
        row[m] = process(ids, row[m : m + 1])[0]


def _penalise(row: Tensor, sequence: Sampled, paths: list[list[int]]) -> None:
    """In place on [M, V]: each place's penalties see the accepted prefix and its own draft path."""
    params, vocab = sequence.params, row.shape[-1]
    seen_prompt, base = _update_counts(sequence, vocab, row.device)
    counts = base.to(row.dtype).repeat(len(paths), 1)  # [M, V]
    places = [m for m, path in enumerate(paths) for _ in path]
    drafted = [token for path in paths for token in path]
    if drafted:
        index = (torch.tensor(places, device=row.device), torch.tensor(drafted, device=row.device))
        counts.index_put_(index, torch.ones_like(index[0], dtype=row.dtype), accumulate=True)
    if params.repetition_penalty != 1:
        rate = params.repetition_penalty
        repeated = seen_prompt | (counts > 0)
        row.copy_(torch.where(repeated, torch.where(row > 0, row / rate, row * rate), row))
    present = (counts > 0).to(row.dtype)
    row -= params.frequency_penalty * counts + params.presence_penalty * present


def _update_counts(sequence: Sampled, vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The running counts at the sequence's end: ([V] bool of the prompt, [V] of the output)."""
    counts, cut = sequence.penalty, sequence.prompt_length
    if counts.prompt is None or counts.output is None:
        counts.prompt = torch.zeros(vocab, dtype=torch.bool, device=device)
        counts.prompt[torch.tensor(sequence.tokens[:cut], device=device)] = True
        counts.output = torch.zeros(vocab, dtype=torch.int64, device=device)
        counts.seen = cut
    new = sequence.tokens[counts.seen :]
    if new:
        counts.output += torch.bincount(torch.tensor(new, device=device), minlength=vocab)
        counts.seen += len(new)
    return counts.prompt, counts.output


def log_probabilities(logits: Tensor) -> Tensor:
    """Raw log-probabilities of [..., V] logits, as vLLM's default `raw_logprobs` reports them."""
    return (
        logits.float().log_softmax(-1) if logits.dtype != torch.float64 else logits.log_softmax(-1)
    )
