"""What the adapter needs of transformers: checks of what can be served, and a cache for one pass.

A `Rows` layer puts the keys and values of a pass after each row's committed length and hands back
views of what lies in the cache. It lives for one pass; all state is the `KVCache`'s.

Legend: B rows, T tokens of the pass, K key/value heads, W head width, L = longest row's length.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, local
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KV, KVCache, KVShape, as_stored
from foretoken.models.feed import Feed

_GROUPED = "TRANSFORMERS_SDPA_FORCE_GQA"
_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}


def unsupported(config: Any) -> str | None:
    """Why a configuration can't be served and what to use instead, or None where nothing shows."""
    text = config.get_text_config(decoder=True)
    kinds = set(_listed(text))
    foreign = ", ".join(sorted(kinds - _KINDS))
    if getattr(config, "is_encoder_decoder", False):
        return (
            "it is an encoder-decoder; use a decoder-only model, or give LLM the folder of a T5, "
            "BART, mBART or Marian, which run natively"
        )
    if _alibi(text):
        return (
            "ALiBi takes distances from the place in the cache, which a draft tree breaks; use a "
            "model with rotary or learned positions"
        )
    if foreign:
        return (
            f"its layers of type {foreign} keep more than keys and values (or another mask than a "
            "window); use a model with full or sliding-window attention in every layer"
        )
    if "local" in getattr(text, "attention_layers", ()):
        return (
            "its local attention counts places in the cache, which a draft tree breaks; use a "
            "model with full attention, or a sliding window that transformers puts in the mask"
        )
    sparse = getattr(text, "attention_type", None) == "block_sparse"
    if sparse or getattr(text, "keep_window_size", None):
        return (
            "its attention leaves cells of the cache out where a text is long, by places, which a "
            "draft tree breaks; use a model with full or sliding-window attention in every layer"
        )
    if getattr(text, "attention_chunk_size", None) and not kinds:
        return "its attention is cut into chunks; use a model with full or sliding-window attention"
    return None


def _listed(config: Any) -> Any:
    """The types of layers, where a configuration lists them."""
    named = (getattr(config, name, None) for name in ("layer_types", "layers_block_type"))
    return next(filter(None, named), ())


def _attends(config: Any) -> bool:
    """Whether every layer is listed as one that keeps keys and values."""
    listed = _listed(config)
    return len(listed) == config.num_hidden_layers and _KINDS.issuperset(listed)


def _alibi(config: Any) -> bool:
    nested = getattr(config, "attn_config", None)
    nested_alibi = nested.get("alibi") if isinstance(nested, dict) else getattr(nested, "alibi", 0)
    return config.model_type == "bloom" or bool(getattr(config, "alibi", False) or nested_alibi)


def unfit(model: PreTrainedModel, decoder: Any) -> str | None:
    """Why a loaded model can't be served (its class, its forward, its devices), like
    `unsupported`."""
    text = model.config.get_text_config(decoder=True)
    if getattr(model, "_is_stateful", False) and not _attends(text):  # said of a whole family
        return (
            "it keeps a recurrent state, which can't go back to before a rejected draft; use a "
            "model with attention in every layer"
        )
    takes = inspect.signature(decoder.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    for name in ("past_key_values", "position_ids"):
        if name not in takes and not open_ended:
            return f"its forward takes no {name}; use a model whose forward does"
    kind = getattr(model.config, "_attn_implementation", None) or "eager"
    if kind not in ("sdpa", "eager"):
        return f"attention {kind!r} takes no tree's mask; load it with attn_implementation='sdpa'"
    if len({p.device for p in model.parameters()}) > 1:
        return "its weights lie on several devices; load it on one"
    return None


def windows(config: Any) -> dict[str, int | None]:
    """The sliding window of each kind of layer; one entry where all layers take the same mask."""
    family, window = type(config), getattr(config, "sliding_window", None)
    unused = getattr(config, "use_sliding_window", None) is False
    if unused or not _reads(family, "sliding_window", "layer_types"):
        window = None
    kinds = getattr(config, "layer_types", None) if _reads(family, "layer_types") else None
    kinds = dict.fromkeys(kinds or ("sliding_attention",))
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}


def looks(config: Any, layers: int) -> list[int | None]:
    """How far each of the layers looks back that put keys into a cache, by the masks that they get;
    None for all where these are not all layers, as some then read others' keys."""
    known, kinds = windows(config), getattr(config, "layer_types", None) or ()
    if len(known) == 1:
        return [*known.values()] * layers
    return [known[kind] for kind in kinds] if len(kinds) == layers else [None] * layers


def _reads(family: type, *fields: str) -> bool:
    """Whether models of this configuration read one of these fields: a config.json may name it for
    any, and those of transformers' own families that know it declare it."""
    declared = {name for each in family.__mro__ for name in vars(each)}
    known = not declared.isdisjoint(fields)
    return known or not family.__module__.startswith("transformers.models.")


