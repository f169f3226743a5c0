"""The texts of both tasks: clean sentences to be broken, and German–English pairs.

`sentences(split)` and `translations(split)` read `{train,heldout}.jsonl.gz` of the corpus folder
(the format is in recipes/zoo/README.md). Training batches are a function of seed and number alone,
so resuming needs no state; texts of about one length come together.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from errors import corrupt, count_for
from foretoken.bench.suites import data

Pair = tuple[str, str]

TASKS = ("corrector", "translator")
GERMAN_FIRST = re.compile(
    r"^(?:Translate German to English: |Translate the following German sentence into English\.\s+)"
    r"(?P<a>.*)$|^(?P<b>.*)\s+Translate this to English\.$",
    re.DOTALL,
)
MARKUP = ("docs_",)
"""Sources of translations that are mostly markup."""
MOST_RATE = 0.10  # of a training sentence's words that are broken; from 0, evenly
_CLEAN = re.compile(r"^[A-Z\"“][A-Za-z0-9 ,;:'’\"“”()-]{28,240}[.?!][\"”]?$")
_END = re.compile(r"(?<=[a-z)\"”][.?!])\s+(?=[A-Z\"“])")
_POOL = 32  # batches that are cut from one draw, by length


def corpora(given: Path | None) -> Path:
    """The folder of the corpus."""
    root = data.folder()
    if given is None and root is None:
        raise SystemExit("Give the corpus folder with --data, or set FORETOKEN_DATA.")
    return given or root / "corpora"  # type: ignore[operator]


def _records(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def sentences(folder: Path, split: str) -> list[str]:
    """Clean English sentences of running text and of the translations, each once."""
    found: set[str] = set()
    for record in _records(folder, split):
        if record["task"] == "lm":
            for text in _END.split(" ".join(record["text"].split())):
                if _CLEAN.match(text) and 5 <= text.count(" ") <= 45:
                    found.add(text)
    found |= {english for _, english in translations(folder, split) if _CLEAN.match(english)}
    return sorted(found)


def translations(folder: Path, split: str) -> list[Pair]:
    """(German, English), without those that are mostly markup."""
    found: set[Pair] = set()
    for record in _records(folder, split):
        if record["task"] != "translation" or record["src"].startswith(MARKUP):
            continue
        asked, answer = (m["content"].strip() for m in record["messages"][:2])
        match = GERMAN_FIRST.match(asked)
        if match is None:
            continue
        german = (match["a"] or match["b"]).strip()
        if 2 <= len(german) <= 300 and 2 <= len(answer) <= 300:
            found.add((german, answer))
    return sorted(found)


def read(work: Path, task: str, split: str) -> list[Any]:
    """What `prepare.py` wrote: sentences, or pairs."""
    with gzip.open(work / task / f"{split}.json.gz", "rt", encoding="utf-8") as file:
        rows: list[Any] = json.load(file)
    return rows


def write(work: Path, task: str, split: str, rows: list[Any]) -> None:
    with gzip.open(work / task / f"{split}.json.gz", "wt", encoding="utf-8") as file:
        json.dump(rows, file, ensure_ascii=False)


def broken(sentence: str, least: float, most: float, rng: random.Random) -> Pair:
    """(what a learner wrote, the sentence) at an edit rate between the two."""
    errors = count_for(sentence.count(" ") + 1, rng.uniform(least, most), rng)
    return corrupt(sentence, errors, rng), sentence


@dataclass(frozen=True)
class Batches:
    """Endless batches of `rows` pairs. texts: sentences to be broken, or pairs."""

    texts: list[Any]
    rows: int
    seed: int = 0

    @cached_property
    def _lengths(self) -> Any:
        sources = (text if isinstance(text, str) else text[0] for text in self.texts)
        return np.fromiter(map(len, sources), np.int32, len(self.texts))

    def draw(self, number: int) -> tuple[list[int], random.Random]:
        """Where a batch's texts are, and the chance that breaks them."""
        draw, at = divmod(number, _POOL)
        chance = np.random.default_rng([self.seed, draw])
        chosen = chance.integers(len(self.texts), size=self.rows * _POOL)
        chosen = chosen[np.argsort(self._lengths[chosen], kind="stable")]
        start = int(chance.permutation(_POOL)[at]) * self.rows
        rng = random.Random(self.seed * 1_000_003 + number)
        return chosen[start : start + self.rows].tolist(), rng

    def pair(self, at: int, rng: random.Random) -> Pair:
        text = self.texts[at]
        if isinstance(text, str):
            return broken(text, 0.0, MOST_RATE, rng)
        return text[0], text[1]

    def batch(self, number: int) -> list[Pair]:
        places, rng = self.draw(number)
        return [self.pair(at, rng) for at in places]


def held_out(
    work: Path, task: str, count: int, rates: tuple[float, float] = (0.02, 0.05)
) -> list[Pair]:
    """`count` held-out pairs, evenly spread; sentences are broken at an edit rate between these,
    and at least once."""
    rows, rng = read(work, task, "heldout"), random.Random(7)
    step = max(1, len(rows) // count)
    chosen = rows[::step][:count]
    if task == "translator":
        return [(german, english) for german, english in chosen]
    pairs = []
    for sentence in chosen:
        pair = broken(sentence, *rates, rng)
        while pair[0] == sentence:
            pair = corrupt(sentence, 1, rng), sentence
        pairs.append(pair)
    return pairs
