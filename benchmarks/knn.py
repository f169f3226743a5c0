"""KNN-LM with speculative retrieval: are texts the plain loop's, and how much faster are they?

The datastore has an entry for each token of the bundled prompts, or of `--corpus` texts, and is
inflated to `--entries` by random states of the same size, so that an exact search costs what one
over a large corpus does. The bundled prompts are what is asked, too. The time of each prompt is
taken in turn, one token a search and with a cache. Where it was interrupted it goes on. Example:

    python benchmarks/knn.py --check
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from kept import Kept, of_options
from shared import bundled, corpus_of, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.apps.knn import CachedNeighbours, KnnModel, Neighbours
from foretoken.models.load import load_model, load_tokenizer
from foretoken.models.model import CausalLM

FASTER = 2.0
"""How many times as fast the cached loop must be."""

STRIDES = (1, 3, 5, None)
SETTINGS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.0, "seed": 7}}


def datastore(given: argparse.Namespace, model: CausalLM) -> Neighbours:
    """The corpus's own entries."""
    tokenizer = load_tokenizer(given.model)
    texts = [Path(file).read_text("utf-8") for file in given.corpus]
    texts = texts or [turn for prompt in bundled() for turn in prompt.turns]
    return Neighbours.build(model, [tokenizer.encode(text) for text in texts])


def inflated(real: Neighbours, entries: int) -> Neighbours:
    """The same with random entries after them, so many in all."""
    missing = entries - len(real)
    if missing <= 0:
        return real
    random = np.random.default_rng(0)
    size = float(np.sqrt(2 * real.halves.mean() / real.width))
    far = random.standard_normal((missing, real.width), np.float32) * np.float32(size)
    tokens = np.resize(real.tokens, missing)
    return Neighbours(np.concatenate((real.keys, far)), np.concatenate((real.tokens, tokens)))


def prompts(given: argparse.Namespace, llm: LLM) -> list[list[int]]:
    asked = [prompt.turns[0] for prompt in bundled()[: given.limit]]
    return [llm.chat_prompt([{"role": "user", "content": text}]) for text in asked]


def identity(given: argparse.Namespace, kept: Kept) -> dict[str, int]:
    """Texts that differ from the plain loop's, in float64 and with the real entries only."""
    model = load_model(given.model, dtype="float64")
    knn = KnnModel(model, datastore(given, model), k=given.k)
    plain = LLM(knn.lm, tokenizer=given.model, max_num_seqs=1)
    asked = prompts(given, plain)[:4]

    def different(llm: LLM, params: SamplingParams) -> int:
        ours, theirs = (
            [out.outputs[0].token_ids for out in one.generate(asked, params)]
            for one in (llm, plain)
        )
        return sum(one != other for one, other in zip(ours, theirs, strict=True))

    results = {}
    for name, setting in SETTINGS.items():
        params = SamplingParams(max_tokens=min(32, given.max_tokens), **setting)
        for stride in STRIDES:
            cached = CachedNeighbours(knn, speculation_stride=stride)
            with LLM(knn.lm, tokenizer=given.model, speculative_config={"method": cached}) as llm:
                cell = f"differ, {name}, s = {stride or 'OS3'}"
                results[cell] = kept.cell(cell, lambda llm=llm, p=params: different(llm, p))
    return results


def speed(given: argparse.Namespace, kept: Kept) -> dict[str, Any]:
    model = load_model(given.model)
    real = datastore(given, model)
    knn = KnnModel(model, inflated(real, given.entries), k=given.k)
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens, ignore_eos=True)
    cached = {"method": CachedNeighbours(knn)}
    ways = {
        "plain": LLM(knn.lm, tokenizer=given.model, max_num_seqs=1),
        "cached": LLM(knn.lm, tokenizer=given.model, max_num_seqs=1, speculative_config=cached),
    }
    asked = prompts(given, ways["plain"])
    for llm in ways.values():
        llm.generate([asked[0]], SamplingParams(temperature=0, max_tokens=8))

    def one(number: int) -> dict[str, Any]:
        done: dict[str, Any] = {}
        ids = []
        for way in sorted(ways, reverse=bool(number % 2)):
            searches, searching, begun = knn.searches, knn.search_time, perf_counter()
            [out] = ways[way].generate([asked[number]], params)
            done[way] = {
                "seconds": perf_counter() - begun,
                "searches": knn.searches - searches,
                "search_seconds": knn.search_time - searching,
                "tokens": len(out.outputs[0].token_ids),
            }
            ids.append(out.outputs[0].token_ids)
        return {**done, "same": ids[0] == ids[1]}

    cells = [kept.cell(f"prompt {n}", lambda n=n: one(n)) for n in range(len(asked))]
    sums = {
        way: {key: sum(cell[way][key] for cell in cells) for key in cells[0][way]} for way in ways
    }
    times = [cell["plain"]["seconds"] / cell["cached"]["seconds"] for cell in cells]
    return {
        "entries": len(knn.neighbours),
        "real_entries": len(real),
        "width": knn.neighbours.width,
        **sums,
        "different": sum(not cell["same"] for cell in cells),
        "speedup": sums["plain"]["seconds"] / sums["cached"]["seconds"],
        "speedups": [min(times), max(times)],
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--corpus", nargs="+", default=[], help="texts (default: the prompts)")
    parser.add_argument("--entries", type=int, default=1_000_000, help="default: a million")
    parser.add_argument("--k", type=int, default=256, help="neighbours (default: 256)")
    parser.add_argument("--limit", type=int, default=12, help="prompts (default: 12)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a text (default: 64)")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    kept = of_options(Path(__file__), given, [given.model], given.corpus)
    same, fast = identity(given, kept), speed(given, kept)
    rows = [["", "seconds", "searches"]]
    for way in ("plain", "cached"):
        rows.append([way, f"{fast[way]['seconds']:.1f}", str(fast[way]["searches"])])
    table(rows)
    failures = [f"{cell}: {count} texts" for cell, count in same.items() if count]
    if fast["different"]:
        failures.append(f"{fast['different']} texts differ in float32")
    if fast["speedup"] < FASTER:
        failures.append(f"{fast['speedup']:.2f} times as fast, {FASTER:g} asked for")
    print("\n" + "\n".join(failures or [f"identical, and {fast['speedup']:.2f} times as fast"]))
    asked = {name: getattr(given, name) for name in ("k", "limit", "max_tokens")}
    asked["corpus"] = corpus_of(given)
    save("knn", given, {**asked, "identity": same, "speed": fast, "met": not failures})
    kept.forget()
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
