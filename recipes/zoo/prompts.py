"""Writes a file of prompts for `foretoken train`: as many of each task, mixed.

    python recipes/zoo/prompts.py --out prompts.jsonl

They come from the training text, so none of the bundled prompts is among them. A line is a
conversation up to one of the user's turns, and the answer that the corpus has for it. Beside the
seven tasks there are code, and passages of running text that are to be summarised, which have no
answer.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpus import Record, default_folder, records_by_source

TASKS = ("chat", "translation", "summarization", "qa", "math", "rag", "grammar")
PASSAGE = "passage"
MORE = ("code", PASSAGE)
ASKS = (
    "Summarize: {}",
    "Summarize the following text:\n\n{}",
    "{}\n\nGive a short summary.",
    "{}\n\nWhat are the main points?",
)
_SHORTEST = 900  # characters of a passage


def passage(record: Record, rng: random.Random, longest: int) -> list[dict[str, str]] | None:
    """Whole sentences of a text, and what is asked of them."""
    ask, text = rng.choice(ASKS), " ".join(record["text"].split())
    most = longest - len(ask)
    size = rng.randint(min(_SHORTEST, most), most)
    start = rng.randrange(max(1, len(text) - size))
    piece = text[start : start + size]
    first, last = piece.find(". ") + 2, piece.rfind(". ") + 1
    if last - first < _SHORTEST / 2:
        return None
    return [{"role": "user", "content": ask.format(piece[first:last])}]


def cut(record: Record, rng: random.Random, longest: int) -> list[dict[str, str]] | None:
    """The messages up to one of the first three answers, with it; before it at most so many
    characters."""
    messages: list[dict[str, str]] = record["messages"]
    ends = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0][:3]
    if not ends:
        return None
    chosen = messages[: rng.choice(ends) + 1]
    size = sum(len(m["content"]) for m in chosen[:-1])
    return chosen if size <= longest and chosen[-2]["role"] == "user" else None


def prompts(
    records: list[Record], each: int, tasks: tuple[str, ...], seed: int, longest: int = 1200
) -> Iterator[Any]:
    """`each` conversations of every task, in turn."""
    rng = random.Random(seed)
    rng.shuffle(records)
    by_task: dict[str, list[list[dict[str, str]]]] = defaultdict(list)
    for record in records:
        task = record["task"] if "messages" in record else PASSAGE
        chosen = by_task[task]
        if task in tasks and len(chosen) < each and (task != PASSAGE or record["task"] == "lm"):
            messages = (passage if task == PASSAGE else cut)(record, rng, longest)
            if messages is not None:
                chosen.append(messages)
    for place in range(each):
        for task in tasks:
            if place < len(by_task[task]):
                yield {"task": task, "messages": by_task[task][place]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of {train,heldout}.jsonl.gz")
    parser.add_argument("--split", default="train", choices=("train", "heldout"))
    parser.add_argument("--each", type=int, default=600, help="conversations of every task")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=(*TASKS, *MORE))
    parser.add_argument("--longest", type=int, default=1200, help="characters of a prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if PASSAGE in options.tasks and options.longest < _SHORTEST:
        parser.error(f"passages have {_SHORTEST} characters or more; give a larger --longest")
    if "code" in options.tasks and options.split != "train":
        parser.error("code is of the train split alone; leave it out")
    by_source = records_by_source(options.data or default_folder(), options.split)
    records = [record for name in sorted(by_source) for record in by_source[name]]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as file:
        asked = tuple(options.tasks), options.seed, options.longest
        for line in prompts(records, options.each, *asked):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
