"""The pages' tables of applications: retrieval, encoder–decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from page_markdown import markdown, ranged

Read = Callable[[str], dict[str, Any]]
WAYS = {
    "plain": "a retrieval before each piece",
    "synchronous": "guessed",
    "asynchronous": "guessed, `asynchronous`",
}


def ralm(read: Read) -> str:
    """Seconds by retriever and way, and what guessing gains."""
    rows = []
    for retriever, found in read("ralm.json")["speed"].items():
        for way, told in WAYS.items():
            sums, times = found[way], found["speedup"].get(way, 1.0)
            cells = [f"{sums['seconds']:.1f}", f"{sums['search_seconds']:.1f}"]
            rows.append([retriever, told, *cells, str(sums["searches"]), f"{times:.2f}"])
    head = ["retriever", "", "seconds", "of retrieval", "retrievals", "times as fast"]
    return markdown(head, rows, words=2)


def seq2seq(read: Read) -> str:
    """Rows of each task: tokens a pass, speed, and what was written."""
    rows = []
    for task, found in read("seq2seq.json")["tasks"].items():
        for name, row in found["methods"].items():
            rows.append(
                [
                    task,
                    name,
                    f"{row['tokens_a_pass']:.2f}",
                    ranged(row["times_plain"], row["times_plain_ci95"]),
                    f"{row['identical_to_plain']} of {found['texts']}",
                    f"{row['exact_match']:.3f}",
                    f"{row['bleu']:.1f}",
                ]
            )
    head = ["", "", "tokens a pass", "times plain", "plain's texts", "exact match", "BLEU"]
    return markdown(head, rows, words=2)
