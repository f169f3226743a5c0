"""What is checked before an engine takes a drafter and a rule, a request, or a draft.

Legend: B sequences, N tree nodes, R proposal rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretoken.access import check_levels
from foretoken.engine.cache_memory import of
from foretoken.engine.request import Sample, longest
from foretoken.errors import ForetokenError, Overloaded, described, shown
from foretoken.models.budget import CacheBudget
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.tree import DraftTree, Kind

_DRAWN = {Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT}
_ROUNDED = 1.05  # to how much a row of probabilities may sum, in the coarsest dtype


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
    largest = verifier.largest_vocab
    if largest is not None and target.vocab_size > largest:
        raise ForetokenError(
            f"Verifier {type(verifier).__name__} takes vocabularies of at most {largest} tokens "
            f"and the target's has {target.vocab_size}; choose another verifier, or name none."
        )
    if drafter.coupled and verifier.exact and verifier.sampling and not verifier.compares:
        raise ForetokenError(
            f"{type(drafter).__name__} drafts by the noise with which verifier "
            f"{type(verifier).__name__} would draw in place of what it rejects, so that what is "
            "written would be biased; use a verifier that compares tokens, such as 'target_only'."
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
    if params.prompt_logprobs is not None and target.opening:
        raise ForetokenError(
            "The prompt of an encoder–decoder is read by its encoder, which gives no probabilities "
            "of it; leave prompt_logprobs and LLM.score to decoder-only models."
        )
    counts = {"logprobs": params.logprobs, "prompt_logprobs": params.prompt_logprobs}
    for name, wanted in counts.items():
        if wanted is not None and wanted > target.vocab_size:
            raise ForetokenError(
                f"{name} is {shown(wanted)} and the vocabulary has {target.vocab_size} tokens; "
                "ask for fewer."
            )
    limit = min(room, params.max_tokens or room)
    return _affordable(target.budget, len(prompt), _before(target, prompt), limit, params)


def _before(target: Target, prompt: Seq[int]) -> int:
    """How many tokens the output goes on from: an encoder–decoder's begins anew."""
    return len(target.opening or prompt)


def _affordable(
    budget: CacheBudget, prompt: int, before: int, limit: int, params: SamplingParams
) -> int:
    """How many of `limit` tokens the caches can hold after those `before` them; all of them, where
    `params` ask for that many."""
    longest = max(prompt, before + limit)
    if budget.holds(longest):
        return limit
    fits = budget.longest(longest) - before
    if params.max_tokens is None and fits > 0 and budget.holds(max(prompt, before + fits)):
        return fits
    raise ForetokenError(
        f"The request needs {of(budget.needs(longest))} of cache for a prompt of {prompt} "
        f"tokens and {limit} new ones, and the caches may fill {of(budget.limit or 0)}; shorten "
        "the prompt, lower max_tokens or raise kv_cache_memory."
    )


def _room(target: Target, prompt: Seq[int]) -> int:
    """How many tokens fit into the context after the prompt."""
    room = target.max_length - _before(target, prompt)
    if not prompt:
        raise ForetokenError("The prompt is empty; give at least one token.")
    if room < 1 or len(prompt) > target.max_length:
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
    if params.prediction and not (verifier.exact and Kind.CHOSEN in verifier.kinds):
        why = "takes drawn tokens only" if verifier.exact else "accepts drafts approximately"
        raise ForetokenError(
            f"Verifier {name} {why}, so a prediction would change what is written; leave it out, "
            "or serve a method with another verifier."
        )
    if not (params.greedy or verifier.sampling):
        raise ForetokenError(
            f"Verifier {name} serves greedy decoding only and the temperature is "
            f"{params.temperature}; use temperature 0 or another verifier."
        )
    if params.edits and verifier.reads_logits:
        raise ForetokenError(
            f"Verifier {name} reads the raw logits, which know nothing of penalties, biases, "
            "allowed or bad ids and words, min_tokens, processors and structured_outputs; leave "
            "these out or use another verifier."
        )


