"""How long a conversation's second turn waits for its first token, with and without reuse.

A first turn of --length tokens is answered; the second goes on from it. Caches keep what they have
read, so the second turn reads what is new; without, it reads all of it again. The rounds take
turns. --check fails unless the time to the first token with reuse is at most 0.2 of that without.
Example:

    python benchmarks/second_turn.py --model smollm2-135m-instruct.gguf --check
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from typing import Any

from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.progress import track

LIMIT = 0.2
ASKED = "Say that again in one sentence."


def turns(llm: LLM, length: int) -> list[list[int]]:
    """First turns of about so many tokens, as conversations' ids: the bundled prompts, joined."""
    texts = [prompt.turns[0] for prompt in bundled()]
    found = []
    for start in range(0, len(texts), 8):
        text, at = "", start
        while len(llm.tokenizer(text)["input_ids"]) < length:
            text += texts[at % len(texts)] + "\n\n"
            at += 1
        words = llm.tokenizer.decode(llm.tokenizer(text)["input_ids"][:length])
        found.append(llm.chat_prompt([{"role": "user", "content": words}]))
    return found


def second(llm: LLM, first: list[int], params: SamplingParams) -> Any:
    """The output of the second turn: the whole conversation so far, and a short question."""
    [answer] = llm.generate([first], params)
    more = llm.chat_prompt([{"role": "user", "content": ASKED}])
    return llm.generate([[*first, *answer.token_ids, *more]], params)[0]


def measured(given: Namespace) -> dict[str, Any]:
    """reuse -> seconds to the first token of each round, and whether the texts are the same."""
    kinds = {"with": True, "without": False}
    llms = {
        name: LLM(given.model, max_num_seqs=2, max_model_len=2048, enable_prefix_caching=reuse)
        for name, reuse in kinds.items()
    }
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens, ignore_eos=True)
    found: dict[str, Any] = {name: [] for name in kinds}
    same = 0
    firsts = turns(llms["with"], given.length)
    with track("Second turns", given.rounds * len(kinds), True) as advance:
        for turn in range(given.rounds):
            texts = []
            for name in sorted(kinds, reverse=bool(turn % 2)):
                output = second(llms[name], firsts[turn % len(firsts)], params)
                texts.append(output.token_ids)
                row = {
                    "first_token_seconds": output.stats.time_to_first_token,
                    "prompt_tokens": len(output.prompt_token_ids),
                    "cached_tokens": output.num_cached_tokens,
                }
                found[name].append(row)
                advance()
            same += texts[0] == texts[1]
    return {"reuse": found, "same_texts": same}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--length", type=int, default=1500, help="tokens of the first turn (1500)")
    parser.add_argument("--max-tokens", type=int, default=24, help="of an answer (24)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="fail unless it is fast enough")
    given = parser.parse_args()
    results = measured(given)
    rows = [["second turn", "first token, ms", "prompt tokens", "cached"]]
    times = {}
    for name, found in results["reuse"].items():
        times[name] = statistics.median(row["first_token_seconds"] for row in found)
        counts = (str(found[0][key]) for key in ("prompt_tokens", "cached_tokens"))
        rows.append([name, f"{1000 * times[name]:.1f}", *counts])
    table(rows)
    ratio = times["with"] / times["without"]
    print(f"\nWith reuse it takes {ratio:.3f} of without; at most {LIMIT:g} is asked for.")
    about = {"length": given.length, "rounds": given.rounds, "limit": LIMIT, "ratio": ratio}
    save("second-turn", given, {**about, **results, "met": ratio <= LIMIT})
    return 1 if given.check and ratio > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
