"""What drafting saves on a corrector and a translator: tokens a pass, speed, texts, BLEU.

The models and drafters are those of `recipes/seq2seq` in --work, which also names the held-out
texts; sentences are broken at an edit rate of 2 to 5 %. Requests run one by one, methods in turn
on each text, so that a slow moment meets all of them; all have one copy of the target, which a
processor's cache can hold, as where a single method runs. BLEU (Papineni et al. 2002; the corpus's
score with 4-grams, over words) and exact match are against the reference. A drafter that isn't
there is named and left out. Example:

    python benchmarks/seq2seq.py --work WORK --count 200 --out benchmarks/results/seq2seq.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from shared import times_plain

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.environment import environment
from foretoken.files import write_file
from foretoken.progress import track

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "seq2seq"))
import pairs

PLAIN = "plain"
TASKS = ("corrector", "translator")
RULES = ("speculative", "top_beta")


def methods(folder: Path) -> dict[str, dict[str, Any]]:
    """Row -> configuration."""
    found: dict[str, dict[str, Any]] = {
        PLAIN: {"method": "autoregressive"},
        "sad": {"method": "sad"},
    }
    for name in ("shallow", "student"):
        found[name] = {"method": "sps", "model": str(folder / name)}
    found["blockwise"] = {"method": "blockwise", "model": str(folder / "blockwise")}
    for rule, row in zip(RULES, ("specdec exact", "specdec relaxed"), strict=True):
        block = {"method": "masked_block", "model": str(folder / "block"), "verifier": rule}
        found[row] = block
    there = {n: c for n, c in found.items() if Path(c.get("model", folder)).exists()}
    for name in set(found) - set(there):
        print(f"{name} isn't in {folder} and is left out")
    return there


def bleu(texts: list[str], references: list[str]) -> float:
    """The corpus's BLEU in percent, one reference each."""
    same, all_, ours, theirs = [0] * 4, [0] * 4, 0, 0
    for text, reference in zip(texts, references, strict=True):
        one, other = text.split(), reference.split()
        ours, theirs = ours + len(one), theirs + len(other)
        for n in range(4):
            a, b = (
                Counter(zip(*(w[i:] for i in range(n + 1)), strict=False)) for w in (one, other)
            )
            same[n], all_[n] = same[n] + (a & b).total(), all_[n] + a.total()
    if not all(same):
        return 0.0
    precision = sum(math.log(s / a) for s, a in zip(same, all_, strict=True)) / 4
    return 100 * math.exp(precision + min(0.0, 1 - theirs / ours))


def measure(work: Path, task: str, count: int) -> dict[str, Any]:
    folder, asked = work / task, pairs.held_out(work, task, count)
    configs = methods(folder)
    first = LLM(folder / "base", max_num_seqs=1)
    llms = {
        name: LLM(first.model, tokenizer=first.tokenizer, max_num_seqs=1, speculative_config=config)
        for name, config in configs.items()
    }
    texts: dict[str, list[str]] = {name: [] for name in llms}
    ids: dict[str, list[list[int]]] = {name: [] for name in llms}
    seconds: dict[str, list[float]] = {name: [] for name in llms}  # of each text
    tokens, passes = (dict.fromkeys(llms, 0.0) for _ in range(2))
    params = SamplingParams(temperature=0, max_tokens=200)
    for llm in llms.values():
        llm.generate(asked[0][0], params)  # what is done once
    with track(task, len(asked) * len(llms), True) as advance:
        for at, (source, _) in enumerate(asked):
            names = list(llms)
            for name in names[at % len(names) :] + names[: at % len(names)]:
                began = time.perf_counter()
                output = llms[name].generate(source, params)[0]
                seconds[name].append(time.perf_counter() - began)
                tokens[name] += output.stats.tokens
                passes[name] += output.stats.passes
                texts[name].append(output.outputs[0].text)
                ids[name].append(list(output.outputs[0].token_ids))
                advance()
    references = [reference for _, reference in asked]
    rows = {
        name: {
            "config": {k: v for k, v in configs[name].items() if k != "model"},
            "tokens_a_pass": round(tokens[name] / passes[name], 3),
            **times_plain(seconds[PLAIN], seconds[name], tokens[name] / tokens[PLAIN]),
            "identical_to_plain": sum(a == b for a, b in zip(ids[name], ids[PLAIN], strict=True)),
            "exact_match": round(
                sum(a == b for a, b in zip(texts[name], references, strict=True)) / len(asked), 4
            ),
            "bleu": round(bleu(texts[name], references), 2),
        }
        for name in llms
    }
    sources = [source for source, _ in asked]
    return {
        "texts": len(asked),
        "source_bleu": round(bleu(sources, references), 2),
        "methods": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where recipes/seq2seq left them")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--count", type=int, default=200, help="held-out texts of each task")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    record = {
        "benchmark": "seq2seq",
        "environment": environment(),
        "tasks": {task: measure(given.work, task, given.count) for task in given.tasks},
    }
    write_file(given.out, json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["tasks"], indent=1))


if __name__ == "__main__":
    main()
