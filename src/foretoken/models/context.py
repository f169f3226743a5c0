"""How long a model's texts may be: what its configuration says, and what it allows beside.

A configuration is changed for a longer text before a model is made of it, as a user would change
config.json; the model itself has one length.
"""

from __future__ import annotations

import math
from typing import Any

from foretoken.errors import ForetokenError

FALLBACK = 2048
"""Tokens, where a configuration names no number of them."""

_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "n_ctx",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
)
_ORIGINAL = "original_max_position_embeddings"


def context(config: Any) -> int:
    """The longest text, for YaRN the stretched one; for longrope the part that its short factors
    serve.

    After that part transformers turns all keys by other factors, those in the cache not included.
    """
    rope, named = _rope(config), _named(config)
    original = rope.get(_ORIGINAL) or getattr(config, _ORIGINAL, None)
    if _has_two_turns(rope) and original is not None:
        return int(original)
    return FALLBACK if named is None else _stretched(named, rope)


def lengthen(config: Any, asked: int | None) -> None:
    """Change a configuration to one for texts of `asked` tokens, where these are more than it has
    by itself. Raises `ForetokenError` where they are more than it can have.

    Of longrope all positions then get the long factors, whatever a text's length: as in vLLM, and
    as transformers has it for texts beyond the short ones' part.
    """
    usual, rope = context(config), _rope(config)
    if asked is None or asked <= usual:
        return
    if asked > (most := _most(config)):
        raise _too_long(asked, most, most == usual and _turns_anew(rope))
    if _has_two_turns(rope):
        rope["short_factor"] = rope["long_factor"]
    else:
        config.max_position_embeddings = asked


def _most(config: Any) -> float:
    """The longest text of all: linear scaling reaches as far as its factor, and what no number is
    named for isn't bounded."""
    usual, rope, named = context(config), _rope(config), _named(config)
    if named is None:
        return math.inf
    if _has_two_turns(rope):
        return max(usual, named) if _reads_factors(config) else usual
    factor = rope.get("factor")
    if rope.get("rope_type") == "linear" and type(factor) in (int, float) and factor > 1:
        return max(usual, int(min(factor, 2**31) * named))
    return usual


def _reads_factors(config: Any) -> bool:
    """Whether a model's long factors are read from the configuration alone: code of its own may
    look elsewhere, and PhiMoE's scales by a text's length besides."""
    own = type(config).__module__.startswith("transformers.")
    return own and "long_mscale" not in _rope(config)


def _has_two_turns(rope: Any) -> bool:
    """Whether positions turn by other factors from some length on."""
    two = rope.get("short_factor") != rope.get("long_factor")
    return bool(rope.get("rope_type") == "longrope" and two)


def _turns_anew(rope: Any) -> bool:
    """Whether the length of a text decides how all of its keys are turned."""
    return "dynamic" in str(rope.get("rope_type")) or _has_two_turns(rope)


def _too_long(asked: int, most: float, anew: bool) -> ForetokenError:
    why = ", beyond which its rotary scaling turns all keys anew" if anew else ""
    remedy = ", or have config.json scale by 'linear' or 'yarn'" if anew else ""
    return ForetokenError(
        f"max_model_len is {asked} and the model's context is {most}{why}; lower "
        f"max_model_len{remedy}."
    )


def _named(config: Any) -> int | None:
    lengths = (getattr(config, name, None) for name in _NAMES)
    return next((value for value in lengths if isinstance(value, int)), None)


def _rope(config: Any) -> Any:
    """The rotary parameters, by their names or by those of kinds of layers."""
    return getattr(config, "rope_parameters", None) or {}


def _stretched(length: int, rope: Any) -> int:
    """A context of this many tokens, or of as many as rotary parameters' scaling is for, if it is
    YaRN's and that is more: Qwen's pages have the scaling alone put into a config.json."""
    factor, trained = rope.get("factor"), rope.get(_ORIGINAL)
    numbers = type(factor) in (int, float) and type(trained) is int
    if rope.get("rope_type") != "yarn" or not numbers or not length < factor * trained < 2**31:
        return length
    return int(factor * trained)
