"""What the texts of an encoder–decoder begin with, and what they never hold, by its files.

Of generation_config.json, and where there is none of config.json, as transformers reads them. Of
all settings there only these belong to the model; how it decodes is said by `SamplingParams`. The
log names those by which transformers' `generate` would write another text without being asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.errors import ForetokenError, shown
from foretoken.files import read_json

_log = logging.getLogger(__name__)

_DECODING = {
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
}
"""Settings of how a text is searched for or what it may hold -> with which nothing is changed."""


class Beginning(NamedTuple):
    """opening: the decoder's first tokens: the one that starts it, and the one that is forced after
    it, if there is one. banned: ids that are never written."""

    opening: tuple[int, ...]
    banned: tuple[int, ...] = ()


def read_beginning(folder: Path, config: Any) -> Beginning:
    """Raises `ForetokenError` where the files name no start, or ids that are none."""
    file = folder / "generation_config.json"
    if not file.is_file():
        file = folder / "config.json"
    given = read_json(file, "a model's generation settings")
    if asked := left_out(given):
        _log.warning(
            "%s asks for %s, as transformers' generate would do; here texts follow SamplingParams "
            "alone (min_tokens, bad_words …), and there is no beam search.",
            file,
            ", ".join(f"{name}={shown(value)}" for name, value in asked.items()),
        )
    return beginning(given, config)


def left_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """The generation settings that change texts and aren't read."""
    known = {name: given.get(name) for name in _DECODING}
    return {n: value for n, value in known.items() if value is not None and value != _DECODING[n]}


def beginning(given: Mapping[str, Any], config: Any) -> Beginning:
    """By generation settings, and by a configuration where they name no start. Raises as
    `read_beginning`."""
    places = given, vars(config)
    starts = (p.get(n) for n in ("decoder_start_token_id", "bos_token_id") for p in places)
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ForetokenError(
            "The model's files don't say which token its decoder starts with; write "
            "decoder_start_token_id into generation_config.json."
        )
    forced = given.get("forced_bos_token_id")
    opening = (start,) if forced is None else (start, forced)
    banned = given.get("bad_words_ids") or []
    if not isinstance(banned, list) or any(len(_list(word)) != 1 for word in banned):
        raise ForetokenError(
            f"bad_words_ids of the model's files is {shown(banned)}, and only single ids are "
            "banned here; take it out and give SamplingParams(bad_words=…)."
        )
    ids = tuple(word[0] for word in banned)
    for token in (*opening, *ids):
        if type(token) is not int or not 0 <= token < config.vocab_size:
            raise ForetokenError(
                f"The model's files name the token {shown(token)} (decoder_start_token_id, "
                f"forced_bos_token_id or bad_words_ids), and its vocabulary has "
                f"{config.vocab_size}; correct generation_config.json."
            )
    return Beginning(opening, ids)


def _list(word: Any) -> list[Any]:
    return word if isinstance(word, list) else []
