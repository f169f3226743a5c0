"""What an `LLM` is loaded and served with, checked before anything is loaded."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

import torch

from foretoken.engine.cache_memory import Open, Sizes, bound_of, fitting, weights_bound
from foretoken.errors import ForetokenError, shown, unknown
from foretoken.errors.values import check_range, typed
from foretoken.grammar.compiling import check_backend
from foretoken.models.budget import CacheBudget
from foretoken.models.model import CausalLM, eos_ids
from foretoken.models.native import backends

_log = logging.getLogger("foretoken")

SEQUENCES = 8
"""That are served at a time, where nothing else is asked for."""

STORED = {
    "auto": None,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
"""kv_cache_dtype -> in which keys and values are stored; None as the model computes them."""


@dataclass(kw_only=True)
class Settings:
    """`LLM`'s keywords that are plain values, under their names, as the types declared here.

    Raises `ForetokenError` for a value of another type, and for a number below 1.
    """

    backend: str
    model_impl: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int
    max_queued: int | None
    trust_remote_code: bool
    eos_ids: Collection[int] | None
    seed: int | None
    enforce_eager: bool
    kv_cache_memory: int | float | str | None
    gpu_memory_utilization: float | None
    kv_cache_dtype: str
    weights_memory: int | str | None
    enable_prefix_caching: bool | None
    structured_outputs_backend: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = typed(field.name, getattr(self, field.name), _hints()[field.name])
            setattr(self, field.name, value)
        check_range(
            1,
            math.inf,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
        check_range(0, math.inf, max_queued=self.max_queued)
        if self.kv_cache_dtype not in STORED:
            raise unknown("kv_cache_dtype", self.kv_cache_dtype, STORED)
        check_backend(self.structured_outputs_backend)
        self.cache_bound = bound_of(self.kv_cache_memory, self.gpu_memory_utilization)
        self.weights_bound = weights_bound(self.weights_memory)
        if self.enforce_eager and backends.split(self.backend)[0] is not None:
            raise ForetokenError(
                f"enforce_eager is true and backend {self.backend!r} compiles passes; leave one "
                "out."
            )

    def of_engine(self, from_files: bool) -> dict[str, Any]:
        """What `Engine` takes as it is. from_files: whether the model was loaded here; the weights
        of another one are its owner's, who may train it or switch an adapter between two calls, and
        what caches have of earlier texts is the old weights'."""
        caching = self.enable_prefix_caching
        return {
            "chunk": self.max_num_batched_tokens,
            "max_queued": self.max_queued,
            "seed": self.seed,
            "prefix_caching": from_files if caching is None else caching,
            "structured_outputs_backend": self.structured_outputs_backend,
        }

    def budget(self) -> CacheBudget:
        """For the caches of the engine, without a limit yet."""
        return CacheBudget(widest=self.max_num_batched_tokens, dtype=STORED[self.kv_cache_dtype])

    def sizes(self, model: CausalLM) -> Sizes:
        """How many sequences are served at a time, and the context; what was not asked for is
        lowered where caches are there at once. Raises `ForetokenError` for a context that is longer
        than the model's."""
        length = self.max_model_len or model.max_length
        if length > model.max_length:
            raise ForetokenError(
                f"max_model_len is {length} and the model's context is {model.max_length}; lower "
                "max_model_len."
            )
        wanted = Sizes(self.max_num_seqs or SEQUENCES, length)
        open_ = Open(self.max_num_seqs is None, self.max_model_len is None)
        return fitting(model, wanted, open_, self.cache_bound, self.budget())

    def ends(self, model: CausalLM, tokenizer: Any) -> frozenset[int]:
        """The tokens that end a text, by default those of the model's files, else the tokenizer's.
        Raises `ForetokenError` for given ones that the model doesn't have."""
        if self.eos_ids is None:
            return _ends(model, tokenizer)
        wrong = [token for token in self.eos_ids if not 0 <= token < model.vocab_size]
        if wrong:
            raise ForetokenError(
                f"eos_ids has {shown(wrong[0])}, which is outside the model's vocabulary of "
                f"{model.vocab_size}; give its own token ids."
            )
        return frozenset(self.eos_ids)


def check_loaded(model: CausalLM, settings: Settings, dtype: Any, device: Any) -> None:
    """Raise `ForetokenError` for what a model that is loaded already can't be any more."""
    given = {
        "dtype": (dtype, str(model.dtype).removeprefix("torch.")),
        "device": (device, model.device.type),
        "backend": (settings.backend, model.backend),
        "model_impl": (settings.model_impl, "auto"),
        "weights_memory": (settings.weights_memory or "auto", "auto"),
    }
    for name, (asked, has) in given.items():
        text = str(asked).removeprefix("torch.") if isinstance(asked, torch.dtype) else str(asked)
        if text not in ("auto", has, str(model.device)):
            raise ForetokenError(
                f"{name} is {shown(asked)} and the model is loaded already; give its folder, or "
                f"load it so and leave {name} out."
            )
    length = settings.max_model_len or 0
    if length > model.max_length:
        raise ForetokenError(
            f"max_model_len is {length} and the model's context is {model.max_length}, as it was "
            "loaded; lower max_model_len, or give its folder, where scaled positions may reach "
            "further."
        )


def _ends(model: CausalLM, tokenizer: Any) -> frozenset[int]:
    """The end-of-text ids of the model's files, else of the tokenizer."""
    own = eos_ids(tokenizer)
    lost = sorted(i for i in own - model.eos_ids if 0 <= i < model.vocab_size)
    if model.eos_ids and lost:
        _log.warning(
            "The tokenizer's end of text, %d, ends no text, as the model's files name %s; give "
            "eos_ids=%s where it should.",
            lost[0],
            sorted(model.eos_ids),
            sorted({*model.eos_ids, *lost}),
        )
    return model.eos_ids or own


@cache
def _hints() -> dict[str, Any]:
    """The declared types."""
    return get_type_hints(Settings)
