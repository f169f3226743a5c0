"""benchmarks/grammar.py: a text is never copied from an earlier round's answer."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

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