def _check_ids(target: Target, params: SamplingParams) -> None:
    if any(isinstance(text, str) for text in params.references):
        raise ForetokenError(
            "The engine takes references as token ids; tokenize them, or use LLM.generate."
        )
    if isinstance(params.prediction, str):
        raise ForetokenError(
            "The engine takes a prediction as token ids; tokenize it, or use LLM.generate."
        )
    if any(isinstance(word, str) for word in params.bad_words):
        raise ForetokenError(
            "The engine takes bad_words as token ids; tokenize them, or use LLM.generate."
        )
    lists: dict[str, Any] = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_token_ids": params.bad_token_ids,
        "bad_words": [token for word in params.bad_words for token in word],
        "stop_token_ids": params.stop_token_ids,
        "references": [token for text in params.references for token in text],
        "prediction": params.prediction,
    }
    for name, ids in lists.items():  # by min and max, as all requests wait for this thread
        if ids and not 0 <= min(ids) <= max(ids) < target.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < target.vocab_size)
            raise ForetokenError(
                f"Token id {shown(wrong)} of {name} is outside the vocabulary of "
                f"{target.vocab_size}; use ids from the target's tokenizer."
            )
    bad, allowed = {*(params.bad_token_ids or ())}, params.allowed_token_ids
    if len(bad) == target.vocab_size or bad.issuperset(allowed or [-1]):
        raise ForetokenError(
            "bad_token_ids forbids every token that may be written; leave one of them out."
        )


def check_draft(drafter: Drafter, tree: Any, rows: int, target: Target) -> None:
    """Raise `ForetokenError` for what a target can't score or a rule can't judge: no trees, trees
    of another shape, ids outside the vocabulary, proposals that are no numbers, and what the
    drafter doesn't declare: kinds of node, trees, more nodes than `nodes`.

    Called at every step, so it may take a few microseconds. Numbers are read on a CPU only, as on a
    GPU that would be a transfer.
    """
    wrong = _fault(tree, rows, target) or _undeclared(tree, drafter)
    if not wrong and tree.nodes and tree.tokens.device.type == "cpu":
        wrong = _wrong_number(tree, target) or _undeclared_number(tree, drafter)
    if wrong:
        raise ForetokenError(
            f"The drafter {type(drafter).__name__} {wrong}; `draft` must return a "
            "foretoken.tree.DraftTree with ids of the target's vocabulary, a row for each sequence "
            "and nothing in it that the drafter doesn't declare."
        )


def _fault(tree: Any, rows: int, target: Target) -> str:
    if not isinstance(tree, DraftTree):
        return f"returned a value of type {type(tree).__name__}"
    tokens, counts = tree.tokens, tree.counts
    if wrong := _mistyped(tree):
        return wrong
    if tokens.ndim != 2 or tokens.shape[0] != rows or len(counts) != rows:
        return f"returned tokens of shape {list(tokens.shape)} for {rows} sequences"
    if tokens.dtype != torch.int64 or tokens.device.type != target.device.type:
        return f"returned tokens of {tokens.dtype} on {tokens.device}"
    if not 0 <= min(counts) <= max(counts) <= tree.nodes:
        return f"counts {counts} nodes and returned {tree.nodes}"
    return _misshapen(tree, target.vocab_size)


def _mistyped(tree: DraftTree) -> str:
    """What is of another type than `DraftTree` says; Python lets it pass."""
    given: dict[str, Any] = vars(tree)
    if not isinstance(given["tokens"], Tensor):
        return f"returned tokens that are {shown(given['tokens'])} and no tensor"
    if not isinstance(given["counts"], list):
        return f"counts its nodes in {shown(given['counts'])} and not in a list"
    for name in ("parents", "kinds", "proposals", "rows"):
        if given[name] is not None and not isinstance(given[name], Tensor):
            return f"returned {name} that are {shown(given[name])} and no tensor"
    return ""


def _misshapen(tree: DraftTree, vocab: int) -> str:
    for name, numbers in (("parents", tree.parents), ("kinds", tree.kinds), ("rows", tree.rows)):
        if numbers is not None and numbers.shape != tree.tokens.shape:
            shapes = f"{list(numbers.shape)} for tokens of {list(tree.tokens.shape)}"
            return f"returned {name} of shape {shapes}"
        if numbers is not None and numbers.is_floating_point():
            return f"returned {name} of {numbers.dtype}"
    proposals = tree.proposals
    if proposals is not None:
        shape = list(proposals.shape)
        if len(shape) != 3 or shape[0] != tree.batch or shape[2] != vocab:
            return f"returned proposals of shape {shape}, not [{tree.batch}, rows, {vocab}]"
        if tree.rows is None and shape[1] < tree.nodes:
            return f"returned {shape[1]} proposals for {tree.nodes} nodes and no rows"
    handed, slots = tree.amateur_logits, [tree.batch, tree.nodes + 1]
    if handed is not None and list(handed.shape[:-1]) != slots:
        return f"returned amateur_logits of shape {list(handed.shape)} for {slots} slots"
    return ""


