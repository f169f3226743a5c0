"""What a drafter gains by learning while it serves, and what the learning costs.

Requests of one task, which the drafter was not distilled for, come in blocks. Each is answered by
the drafter as it is, by the one that learns, and by plain decoding, in turn. What is left of a step
of learning when the learner's block ends is waited for and counted as that block's time, so none of
it falls into the others'. Acceptance is of the drafted tokens, at temperature 0.

The prompts are those of the task in `corpora/` of the data folder, held out of all training, or the
first turns of a `--suite`. A drafter that has not seen the task is made from what `--others`
writes. Example:

    python benchmarks/online.py --task math --others others.jsonl
    foretoken train sps --target mini --data others.jsonl --source fixed --out my-draft --set \
      'shape={hidden_size: 88, intermediate_size: 224, num_hidden_layers: 2, \
      num_attention_heads: 2, num_key_value_heads: 1, head_dim: 64}'
    python benchmarks/online.py --task math --draft-model my-draft --lr 1e-3 --out tried
    python benchmarks/online.py --task math --draft-model my-draft --lr 1e-3 --skip 200 --check
    python benchmarks/online.py --suite humaneval --model my.gguf --draft-model my-draft --name mine

The settings are chosen by runs like the first, on requests that the second, which is told, leaves
out.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from page_values import DERIVED
from shared import options, save, table

from foretoken import LLM, SamplingParams
from foretoken.bench.suites.data import folder
from foretoken.bench.suites.suite import find_suite
from foretoken.progress import track

RISE, SPEED = 0.1, 0.9
ARMS = ("plain", "frozen", "learning")


@dataclass
class Block:
    """One arm's answers to one block. accepted, drafted: tokens; texts: token ids."""

    seconds: float
    tokens: int
    passes: int
    accepted: int
    drafted: int
    version: int | None
    texts: list[list[int]]


def corpus(file: str) -> list[dict[str, Any]]:
    """The conversations of a file of the corpus, in random order."""
    with gzip.open(folder() / "corpora" / file, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if "messages" in row]
    Random(0).shuffle(rows)
    return rows


def write_others(given: Namespace) -> None:
    """What the drafter is to be distilled on: conversations of all other tasks."""
    rows = [row for row in corpus("train.jsonl.gz") if row["task"] != given.task]
    lines = (json.dumps({"messages": row["messages"]}) + "\n" for row in rows[: given.many])
    given.others.write_text("".join(lines), encoding="utf-8")


