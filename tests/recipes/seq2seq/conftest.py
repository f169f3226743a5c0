"""The recipe of these tests, and a small corpus for it."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "seq2seq"
WHO = ("The old man", "My sister", "Their teacher", "A tall girl", "The new driver", "Her cousin")
DOES = ("is reading", "was looking at", "has bought", "makes", "takes home", "thinks about")
WHAT = ("the red books", "a small house", "two wooden chairs", "an apple", "his own garden")
WHERE = ("in the morning", "at the station", "on the table", "for their children", "after dinner")


@pytest.fixture
def recipe() -> Path:
    return RECIPE


def sentence(rng: random.Random) -> str:
    return f"{' '.join(rng.choice(part) for part in (WHO, DOES, WHAT, WHERE))}."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Running text and German–English pairs, in the corpora's format."""
    folder, rng = tmp_path_factory.mktemp("corpora"), random.Random(3)
    for split, count in (("train", 300), ("heldout", 40)):
        rows: list[dict[str, Any]] = []
        for i in range(count):
            text = " ".join(sentence(rng) for _ in range(3))
            rows.append({"task": "lm", "text": text})
            asked = f"Translate German to English: {split} {i} Katzen sehen den Hund."
            if i % 2:
                asked = f"{split} {i} Katzen sehen den Hund. Translate this to English."
            answer = f"{split.title()} {i} cats see the dog."
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            rows.append({"task": "translation", "src": "talks", "messages": turns})
        turns = [{"role": "user", "content": "Translate German to English: <b>Datei</b> öffnen"}]
        turns += [{"role": "assistant", "content": "<b>Open</b> a file"}]
        rows.append({"task": "translation", "src": "docs_x", "messages": turns})
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder
