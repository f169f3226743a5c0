"""How many tokens an answer took, and how its decoding went."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Any

from foretoken.engine.outputs import RequestOutput
from foretoken.engine.stats import AcceptanceStats


def usage(outputs: Seq[RequestOutput]) -> dict[str, Any]:
    """The tokens of prompts and of all samples; of the prompts', those that caches had; and of
    predictions, those that were drafted, by what became of them."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    written = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {
            "cached_tokens": sum(output.num_cached_tokens for output in outputs)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(o.stats.accepted_prediction_tokens for o in outputs),
            "rejected_prediction_tokens": sum(o.stats.rejected_prediction_tokens for o in outputs),
        },
    }


def metrics(outputs: Seq[RequestOutput]) -> dict[str, Any] | None:
    """vLLM's object of one request: times in milliseconds, and the acceptance of its drafts. None
    for several samples, as there."""
    if len(outputs) != 1 or len(outputs[0].outputs) != 1:
        return None
    stats, tokens = outputs[0].stats, len(outputs[0].outputs[0].token_ids)
    first, total = stats.time_to_first_token, stats.total_time
    if first is None or total is None:
        return None
    writing = total - first
    return {
        "time_to_first_token_ms": 1000 * first,
        "generation_time_ms": 1000 * writing,
        "queue_time_ms": 1000 * (stats.queue_time or 0.0),
        "mean_itl_ms": 1000 * writing / (tokens - 1) if tokens > 1 else None,
        "tokens_per_second": tokens / total if total else None,
        "speculative_decoding": acceptance(stats) if stats.drafts else None,
    }


def acceptance(stats: AcceptanceStats) -> dict[str, Any]:
    """Of the steps that drafted: how many tokens they wrote, and a histogram whose place j counts
    those that kept j drafted tokens."""
    reached = [stats.drafts, *stats.accepted_at, 0]
    return {
        "mean_acceptance_length": 1 + stats.accepted / stats.drafts,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_histogram": [more - fewer for more, fewer in pairwise(reached)],
        "num_spec_steps": stats.drafts,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": len(stats.accepted_at),
    }
