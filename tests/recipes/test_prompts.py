"""The file of prompts for `foretoken train`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_a_work_folder_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is made; prompts come with their answers, of the tasks that are asked for."""
    import prompts

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    records = [{"task": task, "messages": turns} for task in ("qa", "math", "code")]
    monkeypatch.setattr(prompts, "records_by_source", lambda folder, split: {"one": records})
    out = tmp_path / "new" / "work" / "prompts.jsonl"
    given = ["--data", str(tmp_path), "--tasks", "math", "qa", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["prompts.py", *given])
    prompts.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [{"task": task, "messages": turns} for task in ("math", "qa")]


def test_passages_of_running_text() -> None:
    """Whole sentences, no longer than is asked for; texts that are too short give none."""
    import random

    import prompts

    text = " ".join(f"Sentence {i} is here." for i in range(300))
    records = [
        {"task": "lm", "text": text},
        {"task": "lm_de", "text": text},
        {"task": "lm", "text": "Short. Text."},
    ]
    for seed in range(20):
        [row] = prompts.prompts(list(records), 5, ("passage",), seed, 2000)
        [turn] = row["messages"]
        text_of = turn["content"]
        fits = [ask.split("{}") for ask in prompts.ASKS]
        fits = [x for x in fits if text_of.startswith(x[0]) and text_of.endswith(x[1])]
        before, after = max(fits, key=lambda ends: len("".join(ends)))
        piece = text_of.removeprefix(before).removesuffix(after)
        assert len(piece) >= 450 and len(text_of) <= 2000
        assert piece.startswith("Sentence") and piece.endswith("here.") and piece in text
    assert prompts.passage(records[2], random.Random(0), 2000) is None
    assert list(prompts.prompts(list(records), 5, prompts.TASKS, 0)) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--tasks", "passage", "--longest", "400"], "900 characters or more"),
        (["--tasks", "qa", "code", "--split", "heldout"], "code is of the train split"),
    ],
)
def test_what_would_write_nothing(
    given: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import prompts

    monkeypatch.setattr(sys, "argv", ["prompts.py", *given, "--out", str(tmp_path / "x.jsonl")])
    with pytest.raises(SystemExit):
        prompts.main()
    assert reason in capsys.readouterr().err
