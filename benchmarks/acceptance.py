"""How many tokens a pass the drafter brings, by task: mean acceptance length, greedy, 4 drafted.

Prompts are held-out ones, from corpora/heldout.jsonl.gz (a JSON object a line with `task` and
`messages`) in the folder that FORETOKEN_DATA names, else in ../shared/data; without it the bundled
prompts.
Prompts whose answer loops (fewer than 80 % of its 4-grams are different) are left out. Example:

    FORETOKEN_DATA=data python benchmarks/acceptance.py --limit 50
"""

from __future__ import annotations

import gzip
import json
from argparse import Namespace
from typing import Any

from shared import bundled, exit_with, options, save, table

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.bench.suites import data
from foretoken.engine.stats import AcceptanceStats
from foretoken.progress import track
from foretoken.repetition import DISTINCT_4, distinct_4

TASKS = ("chat", "translation", "summarization", "qa", "math", "rag")
DRAFTED = 4


def held_out(limit: int) -> list[tuple[str, list[dict[str, str]]]] | None:
    """The first `limit` prompts of each task: everything before the first answer. None without the
    file; raises `ForetokenError` for one that has no such prompt."""
    root = data.folder()
    path = root / "corpora" / "heldout.jsonl.gz" if root else None
    if path is None or not path.is_file():
        return None
    results: dict[str, list[list[dict[str, str]]]] = {task: [] for task in TASKS}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            asked = record.get("messages", [])[:1]
            own = results.get(record.get("task"))
            if own is not None and len(own) < limit and asked and asked[0]["role"] == "user":
                own.append(asked)
    if not any(results.values()):
        raise ForetokenError(
            f"{path} has no prompt of the tasks {', '.join(TASKS)}; give another folder as "
            f"{data.VARIABLE}, or one without that file, for the bundled prompts."
        )
    return [(task, messages) for task, own in results.items() for messages in own]


def measure(given: Namespace, prompts: list[tuple[str, list[dict[str, str]]]]) -> dict[str, Any]:
    """Counts by task; `skipped` are too long for the context."""
    config = {"method": "sps", "model": given.draft_model, "num_speculative_tokens": DRAFTED}
    llm = LLM(given.model, speculative_config=config, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens)
    tasks = list(dict.fromkeys(task for task, _ in prompts))
    stats = {task: AcceptanceStats() for task in tasks}
    count = {task: {"prompts": 0, "looping": 0, "skipped": 0} for task in tasks}
    with track("Acceptance", len(prompts), True) as advance:
        for task, messages in prompts:
            advance()
            [out] = llm.chat(messages, params)
            if out.error is not None:
                count[task]["skipped"] += 1
            elif distinct_4(out.token_ids) < DISTINCT_4:
                count[task]["looping"] += 1
            else:
                count[task]["prompts"] += 1
                stats[task].add(out.stats)
    total = AcceptanceStats()
    for part in stats.values():
        total.add(part)
    sums = {key: sum(c[key] for c in count.values()) for key in ("prompts", "looping", "skipped")}
    return {
        **{task: _numbers(stats[task]) | count[task] for task in tasks},
        "overall": _numbers(total) | sums,
    }


def _numbers(stats: AcceptanceStats) -> dict[str, Any]:
    return {
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_rate_per_position": stats.acceptance_rate_per_position,
        "tokens": stats.tokens,
        "target_passes": stats.passes,
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--limit", type=int, default=40, help="prompts of a task (default: 40)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: 64)")
    given = parser.parse_args()
    if given.limit < 1:
        parser.error(f"--limit {given.limit} leaves no prompt; give at least 1")
    prompts = held_out(given.limit)
    source = "bundled" if prompts is None else "held-out"
    if prompts is None:
        prompts = [
            (p.task, [{"role": "user", "content": p.turns[0]}]) for p in bundled(given.limit)
        ]
    results = measure(given, prompts)
    rows = [["task", "mean length", "accepted", "prompts", "looping", "too long"]]
    for task, part in results.items():
        counts = [str(part[k]) for k in ("prompts", "looping", "skipped")]
        rates = f"{part['mean_acceptance_length']:.2f}", f"{part['draft_acceptance_rate']:.0%}"
        rows.append([task, *rates, *counts])
    print(
        f"{source} prompts, temperature 0, {DRAFTED} drafted tokens, {given.max_tokens} written\n"
    )
    table(rows)
    how = {"prompts": source, "drafted": DRAFTED}
    how |= {"limit": given.limit, "max_tokens": given.max_tokens}
    save("acceptance", given, {**how, "by_task": results})
    return 0


if __name__ == "__main__":
    exit_with(main)
