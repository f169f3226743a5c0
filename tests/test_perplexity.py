"""The record of formats' perplexities."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

import gguf_files
from foretoken.models.native.backends import blocks

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import perplexity as benchmark  # noqa: E402


@pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")
def test_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats differ in their weights, and little in what the arithmetic adds."""
    monkeypatch.setattr(benchmark, "text", lambda characters: "the cat in the hat " * characters)
    model = str(gguf_files.written(tmp_path / "a.gguf", "llama", Kind.Q8_0))
    arguments = [
        "--models",
        model,
        "--formats",
        "blocks",
        "q4",
        "--tokens",
        "120",
        "--window",
        "40",
    ]
    monkeypatch.setattr(sys, "argv", ["perplexity.py", *arguments, "--out", str(tmp_path)])
    benchmark.main()
    stored, four = json.loads((tmp_path / "perplexity.json").read_text())["rows"]
    assert (stored["format"], four["format"]) == ("blocks", "q4")
    assert stored["weights"] == stored["numbers"] == four["numbers"] != four["weights"]
    for row in (stored, four):
        assert row["arithmetic"] == row["executed"] / row["weights"] != 1
        assert 0.8 < row["arithmetic"] < 1.25
        assert row["low"] <= row["arithmetic"] <= row["high"]
    assert four["mb"] == pytest.approx(stored["mb"] * 4.5 / 8.5)
