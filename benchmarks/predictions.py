"""How many tokens a pass a prediction gains: the answer itself, with some of its words changed.

Each prompt is answered by plain decoding, greedily. Then it is asked again with that answer as the
prediction, with --changed of its words replaced by other words of it, at random places. Counted are
passes of the target, no time; the texts must be the same, and what was accepted and rejected of a
prediction must add up to what was drafted. --check fails unless there are at least 4 tokens a pass
at 2 % of words changed. Example:

    python benchmarks/predictions.py --model large.gguf --draft-model small.gguf --check
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from shared import options, save, table

from foretoken import LLM, SamplingParams
from foretoken.engine.outputs import RequestOutput
from foretoken.progress import track

ASKED = [
    "Write a Python class for a bank account with deposit, withdraw and a list of transactions.",
    "Write a Python function that reads a CSV file and returns the mean of each numeric column.",
    "Explain in three short paragraphs how a bicycle stays upright.",
    "Write an HTML page with a form for a name, an e-mail address and a message.",
    "Write a letter to a landlord about a broken heater, with a date and a polite ending.",
    "Write a SQL schema for a library with books, members and loans, with comments.",
    "Describe step by step how to bake bread at home.",
    "Write a C function that reverses a singly linked list, and a main that tests it.",
]
LIMITS = {0.02: 4.0}
"""Share of words that are changed -> tokens a pass that are asked for."""

Row = dict[str, Any]


def spoilt(text: str, share: float, chance: Random) -> str:
    """The text with this share of its words, at least one of them, replaced by others of it."""
    parts = re.split(r"(\s+)", text)
    places = [place for place, part in enumerate(parts) if part.strip()]
    words = sorted({parts[place] for place in places})
    if share == 0 or len(words) < 2:
        return text
    for place in chance.sample(places, max(1, round(share * len(places)))):
        parts[place] = chance.choice([word for word in words if word != parts[place]])
    return "".join(parts)


def measured(given: Namespace) -> Iterator[Row]:
    """A row for each method and share of words."""
    plain = LLM(given.model, max_num_seqs=len(ASKED), max_model_len=1024)
    said = [[{"role": "user", "content": asked}] for asked in ASKED[: given.prompts]]
    prompts = [plain.chat_prompt(one) for one in said]
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens)
    with track("Predictions", 1 + len(given.methods) * len(given.changed), True) as advance:
        known = plain.generate(prompts, params)
        advance()
        for method in given.methods:
            llm = plain if method == "plain" else with_method(plain, method, given)
            for share in given.changed:
                chance = Random(given.seed)
                own = [
                    replace(params, prediction=spoilt(output.text, share, chance))
                    for output in known
                ]
                yield {"method": method, "changed": share} | counted(
                    known, llm.generate(prompts, own)
                )
                advance()


def with_method(plain: LLM, method: str, given: Namespace) -> LLM:
    """The same model with a method."""
    config = {"method": method} | ({"model": given.draft_model} if method == "sps" else {})
    size, longest = len(ASKED), plain.engine.target.max_length
    return LLM(
        plain.model,
        tokenizer=plain.tokenizer,
        max_num_seqs=size,
        max_model_len=longest,
        speculative_config=config,
    )


def counted(known: list[RequestOutput], found: list[RequestOutput]) -> Row:
    """What the predictions came to."""
    stats = [output.stats for output in found]
    pairs = zip(known, found, strict=True)
    accepted = sum(one.accepted_prediction_tokens for one in stats)
    rejected = sum(one.rejected_prediction_tokens for one in stats)
    return {
        "answers": len(found),
        "identical": sum(a.token_ids == b.token_ids for a, b in pairs),
        "tokens": sum(one.tokens for one in stats),
        "passes": sum(one.passes for one in stats),
        "drafted": sum(one.drafted for one in stats),
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
        "tokens_a_pass": sum(one.tokens for one in stats) / sum(one.passes for one in stats),
    }


def missed(rows: list[Row]) -> list[str]:
    """What is not as wanted, in words."""
    bad = []
    for row in rows:
        name = f"{row['method']}, {row['changed']:.0%} changed"
        least = LIMITS.get(row["changed"], 0.0)
        if row["tokens_a_pass"] < least:
            bad.append(f"{name}: {row['tokens_a_pass']:.2f} tokens a pass, {least:g} asked for")
        if row["identical"] != row["answers"]:
            bad.append(f"{name}: {row['answers'] - row['identical']} texts differ")
        counts = row["accepted_prediction_tokens"] + row["rejected_prediction_tokens"]
        if row["method"] == "plain" and counts != row["drafted"]:
            bad.append(f"{name}: {counts} tokens are told of, {row['drafted']} were drafted")
    return bad


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="+", default=["plain"], help="plain, sps, pld …")
    parser.add_argument("--changed", nargs="+", type=float, default=[0.0, 0.02, 0.05, 0.1])
    parser.add_argument("--prompts", type=int, default=len(ASKED), help="how many (all)")
    parser.add_argument("--max-tokens", type=int, default=160, help="of an answer (160)")
    parser.add_argument("--seed", type=int, default=0, help="of the changes (0)")
    parser.add_argument("--check", action="store_true", help="fail unless all is as wanted")
    given = parser.parse_args()
    rows = list(measured(given))
    head = ["method", "changed", "identical", "tokens", "passes", "accepted", "rejected", "a pass"]
    table([head, *map(line, rows)])
    bad = missed(rows)
    print(f"\nNot as wanted: {'; '.join(bad) or 'nothing'}.")
    about = {"max_tokens": given.max_tokens, "seed": given.seed, "prompts": given.prompts}
    save("predictions", given, {**about, "rows": rows, "met": not bad})
    return 1 if bad and given.check else 0


def line(row: Row) -> list[str]:
    names = ("tokens", "passes", "accepted_prediction_tokens", "rejected_prediction_tokens")
    same = f"{row['identical']} of {row['answers']}"
    counts = (str(row[name]) for name in names)
    return [row["method"], f"{row['changed']:.0%}", same, *counts, f"{row['tokens_a_pass']:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
