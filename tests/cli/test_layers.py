"""`foretoken layers`: a layer set as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import one_sentence, run
from foretoken import LLM, ForetokenError
from foretoken.models import layer_set
from foretoken.models.load import load_model
from foretoken.models.target import ModelTarget
from foretoken.tune.layers import LayerSet, Search


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


def test_a_place_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that isn't there is made, and one that can't be is refused before the search."""

    def never(self: Search, *_: object) -> LayerSet:
        raise AssertionError

    monkeypatch.setattr(Search, "run", never)
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "mini.npz", tmp_path):
        one_sentence(run("layers", "--prompts", 1, "--out", place))
    best = LayerSet((2, 3), 0.1, 0.2, 0.5, trials=7)
    monkeypatch.setattr(Search, "run", lambda *_: best)
    done = run("layers", "--prompts", 1, "--trials", 9, "--out", tmp_path / "new" / "mini.npz")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "mini.npz").is_file() and "after 7 of 9 layer sets" in done.stderr
    assert "without sub-layers 2, 3 a token takes 100.00 ms" in done.stdout
    assert " ms, plainly 200.00 ms; 50% of the drafted tokens" in done.stdout
