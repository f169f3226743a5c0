"""RaLMSpec: are texts the plain loop's, and what does guessing documents gain?

The corpus is the bundled prompts in passages of 100 words, or `--corpus` texts; the prompts are its
tasks qa and rag. The expensive retriever compares all vectors of a corpus that is inflated to
`--inflate` documents, whose vectors are too small to be the best; the cheap one is BM25 over the
passages. Identity is counted in float64. Where it was interrupted it goes on. Example:

    python benchmarks/ralm.py --check
"""

from __future__ import annotations

import argparse
import sys
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from kept import Kept, of_options
from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.apps.ralm import Bm25, Dense, Ralm
from foretoken.apps.ralm.bm25 import words
from foretoken.apps.ralm.retriever import Retriever

EXPENSIVE, CHEAP = 1.5, 0.97
"""How many times as fast as the plain loop guessing must be with each retriever."""

STRIDES = (1, 2, 3, 5, None)
SETTINGS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.0, "seed": 7}}
WIDTH = 256


def passages(given: argparse.Namespace) -> list[str]:
    texts = [Path(file).read_text("utf-8") for file in given.corpus]
    texts = texts or [turn for prompt in bundled() for turn in prompt.turns]
    cut = [text.split() for text in texts]
    return [" ".join(run[at : at + 100]) for run in cut for at in range(0, len(run), 100)]


def embed(texts: list[str]) -> np.ndarray:
    """[texts, WIDTH] sums of a random direction for each word."""
    rows = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in words(text):
            row += np.random.default_rng(zlib.crc32(word.encode())).standard_normal(WIDTH)
        row /= max(1e-6, float(np.linalg.norm(row)))
    return rows


def inflated(documents: list[str], count: int) -> Dense:
    vectors = embed(documents)
    missing = max(0, count - len(documents))
    small = np.random.default_rng(0).standard_normal((missing, WIDTH), np.float32) * 1e-3
    return Dense([*documents, *[" "] * missing], embed, np.concatenate((vectors, small)))


def identity(given: argparse.Namespace, kept: Kept, asked: list[str]) -> dict[str, int]:
    """Prompts whose ids or documents differ from the plain loop's."""
    documents = passages(given)
    retrievers: dict[str, Retriever] = {"bm25": Bm25(documents), "dense": inflated(documents, 0)}
    llm = LLM(given.model, dtype="float64", max_num_seqs=1)
    results = {}
    for (name, retriever), (how, setting) in product(retrievers.items(), SETTINGS.items()):
        params = SamplingParams(max_tokens=24, **setting)
        short = {"max_document_tokens": given.max_document_tokens, "query_tokens": 24}
        plain = [Ralm(llm, retriever, **short).generate_plain(p, params) for p in asked[:2]]

        def different(ralm: Ralm, params: SamplingParams = params, plain: Any = plain) -> int:
            outs = [ralm.generate(prompt, params) for prompt in asked[:2]]
            return sum(
                (a.token_ids, a.documents) != (b.token_ids, b.documents)
                for a, b in zip(outs, plain, strict=True)
            )

        for stride, asynchronous in product(STRIDES, (False, True)):
            ralm = Ralm(
                llm, retriever, speculation_stride=stride, asynchronous=asynchronous, **short
            )
            waits = "asynchronous" if asynchronous else "synchronous"
            cell = f"differ, {name}, {how}, s = {stride or 'OS3'}, {waits}"
            results[cell] = kept.cell(cell, lambda ralm=ralm, run=different: run(ralm))
    return results


def speed(given: argparse.Namespace, kept: Kept, asked: list[str]) -> dict[str, Any]:
    documents = passages(given)
    llm = LLM(given.model, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens, ignore_eos=True)
    results = {}
    for name in ("expensive", "cheap"):
        retriever = inflated(documents, given.inflate) if name == "expensive" else Bm25(documents)
        short = {"max_document_tokens": given.max_document_tokens, "query_tokens": 24}
        waiting = Ralm(llm, retriever, **short)
        going_on = Ralm(llm, retriever, asynchronous=True, **short)
        waiting.generate(asked[0], SamplingParams(temperature=0, max_tokens=8))
        ways = {
            "plain": waiting.generate_plain,
            "synchronous": waiting.generate,
            "asynchronous": going_on.generate,
        }

        def one(number: int, ways: Any = ways) -> dict[str, Any]:
            turn = number % len(ways)  # nobody is always the first
            order = [*list(ways)[turn:], *list(ways)[:turn]]
            outs = {way: ways[way](asked[number], params) for way in order}
            return {
                **{
                    way: {
                        "seconds": out.stats.total_time,
                        "search_seconds": out.stats.search_time,
                        "searches": out.stats.searches,
                        "matched": out.stats.matched,
                        "wrong": out.stats.wrong,
                    }
                    for way, out in outs.items()
                },
                "same": len({tuple(out.token_ids) for out in outs.values()}) == 1,
            }

        cells = [
            kept.cell(f"{name}, prompt {n}", lambda n=n, one=one: one(n)) for n in range(len(asked))
        ]
        sums = {way: {k: sum(c[way][k] for c in cells) for k in cells[0][way]} for way in ways}
        plain = sums["plain"]["seconds"]
        results[name] = {
            **sums,
            "different": sum(not cell["same"] for cell in cells),
            "speedup": {way: plain / sums[way]["seconds"] for way in list(ways)[1:]},
        }
    return results


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--corpus", nargs="+", default=[], help="texts (default: the prompts)")
    parser.add_argument("--inflate", type=int, default=2_000_000, help="default: two million")
    parser.add_argument("--max-document-tokens", type=int, default=64, help="default: 64")
    parser.add_argument("--limit", type=int, default=8, help="prompts (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of a text (default: 48)")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    kept = of_options("ralm", given)
    wanted = [prompt for prompt in bundled() if prompt.task in ("qa", "rag")]
    asked = [prompt.turns[0][-400:] for prompt in wanted[: given.limit]]
    same, fast = identity(given, kept, asked), speed(given, kept, asked)
    rows = [["times as fast", "synchronous", "asynchronous"]]
    rows += [[name, *(f"{x:.2f}" for x in one["speedup"].values())] for name, one in fast.items()]
    table(rows)
    failures = [f"{cell}: {count} texts" for cell, count in same.items() if count]
    for name, limit in (("expensive", EXPENSIVE), ("cheap", CHEAP)):
        if (gained := fast[name]["speedup"]["synchronous"]) < limit:
            failures.append(f"{name} retriever: {gained:.2f} times, {limit:g} asked for")
    print("\n" + "\n".join(failures or ["every limit is met"]))
    save("ralm", given, {"identity": same, "speed": fast, "met": not failures})
    kept.forget()
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
