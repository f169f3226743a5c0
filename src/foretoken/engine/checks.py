"""What is checked before an engine takes a drafter and a rule, or a request."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from foretoken.access import check_levels
from foretoken.errors import ForetokenError
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.sampling.params import SamplingParams


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
    return min(room, params.max_tokens or room)


def _room(target: Target, prompt: Seq[int]) -> int:
    """How many tokens fit into the context after the prompt."""
    room = target.max_length - len(prompt)
    if not prompt:
        raise ForetokenError("The prompt is empty; give at least one token.")
    if room < 1:
        raise ForetokenError(
            f"The prompt has {len(prompt)} tokens and the context is {target.max_length}; "
            "shorten the prompt or raise max_model_len."
        )
    if not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
        raise ForetokenError(
            f"The prompt has token ids outside the vocabulary of {target.vocab_size}; "
            "tokenize it with the target's tokenizer."
        )
    return room


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
    references = [text for text in params.references if not isinstance(text, str)]
    if len(references) < len(params.references):
        raise ForetokenError(
            "The engine takes references as token ids; tokenize them, or use LLM.generate."
        )
    lists = (
        params.logit_bias,
        params.allowed_token_ids,
        params.bad_token_ids,
        params.stop_token_ids,
        *references,
    )
    for token in (token for ids in lists for token in ids or ()):
        if not 0 <= token < target.vocab_size:
            raise ForetokenError(
                f"Token id {token} of the sampling parameters is outside the vocabulary of "
                f"{target.vocab_size}; use ids from the target's tokenizer."
            )
