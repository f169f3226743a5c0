"""The check for prompts that stand in the training text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken import zoo
from foretoken.bench.suites import data


@pytest.mark.slow
@pytest.mark.skipif(data.folder() is None, reason="FORETOKEN_DATA names no folder of texts")
def test_prompts_are_not_in_the_training_text() -> None:
    """No run of 13 words of a bundled prompt stands in the corpus."""
    import check_prompts
    import corpus

    train = corpus.default_folder() / "train.jsonl.gz"
    assert check_prompts.shared(zoo.prompts_path(), train) == []


def test_shared_runs_are_found(tmp_path: Path) -> None:
    """A run of 13 words that stands in both texts is reported."""
    import gzip

    import check_prompts

    text = " ".join(f"word{i}" for i in range(20))
    train = tmp_path / "train.jsonl.gz"
    with gzip.open(train, "wt") as out:
        out.write(json.dumps({"src": "a", "task": "lm", "text": f"before {text} after"}) + "\n")
    line = {"id": "x", "task": "qa", "turns": [text[: text.index("word13")]]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(line) + "\n")
    assert len(check_prompts.shared(tmp_path / "prompts.jsonl", train)) == 1
