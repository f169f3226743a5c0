"""What quantised execution costs a model in quality: perplexity on a text.

Of three models: `numbers` is the checkpoint's in float32, GGUF files dequantised; `weights` has the
weights of a format, dequantised, in float32: what fewer bits cost; `executed` is that format as it
runs, tokens rounded to 8 bits: what the arithmetic costs in addition is `executed` over `weights`.
The text is read in windows; every token after a window's first counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretoken.bench.measure.bootstrap import Floats, interval
from foretoken.engine.prompts import text_ids
from foretoken.errors import ForetokenError, shown
from foretoken.models import gguf
from foretoken.models.feed import chain_feed
from foretoken.models.load import (
    find,
    load_model,
    load_tokenizer,
    read_config,
    unsupported,
    weights,
)
from foretoken.models.model import CausalLM
from foretoken.models.native.backends import quantise
from foretoken.models.native.build import build_native

STORED = "blocks"
"""The backend that multiplies a GGUF file's own blocks."""
BACKENDS = (STORED, *quantise.BACKENDS)
_CPU = torch.device("cpu")

Windows = Sequence[Sequence[int]]
Done = Callable[[], None]
"""Called after each window of each model."""


@dataclass(frozen=True)
class Row:
    """Perplexities of one backend. tokens: how many count. mb: megabytes that a pass reads.
    arithmetic: `executed` over `weights`. low, high: its 95 % bootstrap interval over windows, NaN
    for a single window: rounding moves a perplexity up or down, by chance, more than it adds."""

    model: str
    backend: str
    tokens: int
    mb: float
    numbers: float
    weights: float
    executed: float
    low: float
    high: float

    @property
    def arithmetic(self) -> float:
        return self.executed / self.weights


def default_backends(source: str) -> list[str]:
    """A GGUF file's own blocks, where it has such, else every format."""
    place = find(source)
    own = gguf.is_named(place) and gguf.has_blocks(place)
    return [STORED] if own else list(quantise.BACKENDS)


def passes(backends: Sequence[str]) -> int:
    """How many times `rows` reads the text."""
    return 1 + sum(1 if backend == STORED else 2 for backend in backends)


def rows(source: str, backends: Sequence[str], windows: Windows, done: Done) -> Iterator[Row]:
    """A row for each backend of `BACKENDS`. Raises `ForetokenError` for another, for the blocks of
    a checkpoint that has none, for a model that doesn't run natively, and for windows longer than
    its context."""
    _check_native(source)
    for backend in backends:
        if backend not in BACKENDS:
            raise ForetokenError(
                f"Backend {shown(backend)} is none whose weights are compared; give one of "
                f"{', '.join(BACKENDS)}."
            )
        if backend == STORED and not gguf.is_named(find(source)):
            raise ForetokenError(
                f"{source} is no GGUF file, so it has no blocks; give as backend "
                f"{', '.join(quantise.BACKENDS)}."
            )
    whole = load_model(source, device=_CPU, dtype="float32")
    longest = max(map(len, windows))
    if longest > whole.max_length:
        raise ForetokenError(
            f"A window has {longest} tokens and the context of {source} is {whole.max_length}; "
            "give smaller windows."
        )
    numbers = losses(whole, windows, done)
    del whole
    for backend in backends:
        exact = numbers if backend == STORED else losses(_float32(source, backend), windows, done)
        model = load_model(source, device=_CPU, backend=backend)
        found = losses(model, windows, done)
        low, high = ratio_interval(exact, found)
        yield Row(
            gguf.model_name(source),
            backend,
            tokens=int(numbers[:, 1].sum()),
            mb=model.bytes_read / 1e6,
            numbers=perplexity(numbers),
            weights=perplexity(exact),
            executed=perplexity(found),
            low=low,
            high=high,
        )


def _check_native(source: str) -> None:
    """Raise `ForetokenError` for a model whose weights have no other formats here."""
    place = find(source)
    here = gguf.is_named(place) and gguf.is_read_here(place)
    reason = None if here else unsupported(place, read_config(place))
    if reason is not None:
        raise ForetokenError(
            f"{source} doesn't run natively, as {reason}, so its weights have no formats to "
            "compare; give a model that does."
        )


def cut(
    source: str, text: str, tokens: int, window: int, *, exactly: bool = True
) -> list[list[int]]:
    """The first tokens of a text in windows, each after the model's mark of a beginning. Raises
    `ForetokenError` for a text of fewer, or, unless `exactly` so many are wanted, of fewer than
    two."""
    tokenizer = load_tokenizer(source)
    ids = text_ids(text, tokenizer, special=False)[:tokens]
    wanted = tokens if exactly else 2
    if len(ids) < wanted:
        raise ForetokenError(
            f"The text has {len(ids)} tokens, and {wanted} are wanted; give a longer one, or ask "
            "for fewer."
        )
    first = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    windows = [first + ids[start : start + window] for start in range(0, len(ids), window)]
    return [one for one in windows if len(one) > 1]  # of a single token nothing counts


@torch.inference_mode()
def losses(model: CausalLM, windows: Windows, done: Done) -> Floats:
    """[windows, 2]: the sum of what its tokens after the first are worth, -ln p, and their
    number."""
    found = []
    for window in windows:
        cache = model.new_cache(1, len(window) + 1)
        feed = chain_feed(cache, [cache.acquire(0)], [list(window)])
        feed.last = None  # logits of all
        logits = model.forward(feed, cache).logits
        assert logits is not None
        targets = torch.tensor(window[1:], device=logits.device)
        total = torch.nn.functional.cross_entropy(logits[0, :-1], targets, reduction="sum")
        found.append((float(total), len(targets)))
        done()
    return np.array(found, dtype=np.float64)


def perplexity(found: Floats) -> float:
    """Of the losses of windows."""
    total, count = found.sum(0)
    return math.exp(total / count)


def ratio_interval(exact: Floats, found: Floats) -> tuple[float, float]:
    """95 % of the second perplexity over the first, over windows. NaN for a single window."""
    groups = np.stack([found[:, 0] - exact[:, 0], exact[:, 1]], 1)

    def ratio(totals: Floats) -> Floats:
        return np.asarray(np.exp(totals[..., 0] / totals[..., 1]))

    return interval(groups, ratio, tail=0.025, resamples=2000) or (math.nan, math.nan)


def _float32(source: str, backend: str) -> CausalLM:
    """The model with a format's numbers, in float32."""
    place, quantiser = find(source), quantise.BACKENDS[backend]
    stored = weights(place, narrow=False)

    def read(name: str) -> Any:
        tensor = quantiser.stored(stored(name))
        return tensor if tensor is None or len(tensor.shape) != 2 else _whole(tensor)

    config = gguf.native_config_of(place) if gguf.is_named(place) else read_config(place)
    return build_native(config, read, torch.float32, _CPU, "panels")


def _whole(blocks: Any) -> Tensor:
    matrix: Tensor = blocks(torch.arange(len(blocks)))
    return matrix
