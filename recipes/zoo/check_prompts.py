"""Checks that no bundled prompt shares a 13-word run with the training text.

`python check_prompts.py --data CORPORA`; the test suite runs it where the corpus is.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import corpus

RUN = 13
PROMPTS = Path(__file__).parents[2] / "src" / "foretoken" / "zoo" / "prompts.jsonl"


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str, size: int = RUN) -> set[tuple[str, ...]]:
    every = words(text)
    return {tuple(every[i : i + size]) for i in range(len(every) - size + 1)}


def shared(prompts: Path, train: Path) -> list[str]:
    """The runs of 13 words that stand both in a prompt and in the training text."""
    wanted: set[tuple[str, ...]] = set()
    for line in prompts.read_text(encoding="utf-8").splitlines():
        for turn in json.loads(line)["turns"]:
            wanted |= runs(turn)
    first = {run[0] for run in wanted}
    starts = {run[:3] for run in wanted}
    repeated: set[tuple[str, ...]] = set()
    for record in corpus.read(train):
        text = words(corpus.text_of(record))
        for i in range(len(text) - RUN + 1):
            if text[i] not in first or tuple(text[i : i + 3]) not in starts:
                continue  # nearly all, and looking them up whole takes long
            if (run := tuple(text[i : i + RUN])) in wanted:
                repeated.add(run)
    return sorted(" ".join(run) for run in repeated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    args = parser.parse_args()
    repeated = shared(args.prompts, (args.data or corpus.default_folder()) / "train.jsonl.gz")
    for run in repeated:
        print(run)
    raise SystemExit(f"{len(repeated)} shared runs" if repeated else 0)


if __name__ == "__main__":
    main()
