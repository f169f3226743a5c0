"""`foretoken layers`: a layer set as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import run
from foretoken import LLM, ForetokenError
from foretoken.models import layer_set
from foretoken.models.load import load_model
from foretoken.models.target import ModelTarget


def test_the_command(tmp_path: Path) -> None:
    """`foretoken layers` writes a file that draft_verify takes for this model and for no other."""
    pytest.importorskip("optuna")
    out = tmp_path / "mini.npz"
    command = f"layers --trials 2 --tokens 4 --prompts 1 --out {out}"
    done = run(*command.split())
    assert done.exit_code == 0, done.output
    assert "a token takes" in done.output
    mini = ModelTarget(load_model("mini"), 1, 64)
    assert set(layer_set.load(out, mini)) <= set(range(14))
    assert LLM("mini", speculative_config={"method": "draft_verify", "skip": str(out)})
    with pytest.raises(ForetokenError, match="use a layer set of this target's"):
        LLM("mini-draft", speculative_config={"method": "draft_verify", "skip": str(out)})
