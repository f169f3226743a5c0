"""What users give as texts, as the token ids that the engine takes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, NamedTuple

from foretoken.engine import prompts as reader
from foretoken.errors import ForetokenError, shown
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.sampling.params import SamplingParams


class Encoded(NamedTuple):
    """A prompt's token ids, its text if it had one, and its parameters with texts as ids."""

    ids: list[int]
    text: str | None
    params: SamplingParams


def encoded(
    prompt: Any, params: SamplingParams, tokenizer: Any, most: int | None = None
) -> Encoded:
    """A prompt as `prompts.encoded` reads it, and parameters whose references, prediction and words
    are ids, and whose salt is the prompt's, if it has one. most: of the prompt and the prediction,
    see `prompts.text_ids`.

    Raises `ForetokenError` for what the tokenizer can't read, for texts without one, and for
    parameters that were bent after they had been made.
    """
    params = replace(params)  # a copy that nobody else bends, and whose values are checked anew
    asked: dict[str, Any] = {}
    if any(isinstance(text, str) for text in params.references):
        asked["references"] = [_ids(text, tokenizer) for text in params.references]
    if any(isinstance(word, str) for word in params.bad_words):
        words = [ids for word in params.bad_words for ids in _word_ids(word, tokenizer)]
        asked["bad_words"] = words
    if isinstance(params.prediction, str):
        asked["prediction"] = _ids(params.prediction, tokenizer, most)
    if (salt := reader.salt_of(prompt)) is not None:
        asked["cache_salt"] = salt
    if asked:
        params = replace(params, **asked)
    if isinstance(params.structured_outputs, StructuredOutputsParams):
        _ = params.structured_outputs.key  # read here: the engine's thread is everybody's
    return Encoded(*reader.encoded(prompt, tokenizer, most), params)


def paired(
    prompts: Any, continuations: Any, tokenizer: Any
) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """The token ids of prompts and of their continuations, and whether there is one pair that was
    given alone.

    Raises `ForetokenError` where there are more of one than of the other, and for an empty one.
    """
    before, alone = reader.split(prompts)
    after, single = reader.split(continuations)
    if len(before) != len(after) or alone != single:
        raise ForetokenError(
            f"There are {len(before)} prompts and {len(after)} continuations; give one alone of "
            "each, or lists with a continuation for each prompt."
        )
    pairs = []
    for prompt, text in zip(before, after, strict=True):
        ids, said = reader.encoded(prompt, tokenizer)
        pair = ids, _continuation(text, ids, said, tokenizer)
        if not all(pair):
            raise ForetokenError(
                "A prompt or its continuation is empty; give at least one token of each."
            )
        pairs.append(pair)
    return pairs, alone


def _continuation(text: Any, before: list[int], said: str | None, tokenizer: Any) -> list[int]:
    """Token ids of what goes on after those `before`, and after their text if they have one: those
    that it has there, where those before it stay the same; else its own, without special tokens."""
    if not isinstance(text, str):
        return reader.encoded(text, tokenizer)[0]
    there = None if said is None else reader.ids_after(before, said, text, tokenizer)
    return there or reader.text_ids(text, tokenizer, special=False)


def _word_ids(word: str | Seq[int], tokenizer: Any) -> list[Seq[int]]:
    """The token ids that a bad word is forbidden by, as in vLLM: of the text, and of the text after
    a space where only its first token differs. Raises `ForetokenError` for a text of spaces only.
    """
    if not isinstance(word, str):
        return [word]
    try:
        bare, after_space = (_ids(space + word.lstrip(), tokenizer) for space in ("", " "))
    except ForetokenError as error:
        raise ForetokenError(f"bad_words has {shown(word)}: {error}") from error
    if not bare:
        raise ForetokenError(f"bad_words has {shown(word)}, a text without a token; leave it out.")
    other = len(after_space) == len(bare) and after_space[0] != bare[0]
    return [bare, after_space] if other else [bare]


def _ids(text: str | Seq[int], tokenizer: Any, most: int | None = None) -> Seq[int]:
    """A text's token ids, without special tokens at its beginning or end."""
    if not isinstance(text, str):
        return text
    return reader.text_ids(text, tokenizer, special=False, most=most)
