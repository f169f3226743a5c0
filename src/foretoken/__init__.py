"""foretoken: exact, batched speculative decoding. Public names are loaded when first used."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretoken.async_llm import AsyncLLM
    from foretoken.engine.outputs import CompletionOutput, RequestOutput
    from foretoken.errors import ForetokenError
    from foretoken.hook import assisted
    from foretoken.llm import LLM
    from foretoken.methods import METHODS
    from foretoken.recommender.recommend import recommend
    from foretoken.sampling.params import SamplingParams
    from foretoken.speculative_config import SpeculativeConfig

    __version__: str

_HOMES = {
    "AsyncLLM": "foretoken.async_llm",
    "LLM": "foretoken.llm",
    "SamplingParams": "foretoken.sampling.params",
    "RequestOutput": "foretoken.engine.outputs",
    "CompletionOutput": "foretoken.engine.outputs",
    "ForetokenError": "foretoken.errors",
    "METHODS": "foretoken.methods",
    "SpeculativeConfig": "foretoken.speculative_config",
    "StructuredOutputsParams": "foretoken.grammar.params",
    "assisted": "foretoken.hook",
    "recommend": "foretoken.recommender.recommend",
}

__all__ = [
    "LLM",
    "METHODS",
    "AsyncLLM",
    "CompletionOutput",
    "ForetokenError",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputsParams",
    "__version__",
    "assisted",
    "recommend",
]

if os.environ.get("FORETOKEN_LOG"):
    importlib.import_module("foretoken.logs").configure(os.environ["FORETOKEN_LOG"])


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # which takes longer than all else here

        return version("foretoken")
    if name not in _HOMES:
        raise AttributeError(f"module 'foretoken' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
