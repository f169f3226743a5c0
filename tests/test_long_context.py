"""8,192 tokens of context: the right tokens, and steps whose cost grows with attention alone.

Counted, not clocked: the operations of a step, the bytes of the tensors they make, and the memory
that Python asks for.
"""

from __future__ import annotations

import random
import statistics
import tracemalloc
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foretoken import LLM, SamplingParams
from foretoken.engine.engine import Engine
from foretoken.engine.request import Request
from foretoken.testing.models import Pair, tiny_pair

SHORT, LONG = 1_024, 8_192
STEPS = 6
VOCAB = 97
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "pld": {"method": "pld"},
    "sps": {"method": "sps", "num_speculative_tokens": 4},
}


@cache
def pair() -> Pair:
    return tiny_pair(VOCAB, layers=2, width=16, max_length=LONG + 128)


def tokens(count: int) -> list[int]:
    rng = random.Random(0)
    return [rng.randrange(VOCAB) for _ in range(count)]


def load(method: str) -> LLM:
    config = METHODS[method]
    if method == "sps":
        config = {**(config or {}), "model": pair().draft}
    return LLM(pair().target, speculative_config=config, max_num_seqs=1)


class Counted(TorchDispatchMode):
    """Operations, and bytes of the new tensors that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        if not func.is_view and func.overloadpacket.__name__[-1:] != "_":
            made = out if isinstance(out, (tuple, list)) else (out,)
            self.bytes += sum(x.nbytes for x in made if isinstance(x, torch.Tensor))
        return out


@cache
def begun(method: str, context: int) -> tuple[Engine, Request]:
    """An engine with one request, of which so many tokens are read and the first are written."""
    engine = load(method).engine
    request = engine.add(tokens(context), GREEDY)
    while engine.stats.passes < 2:
        engine.step()
    return engine, request


def of_torch(method: str, context: int) -> list[tuple[int, int, int]]:
    """(operations, bytes, places of the pass) of each step."""
    found = []
    engine, _ = begun(method, context)
    for _ in range(STEPS):
        before = engine.stats.drafted
        with Counted() as counted:
            engine.step()
        places = 1 + engine.stats.drafted - before
        found.append((counted.operations, counted.bytes, places))
    return found


def of_python(method: str, context: int) -> float:
    """Bytes that a step takes from Python's memory at its peak; the median."""
    engine, _ = begun(method, context)
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(STEPS):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            engine.step()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return statistics.median(peaks)


def test_a_plain_step_is_the_same_work_at_any_length() -> None:
    """Not one operation and not one byte more, eight times as far in the text."""
    assert of_torch("plain", LONG) == of_torch("plain", SHORT)


@pytest.mark.parametrize("method", ["sps", "pld"])
def test_a_drafting_step_grows_with_its_mask(method: str) -> None:
    """As many operations; and bytes of the mask alone, some numbers a place and cache cell.

    Steps that checked as much are compared, the cheapest of each: a drafter has one token more to
    read where all of its draft was accepted.
    """
    near, far = (
        {places: work for *work, places in sorted(of_torch(method, n), reverse=True)}
        for n in (SHORT, LONG)
    )
    both = near.keys() & far.keys()
    assert both
    for places in both:
        assert far[places][0] == near[places][0]
        passes = 2 * max(places, 5)  # a small model's passes have masks too
        assert far[places][1] - near[places][1] <= 100 * passes * (LONG - SHORT)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_copies_the_history(method: str) -> None:
    """Eight times the text, and no list of it is made: that would be 57 KB more."""
    assert of_python(method, LONG) - of_python(method, SHORT) < 16_384


def written(method: str) -> list[int]:
    """All 64 tokens after the long text."""
    engine, request = begun(method, LONG)
    while engine.busy:
        engine.step()
    return request.samples[0].output.token_ids


@pytest.mark.parametrize("method", ["sps", "pld"])
def test_the_same_tokens(method: str) -> None:
    """A draft far in the text is checked like any other."""
    assert written(method) == written("plain") and len(written(method)) == 64


@torch.inference_mode()
def test_what_transformers_says() -> None:
    """The first tokens after 8,192 others, by transformers' own forward and cache."""
    from transformers import DynamicCache

    model, prompt, held = pair().transformers, tokens(LONG), DynamicCache()
    for at in range(0, LONG, 512):
        out = model(torch.tensor([prompt[at : at + 512]]), past_key_values=held)
    said = []
    for _ in range(8):
        said.append(int(out.logits[0, -1].argmax()))
        out = model(torch.tensor([said[-1:]]), past_key_values=held)
    assert written("plain")[:8] == said
