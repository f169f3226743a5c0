"""How fast the trained drafters are: greedy, one sequence at a time, over plain decoding.

Length is half of the matter: at a small target a tree of dozens of nodes costs more time than it
saves. Each drafter drafts as its paper's defaults have it. Every prompt is answered by plain
decoding and by each drafter in turn, in an order that rotates, in --repeats rounds; seconds are of
decoding, the prompt left out, the median of the rounds. Prompts whose plain answer loops are left
out; intervals are 95 %, paired over prompts. The bundled checkpoints, or those in --work as for
trained.py; those that are not there are named, as are answers that differ from plain decoding's.
Example:

    OMP_NUM_THREADS=1 python benchmarks/speeds.py
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from lengths import WRITTEN
from shared import bundled, options, save, table
from trained import METHODS

from foretoken import LLM, SamplingParams, zoo
from foretoken.bench.report.paired import ratio_interval, values
from foretoken.progress import track
from foretoken.repetition import DISTINCT_4, distinct_4
from foretoken.train.drafter import papers_tree, trainable

SPEED = "tokens/s"
PLAIN = "autoregressive"


def checkpoints(work: Path | None) -> dict[str, dict[str, str]]:
    """Row -> the configuration of a checkpoint that is there."""
    found = {}
    for row, (method, recipe) in METHODS.items():
        name = f"mini-{recipe}" if work is None else str(work / recipe)
        if name in zoo.names() or (Path(name) / "config.json").is_file():
            found[row] = {"method": method, "model": name, **papers_tree(trainable(method))}
    return found


def answered(llm: LLM, prompt: list[int]) -> tuple[list[int], tuple[int, float, int]]:
    """An answer, and what it took: tokens, seconds of decoding and passes."""
    llm.reset_stats()
    [out] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=WRITTEN))
    stats = llm.stats
    return list(out.token_ids), (stats.tokens, stats.decode_time, stats.passes)


def measure(given: Namespace) -> dict[str, Any]:
    plain, there = LLM(given.model, max_num_seqs=1), checkpoints(given.work)
    arms = {PLAIN: plain}
    for row, config in there.items():
        arms[row] = LLM(
            plain.model, tokenizer=plain.tokenizer, max_num_seqs=1, speculative_config=config
        )
    asked = {
        prompt.id: plain.chat_prompt([{"role": "user", "content": prompt.turns[0]}])
        for prompt in bundled(given.limit)
    }
    answers = {key: answered(plain, ids)[0] for key, ids in asked.items()}
    keep = [key for key, answer in answers.items() if distinct_4(answer) >= DISTINCT_4]
    took: dict[tuple[str, str], list[tuple[int, float, int]]] = {}
    differs = set()
    with track("Answers", given.repeats * len(keep) * len(arms), True) as advance:
        for number, key in enumerate(keep * given.repeats):
            order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
            for row in order:
                answer, counts = answered(arms[row], asked[key])
                took.setdefault((row, key), []).append(counts)
                if answer != answers[key]:
                    differs.add(f"{row}: {key}")
                advance()
    own = {row: [_median(took[row, key]) for key in keep] for row in arms}
    return {
        "prompts": len(keep),
        "max_tokens": WRITTEN,
        "repeats": given.repeats,
        "speeds": {row: compared(own[PLAIN], own[row]) for row in there},
        "left_out": [row for row in METHODS if row not in there],
        "differs": sorted(differs),
    }


def _median(rounds: list[tuple[int, float, int]]) -> list[float]:
    """An answer's tokens, median seconds and passes, as `values` takes them."""
    [tokens, *_], seconds, [passes, *_] = zip(*rounds, strict=True)
    return [tokens, statistics.median(seconds), passes, 0, 0]


def compared(plain: list[list[float]], own: list[list[float]]) -> dict[str, Any]:
    """Tokens a second and a pass, and the speed over plain decoding with its interval."""
    units = np.stack([np.array(plain), np.array(own)], 1)
    both = values(units, SPEED)
    assert both is not None
    tokens, _, passes = (float(sum(column)) for column in list(zip(*own, strict=True))[:3])
    ends = ratio_interval(units, SPEED, 0.025)
    return {
        "tokens_per_second": both[1],
        "mean_acceptance_length": tokens / passes,
        "ratio": both[1] / both[0],
        "interval": list(ends) if ends else None,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--work", type=Path, help="folder of checkpoints (default: the bundled)")
    parser.add_argument("--limit", type=int, help="so many prompts of each task")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    given = parser.parse_args()
    results = measure(given)
    rows = [["", "tokens a pass", "tokens/s", "over plain", "95 %"]]
    for row, each in results["speeds"].items():
        ends = "–".join(f"{end:.3f}" for end in each["interval"] or ())
        length, speed = each["mean_acceptance_length"], each["tokens_per_second"]
        rows.append([row, f"{length:.2f}", f"{speed:.0f}", f"{each['ratio']:.3f}", ends])
    table(rows)
    for what in ("left_out", "differs"):
        if results[what]:
            print(f"\n{what.replace('_', ' ')}: {', '.join(results[what])}")
    save("speeds", given, results)


if __name__ == "__main__":
    main()
