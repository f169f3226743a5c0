"""The engines of a training: how long their texts are, and how many run side by side.

A GPU has an engine's caches whole from the beginning, so they are made for the recipe's texts and
for the memory that is free, and let go when they have served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from foretoken.llm import LLM
from foretoken.models.model import CausalLM

_SHARE = 0.5  # of a GPU's free memory, which a drafter's caches and the passes need as well


def beside(
    llm: LLM,
    model: CausalLM,
    length: int,
    most: int,
    config: Mapping[str, Any] | None = None,
) -> LLM:
    """An engine for texts of `length` tokens, at most `most` of them side by side. llm: whose
    tokenizer and ends of text it has. config: as `speculative_config`."""
    length = min(length, model.max_length)
    return LLM(
        model,
        tokenizer=llm.tokenizer,
        speculative_config=config,
        eos_ids=llm.engine.eos_ids,
        trust_remote_code=llm.trust_remote_code,
        max_num_seqs=sequences(cache_bytes(model, length), most, _free(model.device)),
        max_model_len=length,
    )


def cache_bytes(model: CausalLM, length: int) -> int:
    """What keys and values of a text take."""
    return 2 * model.layers * model.kv_heads * model.head_dim * model.dtype.itemsize * length


def sequences(size: int, most: int, free: int | None) -> int:
    """How many texts of this size fit, one at least; free: bytes, None where memory is taken as it
    is filled."""
    return most if free is None else max(1, min(most, int(_SHARE * free) // size))


def _free(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
