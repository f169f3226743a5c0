"""What is checked before an engine takes a drafter and a rule, a request, or a draft.

Legend: B sequences, N tree nodes, R proposal rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretoken.access import check_levels
from foretoken.engine.cache_memory import of
from foretoken.errors import ForetokenError, shown
from foretoken.models.budget import CacheBudget
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.tree import DraftTree


def check_pairing(target: Target, drafter: Drafter, verifier: Verifier) -> None:
    """Raise `ForetokenError` for a drafter that the target can't serve or the rule can't verify."""
    check_levels(f"Drafter {type(drafter).__name__}", drafter.wants.levels, target.levels)
    if drafter.trees and not verifier.trees:
        raise ForetokenError(
            f"Verifier {type(verifier).__name__} takes chains only and {type(drafter).__name__} "
            "drafts trees; use a tree rule such as 'target_only'."
        )
    wrong = drafter.kinds - verifier.kinds
    if wrong:
        names = ", ".join(sorted(kind.name.lower() for kind in wrong))
        raise ForetokenError(
            f"Verifier {type(verifier).__name__} is not valid for {names} nodes, which "
            f"{type(drafter).__name__} makes; choose a verifier that takes them."
        )


def check_request(
    target: Target, verifier: Verifier, prompt: Seq[int], params: SamplingParams
) -> int:
    """How many tokens may be written after this prompt.

    Raises `ForetokenError` for a request that can't be served.
    """
    room = _room(target, prompt)
    _check_ids(target, params)
    _check_rule(verifier, params)
    if params.stops and target.tokenizer is None:
        raise ForetokenError("Stop strings need a tokenizer; pass tokenizer=… to LLM.")
    if params.logprobs is not None and params.logprobs > target.vocab_size:
        raise ForetokenError(
            f"logprobs is {params.logprobs} and the vocabulary has {target.vocab_size} tokens; "
            "ask for fewer."
        )
    return _affordable(target.budget, len(prompt), min(room, params.max_tokens or room), params)


def _affordable(budget: CacheBudget, prompt: int, limit: int, params: SamplingParams) -> int:
    """How many of `limit` tokens the caches can hold after a prompt; all of them, where `params`
    ask for that many."""
    if budget.holds(prompt + limit):
        return limit
    fits = budget.longest(prompt + limit) - prompt
    if params.max_tokens is None and fits > 0:
        return fits
    raise ForetokenError(
        f"The request needs {of(budget.needs(prompt + limit))} of cache for a prompt of {prompt} "
        f"tokens and {limit} new ones, and the caches may fill {of(budget.limit or 0)}; shorten "
        "the prompt, lower max_tokens or raise kv_cache_memory."
    )


def _room(target: Target, prompt: Seq[int]) -> int:
    """How many tokens fit into the context after the prompt."""
    room = target.max_length - len(prompt)
    if not prompt:
        raise ForetokenError("The prompt is empty; give at least one token.")
    if room < 1:
        raise ForetokenError(
            f"The prompt has {len(prompt)} tokens and the context is {target.max_length}; "
            f"{_remedy(target)}."
        )
    if not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
        raise ForetokenError(
            f"The prompt has token ids outside the vocabulary of {target.vocab_size}; "
            "tokenize it with the target's tokenizer."
        )
    return room


def _remedy(target: Target) -> str:
    """What helps where the context is too short."""
    limit: int = target.model.max_length
    return "shorten the prompt" + (" or raise max_model_len" if target.max_length < limit else "")


def _check_rule(verifier: Verifier, params: SamplingParams) -> None:
    name = type(verifier).__name__
    if not (params.greedy or verifier.sampling):
        raise ForetokenError(
            f"Verifier {name} serves greedy decoding only and the temperature is "
            f"{params.temperature}; use temperature 0 or another verifier."
        )
    if params.edits and verifier.reads_logits:
        raise ForetokenError(
            f"Verifier {name} reads the raw logits, which know nothing of penalties, biases, "
            "allowed or bad ids, min_tokens and processors; leave these out or use another "
            "verifier."
        )


def _check_ids(target: Target, params: SamplingParams) -> None:
    if any(isinstance(text, str) for text in params.references):
        raise ForetokenError(
            "The engine takes references as token ids; tokenize them, or use LLM.generate."
        )
    lists = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_token_ids": params.bad_token_ids,
        "stop_token_ids": params.stop_token_ids,
        "references": [token for text in params.references for token in text],
    }
    for name, ids in lists.items():
        for token in ids or ():
            if not 0 <= int(token) < target.vocab_size:
                raise ForetokenError(
                    f"Token id {shown(token)} of {name} is outside the vocabulary of "
                    f"{target.vocab_size}; use ids from the target's tokenizer."
                )
    bad, allowed = {*(params.bad_token_ids or ())}, params.allowed_token_ids
    if len(bad) == target.vocab_size or bad.issuperset(allowed or [-1]):
        raise ForetokenError(
            "bad_token_ids forbids every token that may be written; leave one of them out."
        )


def check_draft(name: str, tree: Any, rows: int, target: Target, most: int) -> None:
    """Raise `ForetokenError` for what a target can't score: no trees, trees of another shape, ids
    outside the vocabulary, proposals that are no numbers, more than `most` nodes. name: the
    drafter's.

    Called at every step, so it may take a few microseconds. Numbers are read on a CPU only, as on a
    GPU that would be a transfer.
    """
    wrong = _fault(tree, rows, target, most)
    if wrong:
        raise ForetokenError(
            f"The drafter {name} {wrong}; `draft` must return a foretoken.tree.DraftTree with ids "
            "of the target's vocabulary, a row for each sequence and at most `nodes` nodes in it."
        )


def _fault(tree: Any, rows: int, target: Target, most: int) -> str:
    if not isinstance(tree, DraftTree):
        return f"returned a value of type {type(tree).__name__}"
    tokens, counts = tree.tokens, tree.counts
    if tokens.ndim != 2 or tokens.shape[0] != rows or len(counts) != rows:
        return f"returned tokens of shape {list(tokens.shape)} for {rows} sequences"
    if tokens.dtype != torch.int64 or tokens.device.type != target.device.type:
        return f"returned tokens of {tokens.dtype} on {tokens.device}"
    if not 0 <= min(counts) <= max(counts) <= tree.nodes:
        return f"counts {counts} nodes and returned {tree.nodes}"
    if tree.nodes > most:
        return f"returned {tree.nodes} nodes and declares {most} as its `nodes`"
    if wrong := _misshapen(tree):
        return wrong
    return _wrong_number(tree, target) if tree.nodes and tokens.device.type == "cpu" else ""


def _wrong_number(tree: DraftTree, target: Target) -> str:
    if _unsigned(tree.tokens).max() >= target.vocab_size:
        return f"drafted ids outside the vocabulary of {target.vocab_size}"
    if tree.parents is not None and _looks_ahead(tree.parents):
        return "gave a node a parent that doesn't stand before it"
    if tree.proposals is not None and not math.isfinite(float(tree.proposals.sum())):
        return "proposed probabilities that are NaN or infinite"
    return ""


def _misshapen(tree: DraftTree) -> str:
    for name, numbers in (("parents", tree.parents), ("kinds", tree.kinds), ("rows", tree.rows)):
        if numbers is not None and numbers.shape != tree.tokens.shape:
            shapes = f"{list(numbers.shape)} for tokens of {list(tree.tokens.shape)}"
            return f"returned {name} of shape {shapes}"
    handed, slots = tree.amateur_logits, [tree.batch, tree.nodes + 1]
    if handed is not None and list(handed.shape[:-1]) != slots:
        return f"returned amateur_logits of shape {list(handed.shape)} for {slots} slots"
    return ""


def _looks_ahead(parents: Tensor) -> bool:
    return bool((_unsigned(parents) > np.arange(parents.shape[1], dtype=np.uint64)).any())


def _unsigned(ids: Tensor) -> Any:
    """Ids as numpy sees them fastest: those below 0 are huge ones."""
    return ids.numpy().view(np.uint64)
