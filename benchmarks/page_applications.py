"""The pages' tables of applications: retrieval, offloading, encoder–decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from page_markdown import code, markdown, ranged

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
            sums = found[way]
            cells = [f"{sums['seconds']:.2f}", f"{sums['search_seconds']:.2f}"]
            times = ranged(sums["times_plain"], sums["times_plain_ci95"])
            rows.append([retriever, told, *cells, f"{sums['searches']:.0f}", times])
    head = ["retriever", "", "seconds", "of retrieval", "retrievals", "times as fast"]
    return markdown(head, rows, words=2)


def offloaded(read: Read) -> str:
    """Tokens a second by method, and what was read for them."""
    rows = []
    for name, done in read("offloaded.json")["methods"].items():
        rows.append(
            [
                code(name),
                f"{done['tokens'] / done['seconds']:.2f}",
                ranged(done["times_plain"], done["times_plain_ci95"]),
                f"{done['tokens'] / done['passes']:.2f}",
                f"{done['bytes'] / done['tokens'] / 1e9:.2f}",
                f"{done['memory_mib']:.0f}",
            ]
        )
    head = ["", "tokens/s", "times plain", "tokens a pass", "GB read a token", "MiB"]
    return markdown(head, rows)


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
