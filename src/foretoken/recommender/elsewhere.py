"""The same method for vLLM, where it has it, and the names that other programs have for models.

Source: vLLM's `SpeculativeConfig`, version 0.33, whose methods are ngram, draft_model, suffix,
eagle, eagle3, mtp and dflash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.suffix import Suffix
from foretoken.errors import ForetokenError
from foretoken.models import gguf
from foretoken.models.load import find
from foretoken.registry import ALIASES, OPTION_ALIASES
from foretoken.trainable import formats

_LENGTH = "num_speculative_tokens"
_TRAINED = ("eagle", "eagle3", "dflash")


def for_vllm(config: Mapping[str, Any], tokens_per_step: float) -> dict[str, Any] | None:
    """vLLM's `speculative_config` for one of ours; None where vLLM has no such method, or doesn't
    read the model that drafts.

    tokens_per_step: the mean acceptance length. vLLM drafts chains: of a trained drafter as many
    tokens as a tree got accepted, rounded up.
    """
    config = {OPTION_ALIASES.get(key, key): value for key, value in config.items()}
    given = config.get("method")
    method = ALIASES.get(str(given), given)
    if method == "pld":
        names = (_LENGTH, "prompt_lookup_max", "prompt_lookup_min")
        return {"method": "ngram", **_numbers(PromptLookup(), config, names)}
    if method == "suffix":
        own = _numbers(Suffix(), config, ("max_tree_depth", "max_spec_factor", "min_token_prob"))
        return {"method": "suffix", **{f"suffix_decoding_{k}": v for k, v in own.items()}}
    model = config.get("model")
    if not isinstance(model, str) or gguf.is_named(model := their_name(model)):
        return None
    if method == "sps" and _LENGTH in config:
        return {"method": "draft_model", "model": model, _LENGTH: config[_LENGTH]}
    if method in _TRAINED and _is_published(model):
        length = max(1, math.ceil(tokens_per_step - 1))
        return {"method": method, "model": model, _LENGTH: length}
    return None


def their_name(model: str) -> str:
    """A checkpoint's name as other programs load it: they know paths and hub ids, and where a name
    of ours lies is told by its path."""
    if "/" in model or Path(model).exists():
        return model
    try:
        return str(find(model))
    except ForetokenError:
        return model


def _numbers(defaults: Any, config: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Options as given, else as they are by default."""
    return {name: config.get(name, vars(defaults)[name]) for name in names}


def _is_published(model: str) -> bool:
    """Whether a drafter's checkpoint is one of another project's, which vLLM may read."""
    try:
        return formats.recognise(Path(find(model))) is not None
    except ForetokenError:
        return False