def prompts(given: Namespace, llm: LLM) -> list[list[int]]:
    """Token ids of the requests; of the corpus up to each conversation's last user turn: held-out
    ones, then of the training text, which the drafter hasn't seen either."""
    if given.suite is not None:
        asked = [[_user(prompt.turns[0])] for prompt in find_suite(given.suite).prompts]
    else:
        rows = [*corpus("heldout.jsonl.gz"), *corpus("train.jsonl.gz")]
        asked = [_to_last(row["messages"]) for row in rows if row["task"] == given.task]
    written = (llm.chat_prompt(turns) for turns in asked)
    results = [ids for ids in written if len(ids) <= given.longest]
    if given.skip >= len(results):
        raise SystemExit(f"--skip {given.skip} leaves none of {len(results)} requests.")
    return results[given.skip : given.skip + given.requests]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _to_last(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Up to the last user turn."""
    return turns[: max(i for i, turn in enumerate(turns) if turn["role"] == "user") + 1]


def arms(given: Namespace) -> dict[str, LLM]:
    """One target, three ways to decode."""
    draft: dict[str, Any] = {
        "model": given.draft_model,
        "num_speculative_tokens": given.num_speculative_tokens,
    }
    own = {name: getattr(given, name) for name in ("every", "lr", "known", "window")}
    configs: dict[str, dict[str, Any] | None] = {
        "plain": None,
        "frozen": {"method": "sps", **draft},
        "learning": {"method": "online", **draft, **own},
    }
    first = LLM(given.model, max_num_seqs=given.batch)
    return {
        name: LLM(
            first.model,
            tokenizer=first.tokenizer,
            max_num_seqs=given.batch,
            speculative_config=config,
        )
        for name, config in configs.items()
    }


def answered(llm: LLM, asked: list[list[int]], params: SamplingParams) -> Block:
    learner = getattr(llm.engine.drafter, "learner", None)
    llm.reset_stats()
    began = perf_counter()
    outputs = llm.generate(asked, params)
    if learner is not None:
        learner.settle()
    seconds, stats = perf_counter() - began, llm.stats
    return Block(
        seconds,
        stats.tokens,
        stats.passes,
        stats.accepted,
        stats.drafted,
        learner and learner.version,
        [list(output.token_ids) for output in outputs],
    )


def measured(given: Namespace) -> Iterator[dict[str, Block]]:
    llms = arms(given)
    asked = prompts(given, llms["plain"])
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens)
    blocks = [asked[i : i + given.block] for i in range(0, len(asked), given.block)]
    for llm in llms.values():
        llm.generate(asked[:1], params)
    llms["learning"].engine.drafter.learner.reset()  # type: ignore[attr-defined]
    with track("Serving", len(blocks), True) as advance:
        for number, block in enumerate(blocks):
            order = [*ARMS[number % 3 :], *ARMS[: number % 3]]
            yield {name: answered(llms[name], block, params) for name in order}
            advance()


def rate(blocks: list[Block]) -> float:
    """Accepted of the drafted tokens."""
    return sum(b.accepted for b in blocks) / max(1, sum(b.drafted for b in blocks))


def summary(blocks: list[dict[str, Block]]) -> dict[str, Any]:
    """Acceptance over the last block against the frozen drafter's there."""
    last = blocks[-1:]
    speed = {
        name: [b[name].tokens / b[name].seconds for b in blocks] for name in ("frozen", "learning")
    }
    ratios = [
        mine / theirs for mine, theirs in zip(speed["learning"], speed["frozen"], strict=True)
    ]
    return {
        "rate_frozen": rate([b["frozen"] for b in last]),
        "rate_learning": rate([b["learning"] for b in last]),
        "rise": rate([b["learning"] for b in last]) - rate([b["frozen"] for b in last]),
        "same_texts": all(b[name].texts == b["plain"].texts for b in blocks for name in ARMS),
        "speed_ratio": statistics.median(ratios),
        "versions": blocks[-1]["learning"].version,
    }


def show(blocks: list[dict[str, Block]], results: dict[str, Any]) -> None:
    """Acceptance of both drafters and tokens a second of all three, block by block."""
    rows = [["requests", "frozen", "learning", *(f"{arm}/s" for arm in ARMS), "version"]]
    done = 0
    for block in blocks:
        pair, done = [block["frozen"], block["learning"]], done + len(block["plain"].texts)
        rows.append(
            [
                str(done),
                *(f"{rate([b]):.3f}" for b in pair),
                *(f"{block[arm].tokens / block[arm].seconds:.0f}" for arm in ARMS),
                str(block["learning"].version),
            ]
        )
    table(rows)
    record = {"blocks": [{arm: vars(b) for arm, b in block.items()} for block in blocks]}
    over = DERIVED["online.json"](record)["over_plain"]["learning"]
    texts = "the same" if results["same_texts"] else "DIFFERENT"
    print(
        f"\nacceptance +{results['rise']:.3f} over the last block; speed while learning "
        f"{results['speed_ratio']:.2f} of frozen and {over:.2f} of plain decoding; texts {texts}"
    )


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--task", default="math")
    parser.add_argument("--suite", help="whose first turns are asked, in place of a task")
    parser.add_argument("--name", default="online", help="of the record")
    parser.add_argument("--others", type=Path, help="write conversations of other tasks, and end")
    parser.add_argument("--many", type=int, default=20_000, help="how many")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0, help="requests before them, left out")
    parser.add_argument("--block", type=int, default=40, help="requests of a block")
    parser.add_argument("--longest", type=int, default=400, help="tokens of a prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--known", type=float, default=0.3)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    given = parser.parse_args()
    if given.others is not None:
        write_others(given)
        return 0
    blocks = list(measured(given))
    results = summary(blocks)
    show(blocks, results)
    series = [
        {name: {k: v for k, v in asdict(b).items() if k != "texts"} for name, b in block.items()}
        for block in blocks
    ]
    aside = ("out", "check", "others", "many", "model", "draft_model", "suite", "name")
    settings = {k: v for k, v in vars(given).items() if k not in aside}
    settings |= {} if given.suite is None else {"task": find_suite(given.suite).name}
    settings["requests"] = sum(len(block["plain"].texts) for block in blocks)  # as many as exist
    save(given.name, given, {"settings": settings, **results, "blocks": series})
    good = results["rise"] >= RISE and results["same_texts"] and results["speed_ratio"] >= SPEED
    return 0 if good or not given.check else 1


if __name__ == "__main__":
    sys.exit(main())
