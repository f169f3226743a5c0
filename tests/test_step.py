"""What a step asks of the machine: one transfer to the host, and tensor work that rows share.

Counted, not clocked. On a CPU a tensor's view in numpy is no transfer; on a GPU it would raise.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from foretoken import LLM, SamplingParams
from foretoken.engine.engine import Engine
from foretoken.sampling import fold
from foretoken.testing import Pair
from foretoken.verify.shared import paths

TRANSFERS = {"tolist", "item", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"}
PROMPT = [5, 9, 2, 5, 9, 2, 5]
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "pld": {"method": "pld"},
    "sps": {"method": "sps", "num_speculative_tokens": 4},
    "specinfer": {"method": "specinfer"},
    "draft_verify": {"method": "draft_verify", "skip": [2, 3]},
}


class Transfers(TorchFunctionMode):
    """Counts the calls that bring numbers to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.seen[name] += name in TRANSFERS
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Counts operations by their names, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += not func.is_view
        return func(*args, **(kwargs or {}))


def begun(pair: Pair, method: str, batch: int) -> Engine:
    """An engine whose requests have all written their first tokens."""
    config = METHODS[method]
    if method in ("sps", "specinfer"):
        config = {**(config or {}), "model": pair.draft}
    engine = LLM(pair.target, speculative_config=config, max_num_seqs=batch).engine
    for _ in range(batch):
        engine.add(PROMPT, GREEDY)
    while engine.stats.engine_steps < 3:
        engine.step()
    return engine


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("method", ["plain", "pld", "sps"])
def test_a_step_transfers_once(
    pair: Pair, method: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is done on a GPU, where what is compared as lists on a CPU would be transferred."""
    monkeypatch.setattr(paths, "_on_host", lambda x: False)
    engine = begun(pair, method, batch)
    for _ in range(4):
        with Transfers() as transfers:
            engine.step()
        assert +transfers.seen == {"tolist": 1}


def test_transfers_are_seen() -> None:
    with Transfers() as transfers:
        assert float(torch.ones(1)) == torch.ones(1).item() == 1 and torch.ones(1) > 0
    assert +transfers.seen == {"__float__": 1, "item": 1, "__bool__": 1}


@pytest.mark.parametrize("method", ["plain", "sps", "specinfer", "draft_verify"])
def test_rows_share_the_work(pair: Pair, method: str) -> None:
    """Eight rows take no more operations than two (a single one is spared its mask)."""
    counts = []
    for batch in (2, 8):
        engine = begun(pair, method, batch)
        with Operations() as operations:
            engine.step()
        counts.append(+operations.seen)
    assert counts[0] - counts[1] == counts[1] - counts[0] == Counter()


@pytest.mark.parametrize("method", ["plain", "pld", "sps"])
def test_point_masses_are_not_written_out(
    pair: Pair, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At temperature 0 a chain's distributions over the vocabulary are never made."""
    engine = begun(pair, method, 2)

    def refuse(*_: object) -> None:
        raise AssertionError("distributions were asked for")

    monkeypatch.setattr(fold, "_one_hot", refuse)
    engine.step()
