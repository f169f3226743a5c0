"""Writes a file of prompts for `foretoken train`: as many of each of the seven tasks, mixed.

    python recipes/zoo/prompts.py --out prompts.jsonl

They come from the training text, so none of the bundled prompts is among them. A line is a
conversation up to one of the user's turns, and the answer that the corpus has for it.
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
_LONGEST = 1_200  # characters of a prompt


def cut(record: Record, rng: random.Random) -> list[dict[str, str]] | None:
    """The messages up to one of the first three answers, with it."""
    messages: list[dict[str, str]] = record["messages"]
    ends = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0][:3]
    if not ends:
        return None
    chosen = messages[: rng.choice(ends) + 1]
    size = sum(len(m["content"]) for m in chosen[:-1])
    return chosen if size <= _LONGEST and chosen[-2]["role"] == "user" else None


def prompts(records: list[Record], each: int, tasks: tuple[str, ...], seed: int) -> Iterator[Any]:
    """`each` conversations of every task, in turn."""
    rng = random.Random(seed)
    rng.shuffle(records)
    by_task: dict[str, list[list[dict[str, str]]]] = defaultdict(list)
    for record in records:
        chosen = by_task[record["task"]]
        if record["task"] in tasks and len(chosen) < each and "messages" in record:
            messages = cut(record, rng)
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
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    by_source = records_by_source(options.data or default_folder(), options.split)
    records = [record for name in sorted(by_source) for record in by_source[name]]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as file:
        for line in prompts(records, options.each, tuple(options.tasks), options.seed):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