def masks(config: Any, feed: Feed, dtype: torch.dtype) -> Any:
    """What a decoder's forward takes as its mask: one [B, 1, T, L], or one for each kind of layer
    where some have a window, or see their own chunk of positions only."""
    made = {kind: feed.mask(dtype, window) for kind, window in windows(config).items()}
    if "chunked_attention" in made:
        made["chunked_attention"] = feed.chunked(dtype, config.attention_chunk_size)
    return made if len(made) > 1 else next(iter(made.values()))


class Rows(CacheLayerMixin):
    """One layer of the cache for one pass."""

    is_sliding = False  # a window is left to the mask: the cache has a cell for every position

    def __init__(self, data: KV, feed: Feed, together: bool) -> None:
        """`together`: the rows are neighbouring slots, in order, and can be read as a view."""
        super().__init__()
        self.is_initialized = True
        self.data, self.feed, self.together = data, feed, together

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write [B, K, T, W] each; hand back everything up to L, [B, K, L, W] each."""
        return self._put(self.data.keys, key_states), self._put(self.data.values, value_states)

    def _put(self, kept: Tensor, new: Tensor) -> Tensor:
        """Write [B, K, T, W]; all rows up to L, [B, K, L, W]: a view where they lie together, else
        a copy."""
        feed = self.feed
        slots, places = feed.cells()
        if feed.alone:
            start = feed.starts[0]
            kept[feed.slots[0], :, start : start + new.shape[2]] = as_stored(new[0], kept.dtype)
        else:
            kept[slots, :, places] = as_stored(new.transpose(1, 2), kept.dtype)
        if self.together:
            first = feed.slots[0]
            return kept[first : first + len(feed.slots), :, : feed.length].to(new.dtype)
        return kept[:, :, : feed.length].index_select(0, slots[:, 0]).to(new.dtype)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.feed.length, 0

    def get_seq_length(self) -> int:
        return max(self.feed.starts)

    def get_max_length(self) -> int:
        return int(self.data.keys.shape[2])

    def get_max_cache_shape(self) -> int:  # what transformers 5.10 calls `get_max_length`
        return self.get_max_length()


def pass_cache(cache: KVCache, feed: Feed) -> Cache:
    """The cache object for one pass of `feed`."""
    rows = feed.slots
    together = rows == list(range(rows[0], rows[0] + len(rows)))
    return Cache(layers=[Rows(data, feed, together) for data in cache.layer])


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model without dropout; every module's mode is put back. Adapters that were added to a
    model in evaluation mode train all the same."""
    training: list[Any] = []
    modules: list[Any] = [model]
    for module in modules:  # each pass looks: a quarter of the time of model.modules()
        if module is not None:
            modules += module._modules.values()
            if module.training:
                training.append(module)
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Answers:
    """Has a module answer something given, to those threads alone that ask for it.

    A drafter that learns during decoding reads the head while the decoder runs.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._own, self._asking = module, None, 0
        self._lock, self._given = Lock(), local()

    @contextmanager
    def __call__(self, output: Any) -> Iterator[None]:
        """`output` to whatever this thread calls the module with."""
        self._given.output = output
        with self._lock:
            self._asking += 1
            if self._asking == 1:
                self._put_in()
        try:
            yield
        finally:
            del self._given.output
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._take_out()

    def _put_in(self) -> None:
        self._own = self._module.__dict__.get("forward")
        forward, given = self._module.forward, self._given

        def answer(*args: Any, **kwargs: Any) -> Any:
            return given.output if hasattr(given, "output") else forward(*args, **kwargs)

        self._module.forward = answer

    def _take_out(self) -> None:
        if self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own


@contextmanager
def grouped_heads(device: torch.device) -> Iterator[None]:
    """On a CPU, SDPA reads grouped keys and values in place; with a mask it would copy them."""
    if device.type != "cpu" or _GROUPED in os.environ:
        yield
        return
    os.environ[_GROUPED] = "1"
    try:
        yield
    finally:
        os.environ.pop(_GROUPED, None)


class Storage:
    """The shape that a layer stores of a token, read off a pass over an empty cache."""

    def __init__(self, name: str, seen: DynamicCache, config: Any) -> None:
        keys = [layer.keys for layer in seen.layers if getattr(layer, "keys", None) is not None]
        values = [layer.values for layer in seen.layers if getattr(layer, "keys", None) is not None]
        if not keys or len(keys) != len(seen.layers):
            raise ForetokenError(
                f"{name} can't be served: not every layer puts keys and values into the cache it "
                "is given; use a model with ordinary attention in every layer."
            )
        self.shapes = [
            KVShape(k.shape[1], k.shape[3], v.shape[3], window)
            for k, v, window in zip(keys, values, looks(config, len(keys)), strict=True)
        ]
        if [k.shape[1] for k in keys] != [v.shape[1] for v in values]:
            raise ForetokenError(
                f"{name} can't be served: a layer's keys and values differ in their number of "
                "heads; use a model where they are alike."
            )
        self.dtype: torch.dtype = keys[0].dtype
        self.device: torch.device = keys[0].device

    def new(
        self, slots: int, max_length: int, positions: int, spare: int, budget: CacheBudget | None
    ) -> KVCache:
        return KVCache(
            self.shapes,
            slots,
            max_length,
            self.dtype,
            self.device,
            spare=spare,
            positions=positions,
            budget=budget,
        )
