"""benchmarks/grammar.py: no answer is copied from an earlier round, nobody is always the first."""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken import LLM

pytest.importorskip("llguidance")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import grammar  # noqa: E402

SHORT = {"type": "string", "maxLength": 40}


def test_rounds_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens a pass in two rounds as in one, for what keeps answers too."""
    monkeypatch.setattr(grammar, "TEXTS", grammar.TEXTS[:2])
    few = {"properties": {"name": SHORT, "city": SHORT}, "required": ["name", "city"]}
    monkeypatch.setattr(grammar, "PERSON", grammar.PERSON | few)
    with LLM("mini", max_num_seqs=1) as llm:
        one, two = (
            grammar.extraction(Namespace(draft_model="mini-draft", repeats=repeats), llm)
            for repeats in (1, 2)
        )
    for method in ("autoregressive", "grammar", "grammar+suffix", "grammar+sps"):
        lengths = [found[method]["acceptance_length"] for found in (one, two)]
        assert lengths[0] == pytest.approx(lengths[1]), method
        assert two[method]["same_texts"] == 2


def test_turns_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each method is the first as often as the others; a speed is of the method's own tokens."""
    turns: list[str] = []
    lengths = {"autoregressive": 4, "grammar": 4, "grammar+suffix": 4, "grammar+sps": 2}

    class Fake:
        model = tokenizer = None
        stats = SimpleNamespace(mean_acceptance_length=1.0, ms_per_step={})

        def __init__(self, *_: Any, speculative_config: Any = None, **__: Any) -> None:
            self.name = (speculative_config or {"method": "autoregressive"})["method"]

        def chat_prompt(self, turns: Any) -> list[int]:
            return [1]

        def reset_stats(self) -> None:
            return

        def generate(self, *_: Any) -> list[Any]:
            return [SimpleNamespace(token_ids=[1] * lengths[self.name])]

    monkeypatch.setattr(grammar, "LLM", Fake)
    monkeypatch.setattr(grammar, "forget", lambda llm: turns.append(llm.name))
    monkeypatch.setattr(grammar, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(grammar, "TEXTS", grammar.TEXTS[:4])
    first: Any = Fake()
    found = grammar.extraction(Namespace(draft_model="x", repeats=2), first)
    leads = [turns[at] for at in range(0, len(turns), 4)]
    assert {name: leads.count(name) for name in lengths} == dict.fromkeys(lengths, 2)
    assert leads[0] != leads[4]  # nor of the same text
    assert {name: found[name]["tokens_per_second"] for name in lengths} == lengths
    assert found["grammar+sps"]["speedup"] == 0.5 and found["grammar+sps"]["same_texts"] == 0
    assert found["grammar"]["speedup"] == 1.0 and found["tokens"] == 16


def test_a_speedup_of_unlike_texts() -> None:
    """Half of the tokens in half of the time is no gain."""
    plain, own = np.array([[8.0, 2.0], [4.0, 1.0]]), np.array([[4.0, 1.0], [2.0, 0.5]])
    assert grammar.speedup(plain, own) == {"speedup": 1.0, "speedup_interval": (1.0, 1.0)}
