"""RaLMSpec: are texts the plain loop's, and what does guessing documents gain?

The corpus is the bundled prompts in passages of 100 words, or `--corpus` texts; the prompts are the
ends of its tasks qa and rag, so the passages have their text. The expensive retriever compares all
vectors of a corpus that is inflated to `--inflate` documents, whose vectors are too small to be the
best; the cheap one is BM25 over the passages. Identity is counted in float64. Times are in turn,
each prompt's the median of its rounds, and no way of writing begins with what another one has read.
Where it was interrupted it goes on. Example:

    python benchmarks/ralm.py --check
"""

from __future__ import annotations

import argparse
import sys
import zlib
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from kept import Kept, of_options
from shared import bundled, corpus_of, options, save, table, times_plain

from foretoken import LLM, SamplingParams
from foretoken.apps.ralm import Bm25, Dense, Ralm
from foretoken.apps.ralm.bm25 import words
from foretoken.apps.ralm.outputs import RalmStats
from foretoken.apps.ralm.retriever import Retriever

EXPENSIVE, CHEAP = 1.5, 0.97
"""How many times as fast as the plain loop guessing must be with each retriever."""
NOISE = 1.05
"""A gain may be so many times what saving every retrieval would give."""

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
    """Of each retriever and way: seconds, each prompt's the median of its rounds, and counts."""
    documents = passages(given)
    llm = LLM(given.model, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens, ignore_eos=True)
    results = {}
    for name in ("expensive", "cheap"):
        retriever = inflated(documents, given.inflate) if name == "expensive" else Bm25(documents)
        short = {"max_document_tokens": given.max_document_tokens, "query_tokens": 24}
        waiting = Ralm(llm, retriever, **short)
        going_on = Ralm(llm, retriever, asynchronous=True, **short)
        ways = {
            "plain": waiting.generate_plain,
            "synchronous": waiting.generate,
            "asynchronous": going_on.generate,
        }
        for way in ways.values():
            way(asked[0], SamplingParams(temperature=0, max_tokens=8))

        def one(number: int, turn: int, ways: Any = ways) -> dict[str, Any]:
            first = turn % len(ways)  # nobody is always the first
            outs = {}
            for way in [*list(ways)[first:], *list(ways)[:first]]:
                llm.reset_prefix_cache()  # of what the way before has read of this prompt
                outs[way] = ways[way](asked[number], params)
            same = len({tuple(out.token_ids) for out in outs.values()}) == 1
            return {way: _taken(out.stats) for way, out in outs.items()} | {"same": same}

        cells = [
            [
                kept.cell(f"{name}, prompt {n}, round {r}", lambda n=n, r=r, one=one: one(n, n + r))
                for r in range(given.rounds)
            ]
            for n in range(len(asked))
        ]
        results[name] = compared(list(ways), cells)
    return results


def _taken(stats: RalmStats) -> dict[str, Any]:
    return {
        "seconds": stats.total_time,
        "search_seconds": stats.search_time,
        "searches": stats.searches,
        "matched": stats.matched,
        "wrong": stats.wrong,
    }


def compared(ways: list[str], cells: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """What the ways took in all, of [prompts][rounds] cells, and how many times as fast as the
    plain loop they were, with an interval over the prompts. Of a prompt the median round counts.
    most: how many times as fast the plain loop would be without its retrievals."""

    def middle(way: str, key: str) -> list[float]:
        return [median(cell[way][key] for cell in rounds) for rounds in cells]

    seconds = {way: middle(way, "seconds") for way in ways}
    found: dict[str, Any] = {
        way: {
            **{key: sum(middle(way, key)) for key in cells[0][0][way]},
            "seconds_of_prompts": seconds[way],
            **times_plain(seconds["plain"], seconds[way]),
        }
        for way in ways
    }
    plain = found["plain"]
    return found | {
        "most": plain["seconds"] / (plain["seconds"] - plain["search_seconds"]),
        "different": sum(not cell["same"] for rounds in cells for cell in rounds),
    }


def missed(same: dict[str, int], fast: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as wanted, in words; a gain that retrievals can't explain is none of guessing."""
    bad = [f"{cell}: {count} texts" for cell, count in same.items() if count]
    bad += [f"{name}: {own['different']} texts" for name, own in fast.items() if own["different"]]
    for name, limit in (("expensive", EXPENSIVE), ("cheap", CHEAP)):
        own = fast[name]
        if (gained := own["synchronous"]["times_plain"]) < limit:
            bad.append(f"{name} retriever: {gained:.2f} times, {limit:g} asked for")
        for way in ("synchronous", "asynchronous"):
            low, _ = own[way]["times_plain_ci95"] or (own[way]["times_plain"],) * 2
            if low > own["most"] * NOISE:
                bad.append(
                    f"{name} retriever, {way}: at least {low:.2f} times, of which retrievals "
                    f"explain {own['most']:.2f}"
                )
    return bad


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--corpus", nargs="+", default=[], help="texts (default: the prompts)")
    parser.add_argument("--inflate", type=int, default=2_000_000, help="default: two million")
    parser.add_argument("--max-document-tokens", type=int, default=64, help="default: 64")
    parser.add_argument("--limit", type=int, default=8, help="prompts (default: 8)")
    parser.add_argument("--rounds", type=int, default=5, help="of each prompt (default: 5)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of a text (default: 48)")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    kept = of_options(Path(__file__), given, [given.model], given.corpus)
    wanted = [prompt for prompt in bundled() if prompt.task in ("qa", "rag")]
    asked = [prompt.turns[0][-400:] for prompt in wanted[: given.limit]]
    same, fast = identity(given, kept, asked), speed(given, kept, asked)
    rows = [["times as fast", "synchronous", "asynchronous", "at most"]]
    for name, own in fast.items():
        gained = [own[way]["times_plain"] for way in ("synchronous", "asynchronous")]
        rows.append([name, *(f"{x:.2f}" for x in (*gained, own["most"]))])
    table(rows)
    failures = missed(same, fast)
    print("\n" + "\n".join(failures or ["every limit is met"]))
    names = ("rounds", "limit", "max_tokens", "inflate", "max_document_tokens")
    how = {name: getattr(given, name) for name in names}
    how |= {"corpus": corpus_of(given), "passages": len(passages(given)), "prompts": len(asked)}
    save("ralm", given, {**how, "identity": same, "speed": fast, "met": not failures})
    kept.forget()
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
