"""How likely a text is under the target: what an approximate method loses for its speed."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch

from foretoken.protocols import Target
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.tree import chains

if TYPE_CHECKING:
    from foretoken.llm import LLM


def begun(
    target: Target, prompt: Seq[int], params: SamplingParams, written: Seq[int] = ()
) -> Sequence:
    """A prompt and what was written after it, as the target reads them: an encoder–decoder has the
    prompt as its source, and its text begins with its opening."""
    text, source = [*(target.opening or prompt), *written], prompt if target.opening else ()
    return Sequence.start(text, params, seed=params.seed or 0, source=source)


@torch.inference_mode()
def log_likelihood(llm: LLM, prompt: Seq[int], tokens: Seq[int]) -> float:
    """ln p(tokens | prompt) at temperature 1; uses a free cache slot of the target."""
    target = llm.engine.target
    sequence = begun(target, prompt, SamplingParams())
    target.begin(sequence)
    total = 0.0
    try:
        while target.pending(sequence):
            target.prefill([sequence], llm.engine.chunk)
        for start in range(0, len(tokens), target.nodes):
            part = list(tokens[start : start + target.nodes])
            logits = target.score([sequence], chains([part], target.device)).logits
            assert logits is not None
            log_probs = logits[0, :-1].log_softmax(-1, dtype=torch.float64)  # [len(part), V]
            ids = torch.tensor(part, device=log_probs.device)[:, None]
            total += float(log_probs.gather(1, ids).sum())
            sequence.tokens.extend(part)
            target.commit([sequence], [range(1, len(part))])  # the last one is the next root
    finally:
        target.end(sequence)
    return total
