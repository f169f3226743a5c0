"""Killed, it goes on where it was."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest


def test_a_cut_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a model is not taken for one to begin with: it is cut again."""
    import train

    given = Namespace(work=tmp_path, target="model.gguf", data="prompts.jsonl")
    asked: list[str] = []

    def run(*command: str) -> None:
        asked.append(command[0])
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        (out / "config.json").write_text("{}")
        if len(asked) == 1:
            raise KeyboardInterrupt
        (out / "model.safetensors").write_text("")

    monkeypatch.setattr(train, "run", run)
    with pytest.raises(KeyboardInterrupt):
        train.changes_of("middle", given)
    wanted = ["--set", f"shape={{model: {tmp_path}/middle-begun}}"]
    assert train.changes_of("middle", given) == wanted
    assert len(list((tmp_path / "middle-begun").iterdir())) == 2
    train.changes_of("middle", given)
    assert asked == ["prune", "prune"] and len(list(tmp_path.iterdir())) == 1
