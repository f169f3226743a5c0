"""Sampling parameters, and the one function that folds them into probabilities.

Target and drafter use the same `fold`, so a verifier only ever compares like with like.
Temperature 0 is a one-hot, so greedy decoding is not a case of its own.

The order is vLLM's: grammar, allowed ids, bad ids and words, minimum length, logit bias, user
processors (those with a state last), penalties, temperature, min_p, top_k, top_p. Sources of the
parts: top-k (Fan et al. 2018), nucleus (Holtzman et al. 2020), min-p (Nguyen et al. 2024),
repetition penalty (Keskar et al. 2019, section 4.1).

Legend: B sequences, M places (slots of a pass), V vocabulary, K kept candidates.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from foretoken.sampling.edits import Contexts, Errors, edited
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence

_COLDEST = 1e-30  # float32 would take far less for 0; the distribution is one-hot long before
_CACHED = 1 << 18  # numbers that are worked on at a time on a CPU
_TRIED, _MORE = 256, 16  # tokens sorted first instead of all, and by how much that grows


@dataclass(slots=True)
class Folded:
    """The distributions of a pass.

    certain [B, M]: where every distribution is a point mass, the tokens that they are on; else
    None. bad [B, M] marks places without a distribution (NaN, or every token forbidden); errors
    says why where a user's processor raised."""

    logits: Tensor
    distribution: Tensor | None
    bad: Tensor
    certain: Tensor | None = None
    errors: Errors = field(default_factory=dict)

    @property
    def probs(self) -> Tensor:
        """[B, M, V]; point masses are written out when they are first asked for."""
        if self.distribution is None:
            assert self.certain is not None
            self.distribution = _one_hot(self.logits, self.certain)
        return self.distribution


