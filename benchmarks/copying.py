"""How many tokens per pass copying gains, by task: mean acceptance length, greedy, no clock.

The bundled prompts are answered one after the other by each method; drafters keep what they learn
from prompt to prompt. REST reads `--datastore`; without one, the target's answers to the other
prompts, each with its prompt, which is very little. Prompts whose answer loops (fewer than 80 % of
its 4-grams are different) are left out: loops are easily copied.

`oracle` is a copier that always knows where in prompt and output the longest copy is: no method
that copies from the request alone can gain more. Example:

    python benchmarks/copying.py --check
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence as Seq
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.engine.stats import AcceptanceStats
from foretoken.lookup.datastore import Datastore, build
from foretoken.progress import track
from foretoken.repetition import DISTINCT_4, distinct_4

COPYING = ("pld", "llma", "sad", "suffix", "sam")
WHOLE = ("lookahead", "token_recycling", "rest")
METHODS = (*COPYING, *WHOLE)
TREES = ("lookahead", "token_recycling")
"""Whose trees would be planned for this machine; what they gain is counted with the papers'."""
LIMITS = {
    **{(method, "grammar"): 2.0 for method in COPYING},
    **{(method, task): 1.3 for method in COPYING for task in ("rag", "summarization")},
    **{(method, "overall"): 1.3 for method in WHOLE},
}
"""More than this is asked for."""

Text = tuple[str, list[int], list[int]]
"""A prompt: its task, its tokens, and those of the target's answer."""


def answered(given: Namespace, plain: LLM, params: SamplingParams) -> list[Text]:
    asked = bundled(given.limit)
    prompts = [plain.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in asked]
    outs = plain.generate(prompts, params)
    return [
        (prompt.task, ids, out.outputs[0].token_ids)
        for prompt, ids, out in zip(asked, prompts, outs, strict=True)
    ]


def oracle(prompt: Seq[int], answer: Seq[int]) -> AcceptanceStats:
    """The fewest passes: the longest copy that is right, and one token of the target's."""
    stats, at, text = AcceptanceStats(), 0, [*prompt, *answer]
    while at < len(answer):
        here = len(prompt) + at
        most = len(answer) - at - 1
        copy = max((_alike(text, place, here, most) for place in range(here)), default=0)
        stats.record(copy + 1, most, copy, copy)
        at += copy + 1
    return stats


def _alike(text: Seq[int], place: int, here: int, most: int) -> int:
    """Tokens from `place` on that are those from `here` on, before `here`."""
    count = 0
    while count < most and place + count < here and text[place + count] == text[here + count]:
        count += 1
    return count


def measure(given: Namespace) -> dict[str, Any]:
    plain = LLM(given.model, max_num_seqs=8)
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens)
    texts = answered(given, plain, params)
    sound = [text for text in texts if distinct_4(text[2]) >= DISTINCT_4]
    results: dict[str, Any] = {"oracle": _by_task([(t, oracle(p, a)) for t, p, a in sound])}
    with track("Methods", len(given.methods) * len(sound), True) as advance:
        for method in given.methods:
            done = []
            small = method == "rest" and given.datastore is None
            one = None if small else with_method(plain, method, given.datastore)
            for at, (task, prompt, _) in enumerate(sound):
                [out] = (
                    one.generate([prompt], params)
                    if one
                    else _by_rest(
                        plain,
                        prompt,
                        [p + a for i, (_, p, a) in enumerate(sound) if i != at],
                        params,
                    )
                )
                done.append((task, out.stats))
                advance()
            results[method] = _by_task(done)
    looping = [task for task, _, answer in texts if distinct_4(answer) < DISTINCT_4]
    store = given.datastore and Datastore(given.datastore, {"vocab_size": plain.model.vocab_size})
    return {
        "max_tokens": given.max_tokens,
        "limit": given.limit,
        "prompts": len(texts),
        "datastore_tokens": store.tokens if store else None,
        "looping": {task: looping.count(task) for task in dict.fromkeys(looping)},
        "methods": results,
    }


def with_method(plain: LLM, method: str, datastore: str | None) -> LLM:
    """The same model with a method; one that has a datastore reads this one."""
    own = {"rest": {"datastore": datastore}, **{name: {"tree": "paper"} for name in TREES}}
    config = {"method": method, **own.get(method, {})}
    return LLM(plain.model, tokenizer=plain.tokenizer, max_num_seqs=1, speculative_config=config)


def _by_rest(plain: LLM, prompt: list[int], others: list[list[int]], params: SamplingParams) -> Any:
    with TemporaryDirectory() as folder:
        build(folder, {"vocab_size": plain.model.vocab_size}, others)
        return with_method(plain, "rest", folder).generate([prompt], params)


def _by_task(done: Seq[tuple[str, AcceptanceStats]]) -> dict[str, dict[str, Any]]:
    sums: dict[str, AcceptanceStats] = {}
    for task, stats in done:
        for name in (task, "overall"):
            sums.setdefault(name, AcceptanceStats()).add(stats)
    sums["overall"] = sums.pop("overall")  # last
    return {
        task: {
            "mean_acceptance_length": one.mean_acceptance_length,
            "tokens": one.tokens,
            "target_passes": one.passes,
        }
        for task, one in sums.items()
    }


def missed(results: dict[str, Any]) -> list[str]:
    """What does not exceed its limit, in words; what was not measured does not."""
    bad = []
    for (method, task), limit in LIMITS.items():
        cell = results.get(method, {}).get(task)
        if cell is None:
            bad.append(f"{method} on {task} is not measured")
        elif (length := cell["mean_acceptance_length"]) <= limit:
            told = f"{length:.2f} tokens a pass, more than {limit:g} asked for"
            bad.append(f"{method} on {task}: {told}")
    return bad


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--limit", type=int, help="prompts a task (default: all)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: 64)")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="default: all that copy")
    parser.add_argument("--datastore", help="what REST reads: a folder of foretoken datastore")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    results = measure(given)
    tasks = list(dict.fromkeys(chain.from_iterable(results["methods"].values())))
    rows = [["tokens a pass", *tasks]]
    for method, one in results["methods"].items():
        rows.append([method, *(f"{one[task]['mean_acceptance_length']:.2f}" for task in tasks)])
    table(rows)
    failures = missed(results["methods"])
    print("\n" + "\n".join(failures or ["every limit is exceeded"]))
    limits = {f"{method} {task}": limit for (method, task), limit in LIMITS.items()}
    save("copying", given, {**results, "limits": limits, "met": not failures})
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
