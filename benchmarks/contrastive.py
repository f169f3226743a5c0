"""Speculative contrastive decoding: whose passes does it take, and how much faster is it?

The target is an expert less an amateur, and the amateur drafts. Counted, in float64 with the
bundled pair: texts that differ from plain contrastive decoding's, and the amateur's passes beyond
one for each drafted token and one a step. Timed, with --model and --draft-model: both in turn;
seconds are of decoding alone. Where it was interrupted it goes on. Example:

    python benchmarks/contrastive.py --model EXPERT --draft-model AMATEUR --check
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from kept import Kept, of_options
from shared import bundled, options, save

from foretoken import LLM, SamplingParams
from foretoken.models.cache import KVCache
from foretoken.models.contrastive import Contrastive
from foretoken.models.feed import Feed
from foretoken.models.load import load_model
from foretoken.models.model import Output
from foretoken.models.native.transformer import Transformer

FASTER = 1.5
"""How many times as fast as plain contrastive decoding it must be."""

SETTINGS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.0, "seed": 7}}
PAIR = ("mini", "mini-draft")


class Counted(Transformer):
    """A native model whose passes that ask for logits are counted: a prompt's don't."""

    def __init__(self, lm: Transformer) -> None:
        vars(self).update(vars(lm))
        self.passes = 0

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        self.passes += feed.logits
        return super().forward(feed, cache, hidden)


def pair(
    given: argparse.Namespace, names: Seq[str], amateur_backend: str = "auto", **how: Any
) -> tuple[LLM, LLM, Counted]:
    """Plain, drafting, and the amateur of both."""
    expert, amateur = (
        load_model(name, backend=backend, **how)
        for name, backend in zip(names, ("auto", amateur_backend), strict=True)
    )
    assert isinstance(amateur, Transformer)
    counted = Counted(amateur)
    target = Contrastive(expert, counted)
    drafting = {
        "method": "sps",
        "model": counted,
        "num_speculative_tokens": given.draft_tokens,
        "num_assistant_tokens_schedule": "confidence",
        "assistant_confidence_threshold": given.confidence,
    }
    plain = LLM(target, tokenizer=names[0], max_num_seqs=1)
    fast = LLM(target, tokenizer=names[0], max_num_seqs=1, speculative_config=drafting)
    return plain, fast, counted


def asked(given: argparse.Namespace, llm: LLM) -> list[list[int]]:
    texts = [prompt.turns[0] for prompt in bundled()[: given.limit]]
    return [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts]


def counts(given: argparse.Namespace) -> dict[str, Any]:
    plain, fast, amateur = pair(given, PAIR, dtype="float64")
    results = {}
    for name, setting in SETTINGS.items():
        params = SamplingParams(max_tokens=min(48, given.max_tokens), **setting)
        before, fast_before = amateur.passes, (fast.stats.drafted, fast.stats.passes)
        outs = fast.generate(asked(given, fast), params)
        passes = amateur.passes - before
        drafted = fast.stats.drafted - fast_before[0]
        steps = fast.stats.passes - fast_before[1]
        again = plain.generate(asked(given, plain), params)
        results[name] = {
            "different": sum(
                a.outputs[0].token_ids != b.outputs[0].token_ids
                for a, b in zip(outs, again, strict=True)
            ),
            "amateur_passes": passes,
            "drafted": drafted,
            "steps": steps,
        }
    return results


def speed(given: argparse.Namespace, kept: Kept) -> dict[str, Any]:
    plain, fast, _ = pair(given, (given.model, given.draft_model), given.amateur_backend)
    prompts = asked(given, plain)
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens)
    for llm in (plain, fast):
        llm.generate([prompts[0]], SamplingParams(temperature=0, max_tokens=4))

    def one(number: int) -> dict[str, Any]:
        ways = {"plain": plain, "drafted": fast}
        done: dict[str, Any] = {}
        for way in sorted(ways, reverse=bool(number % 2)):
            ways[way].reset_stats()
            [out] = ways[way].generate([prompts[number]], params)
            done[way] = {
                "seconds": ways[way].stats.decode_time,
                "tokens": len(out.outputs[0].token_ids),
                "passes": out.stats.passes,
            }
        return done

    cells = [kept.cell(f"prompt {n}", lambda n=n: one(n)) for n in range(len(prompts))]
    sums = {way: {k: sum(c[way][k] for c in cells) for k in cells[0][way]} for way in cells[0]}
    rates = {way: one["tokens"] / one["seconds"] for way, one in sums.items()}
    return {**sums, "tokens_per_second": rates, "speedup": rates["drafted"] / rates["plain"]}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--draft-tokens", type=int, default=8, help="at most (default: 8)")
    parser.add_argument(
        "--confidence", type=float, default=0.6, help="of the amateur, to draft on (default: 0.6)"
    )
    parser.add_argument(
        "--amateur-backend", default="auto", help="how the amateur runs, plain too (auto)"
    )
    parser.add_argument("--limit", type=int, default=16, help="prompts (default: 16)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a text (default: 64)")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    kept = of_options(Path(__file__), given, [given.model, given.draft_model, *PAIR])
    counted = kept.cell("counts", lambda: counts(given))
    fast = speed(given, kept)
    failures = [
        f"{name}: {one['amateur_passes']} passes of the amateur for {one['drafted']} drafted "
        f"tokens and {one['steps']} steps"
        for name, one in counted.items()
        if one["amateur_passes"] > one["drafted"] + one["steps"]
    ]
    # Drafts that are drawn keep the distribution, which `tests/models/` compares, not the text.
    if counted["greedy"]["different"]:
        failures.append(f"{counted['greedy']['different']} greedy texts differ")
    if fast["speedup"] < FASTER:
        failures.append(f"{fast['speedup']:.2f} times as fast, {FASTER:g} asked for")
    print("\n" + "\n".join(failures or [f"{fast['speedup']:.2f} times as fast"]))
    names = ("amateur_backend", "draft_tokens", "confidence", "limit", "max_tokens")
    about = {name: getattr(given, name) for name in names}
    save("contrastive", given, {**about, "counts": counted, "speed": fast, "met": not failures})
    kept.forget()
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