def fold(
    logits: Tensor, sequences: Seq[Sequence], contexts: Contexts, counts: Seq[int] | None = None
) -> Folded:
    """Turn raw logits [B, M, V] into the distribution each sequence samples from, place by place.

    counts: places of each sequence; those after them are padding, whose logits may be anything. On
    a CPU they are not read, and the distributions there are point masses.

    `contexts` is called only if some sequence's distribution depends on the tokens before a place.
    Half-precision logits are folded in float32.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    logits, errors = edited(logits, sequences, contexts)
    # On a GPU a call for each row would cost more than padding does.
    if counts is not None and (min(counts) == logits.shape[1] or logits.device.type != "cpu"):
        counts = None
    if all(s.params.greedy for s in sequences):
        top, bad = _peaks(logits, counts)
        return Folded(logits, None, bad, top, errors)
    probs, peak = _sampling_distribution(logits, sequences, counts)
    bad = ~torch.isfinite(peak)
    greedy = [s.params.greedy for s in sequences]
    if any(greedy):
        rows = torch.tensor(greedy, device=logits.device)
        probs[rows] = _one_hot(logits[rows], likeliest(logits[rows]))
    # A place without a distribution gets some distribution, so that a NaN can't leak into a
    # neighbour's arithmetic. On a CPU asking is free, and saves a pass over all distributions.
    if bad.device.type != "cpu" or bool(bad.any()):
        probs.masked_fill_(bad[..., None], 0)[..., 0] += bad
    return Folded(logits, probs, bad, errors=errors)


def _peaks(logits: Tensor, counts: Seq[int] | None) -> tuple[Tensor, Tensor]:
    """The likeliest tokens [B, M], 0 for padding, and whether there is none [B, M] bool."""
    if counts is None:
        top = likeliest(logits)
        peak = logits.gather(-1, top[..., None])[..., 0]  # NaN, if there is one, wins a maximum
        return top, (peak - peak) != 0  # infinite less infinite is NaN, which isn't 0
    top = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    bad = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    for row, count in enumerate(counts):
        top[row, :count], bad[row, :count] = _peaks(logits[row : row + 1, :count], None)
    return top, bad


def best(logits: Tensor, sequences: Seq[Sequence], contexts: Contexts) -> Tensor:
    """The token [B, M] that `fold` puts all mass on at temperature 0, without the distributions."""
    logits, _ = edited(logits, sequences, contexts)
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


def _sampling_distribution(
    logits: Tensor, sequences: Seq[Sequence], counts: Seq[int] | None
) -> tuple[Tensor, Tensor]:
    """([B, M, V] temperature, min_p, top_k and top_p with each row's own numbers; [B, M] the
    highest logits, 0 in padding)."""
    params = [s.params for s in sequences]
    flat = logits.reshape(-1, logits.shape[-1])  # [R, V]
    places = flat.shape[0] // max(1, len(params))
    temperatures = [max(p.temperature or 1.0, _COLDEST) for p in params]
    temperature = _column(temperatures, logits, places)
    floor = _column([p.min_p for p in params], logits, places).log()
    floors, scales = any(p.min_p > 0 for p in params), any(t != 1 for t in temperatures)
    distribution, peak = torch.empty_like(flat), flat.new_zeros(flat.shape[0], 1)
    if counts is not None:
        distribution.zero_()[:, 0] = 1  # as padding stays
    for part in _parts(flat, counts, places):
        torch.amax(flat[part], -1, keepdim=True, out=peak[part])
        scaled = flat[part]  # softmax subtracts the peak itself
        if floors or scales:
            scaled = (scaled - peak[part]).div_(temperature[part])  # never above 0: no overflow
        if floors:
            scaled.masked_fill_(scaled < floor[part], -torch.inf)
        torch.softmax(scaled, -1, out=distribution[part])
    distribution = distribution.view_as(logits)
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        _truncate(distribution, params, counts)
    return distribution, peak.view(logits.shape[:-1])


def _parts(flat: Tensor, counts: Seq[int] | None, places: int) -> list[slice]:
    """Rows [R, V], padding left out, in parts that a CPU's caches hold, so that only the first step
    reads memory: a row for each thread, or more where they are short."""
    most = flat.shape[0]
    if flat.device.type == "cpu":
        most = max(torch.get_num_threads(), _CACHED // flat.shape[1])
    spans = [(0, flat.shape[0])]
    if counts is not None:
        spans = [(row * places, row * places + count) for row, count in enumerate(counts)]
    return [
        slice(at, min(at + most, end)) for begin, end in spans for at in range(begin, end, most)
    ]


def _truncate(probs: Tensor, params: list[SamplingParams], counts: Seq[int] | None) -> None:
    """Cut [B, M, V] in place to each row's top_k, then to the smallest set with top_p of the rest.

    A full sort of a large vocabulary costs more than the rest of a step, so the 256 likeliest are
    tried first, and more only for the places where these hold too little. Equals of the last token
    that is kept are kept too: which of them came first would depend on the sort.
    """
    places, vocab = probs.shape[1:]
    flat = probs.view(-1, vocab)  # [R, V]
    sizes = [min(p.top_k, vocab) if p.top_k > 0 else vocab for p in params]
    k = torch.tensor(sizes, device=probs.device).repeat_interleave(places)  # [R]
    top_p = _column([p.top_p for p in params], probs, places)[:, 0]
    least = torch.zeros_like(top_p)
    held = torch.tensor(counts or [places] * len(params), device=probs.device)
    inside = (torch.arange(places, device=probs.device) < held[:, None]).flatten()  # no padding
    rows = (((k < vocab) | (top_p < 1)) & inside).nonzero()[:, 0]
    width = max([_TRIED, *(p.top_k for p in params)])
    while len(rows):
        width = min(width, vocab)
        pending = flat if len(rows) == len(flat) else flat[rows]
        least[rows], enough = _last_kept(pending.topk(width).values, k[rows], top_p[rows])
        rows = rows[~enough] if width < vocab else rows[:0]
        width *= _MORE
    flat.masked_fill_(flat < least[:, None], 0)
    # Rows without a cut keep their bits, whoever is beside them.
    flat.div_(torch.where(least[:, None] > 0, flat.sum(-1, keepdim=True), 1.0))


def _last_kept(likeliest: Tensor, k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """From falling probabilities [R, K]: [R] the least that is kept, and whether K were enough."""
    width = likeliest.shape[-1]
    rank = torch.arange(width, device=k.device)
    kept = likeliest.masked_fill(rank >= k[:, None], 0)
    kept = kept / torch.where(k <= width, kept.sum(-1), 1.0)[:, None]
    reached = kept.cumsum(-1)
    # Where top_p is off, a token of less than a rounding error counts too.
    keep = ((reached - kept < top_p[:, None]) | (top_p[:, None] == 1)) & (rank < k[:, None])
    last = keep.sum(-1, keepdim=True).clamp(min=1) - 1
    return likeliest.gather(-1, last)[:, 0], (k <= width) | (reached[:, -1] >= top_p)
