"""Whether a method wrote exactly plain decoding's tokens, and if not, whether rounding explains it.

A pass over five tokens rounds otherwise than a pass over one, so below float64 the two texts may
differ where two tokens are almost equally good to the target. At the first difference the target
scores the shared prefix once more:

- at temperature 0, the margin is the gap between its two best logits;
- above 0, the token is the one at which the running sum of the distribution passes that position's
  random number, and the margin is the distance from that number to the nearer edge of the
  token's interval. Logits that are off by d move an edge by at most d / 2.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretoken.bench.measure.likelihood import begun
from foretoken.draws import Purpose, uniforms
from foretoken.sampling.fold import fold
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.tree import empty

if TYPE_CHECKING:
    from foretoken.llm import LLM

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Logits closer than this are a near tie."""
_HALF_TOLERANCE = 0.25  # half the spacing of bfloat16 numbers around a logit of 60


def compare(
    llm: LLM, prompt: Seq[int], params: SamplingParams, plain: Seq[int], other: Seq[int]
) -> tuple[str, float | None]:
    """("identical" | "near_tie" | "different", margin at the first difference)."""
    if list(plain) == list(other):
        return "identical", None
    pairs = zip(plain, other, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return "different", None  # one is a prefix of the other
    margin = margin_at(llm, prompt, params, plain[:place])
    tolerance = TOLERANCE.get(llm.model.dtype, _HALF_TOLERANCE)
    close = margin < (tolerance if params.greedy else tolerance / 2)
    return "near_tie" if close else "different", margin


@torch.inference_mode()
def margin_at(llm: LLM, prompt: Seq[int], params: SamplingParams, written: Seq[int] = ()) -> float:
    """How close the target's choice was after what had been written; uses a free cache slot."""
    target = llm.engine.target
    sequence = begun(target, prompt, params, written)
    target.begin(sequence)
    try:
        while target.pending(sequence):
            target.prefill([sequence], llm.engine.chunk)
        tree = empty(1, target.device)
        logits = target.score([sequence], tree).logits
        assert logits is not None
        probs = fold(logits, [sequence], tree.contexts).probs[0, 0]
    finally:
        target.end(sequence)
    if params.greedy:
        best = logits[0, 0].topk(2).values
        return float(best[0] - best[1])
    return _edge_distance(probs, sequence)


def _edge_distance(probs: Tensor, sequence: Sequence) -> float:
    """The distance from the position's random number to the nearer edge of its token's interval;
    probs: [V]."""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    key = torch.tensor(sequence.key, device=probs.device)
    at = torch.tensor(len(sequence.tokens), device=probs.device)
    drawn = uniforms(key, at, Purpose.TOKEN) * cumulative[-1]
    inner = cumulative[cumulative < cumulative[-1]]
    return float((inner - drawn).abs().min()) if inner.numel() else 1.0
