"""benchmarks/loading.py: the record keeps what is promised of loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).parents[1] / "benchmarks" / "results" / "loading.json"
if not RECORD.is_file():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
SECONDS = {"qwen2.5-coder-1.5b-instruct": 6.0, "smollm2-135m-instruct": 1.5}
BESIDES = 200  # MiB at most that loading takes beside weights and imports


@pytest.mark.parametrize("name", SECONDS)
def test_as_fast_and_as_small_as_promised(name: str) -> None:
    """From a warm page cache, the imports that `LLM` makes included."""
    models: list[dict[str, Any]] = json.loads(RECORD.read_text("utf-8"))["models"]
    [found] = [model for model in models if model["name"] == name]
    assert found["seconds"] <= SECONDS[name]
    assert found["peak_mib"] <= found["weights_mib"] + found["imports_mib"] + BESIDES