def _undeclared(tree: DraftTree, drafter: Drafter) -> str:
    if tree.nodes > drafter.nodes:
        return f"returned {tree.nodes} nodes and declares {drafter.nodes} as its `nodes`"
    if tree.nodes and tree.kinds is None:
        return _undeclared_kinds({tree.kind}, tree, drafter)
    return ""


def _undeclared_number(tree: DraftTree, drafter: Drafter) -> str:
    if tree.parents is not None and not drafter.trees and _branches(tree):
        return "returned a tree and declares chains only (`trees` is False)"
    if tree.kinds is not None:
        return _undeclared_kinds(set(tree.kinds.ravel().tolist()), tree, drafter)
    return ""


def _undeclared_kinds(kinds: set[int], tree: DraftTree, drafter: Drafter) -> str:
    """Chosen nodes may always be drafted: at temperature 0 all of them are."""
    for kind in sorted(kinds - {Kind.CHOSEN, Kind.PADDING} - drafter.kinds):
        name = Kind(kind).name.lower() if kind in set(Kind) else shown(kind)
        return f"returned nodes of the kind {name}, which its `kinds` don't name"
    if kinds & _DRAWN and tree.proposals is None:
        return "returned drawn nodes without the proposals that they were drawn from"
    return ""


def _wrong_number(tree: DraftTree, target: Target) -> str:
    if _unsigned(tree.tokens).max() >= target.vocab_size:
        return f"drafted ids outside the vocabulary of {target.vocab_size}"
    if tree.parents is not None and _looks_ahead(tree.parents):
        return "gave a node a parent that doesn't stand before it"
    if tree.proposals is None:
        return ""
    if tree.rows is not None and _unsigned(tree.rows).max() >= tree.proposals.shape[1]:
        return f"named a row of its {tree.proposals.shape[1]} proposals that isn't there"
    total, most = float(tree.proposals.sum()), tree.proposals.shape[0] * tree.proposals.shape[1]
    if not math.isfinite(total):
        return "proposed probabilities that are NaN or infinite"
    if not 0 <= total <= _ROUNDED * most:  # one sum, as a look at every row would take far longer
        return f"proposed numbers of the sum {total:.4g} in {most} rows, so no probabilities"
    return ""


def _branches(tree: DraftTree) -> bool:
    """Whether a node that counts hangs on anything but the one before it."""
    parents = tree.parent_slots.numpy()
    return any(
        bool((row[:count] != np.arange(count)).any())
        for row, count in zip(parents, tree.counts, strict=True)
    )


def _looks_ahead(parents: Tensor) -> bool:
    return bool((_unsigned(parents) > np.arange(parents.shape[1], dtype=np.uint64)).any())


def _unsigned(ids: Tensor) -> Any:
    """Ids as numpy sees them fastest: those below 0 are huge ones."""
    return ids.long().numpy().view(np.uint64)


def check_queue(
    target: Target, queue: Iterable[Sample], prompt: Seq[int], limit: int, n: int, most: int | None
) -> None:
    """queue: what waits already, before a request of `n` samples of at most `limit` tokens. Raises
    `Overloaded` where more of them all find no slot, or no memory, than may wait."""
    if most is None:
        return
    new = longest(prompt, target.opening or prompt, limit)
    lengths = [*(sample.longest for sample in queue), *[new] * n]
    if len(lengths) <= most:
        return
    waiting = len(lengths) - target.budget.fitting(lengths[: target.free])
    if waiting > most:
        raise Overloaded(
            f"{waiting} sequences would wait and max_queued is {most}; send the request later, "
            "lower n, or raise max_queued."
        )


def check_device(device: torch.device) -> None:
    """Raise `ForetokenError` where nothing can be computed there any more: after an illegal access,
    for one, each further call of CUDA fails, whatever it is asked for."""
    if device.type == "cpu":
        return
    try:
        torch.accelerator.synchronize(device)
    except RuntimeError as error:
        told = described(f"The device {device}", error)
        said = f"{told}, and computes nothing more until this process has ended."
        raise ForetokenError(said) from error
