"""What drafting costs: milliseconds a step at batch 1, after a context of 2,000 tokens.

A given text replaces the target: drafted tokens that agree with it are accepted, so no model runs,
and the steps are those of a target that writes this text. `draft` and `observe` are timed; reading
the context happens once and is reported separately. To add a drafter, add its configuration to
`cases`. Example:

    python benchmarks/draft.py --check
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.config import build
from foretoken.lookup.datastore import build as build_datastore
from foretoken.models.target import ModelTarget
from foretoken.progress import track
from foretoken.protocols import Drafter, Scores, Step
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.tree import DraftTree, empty

CONTEXT = 2000
WRITTEN = 600
BUDGET = 64
STORED = 17_000_000  # tokens of the datastore, which takes six bytes for each


class Case(NamedTuple):
    """A `speculative_config`, and the milliseconds that a step may take, if that was set."""

    config: dict[str, Any]
    limit: float | None = None


def store_of(text: list[int], vocab_size: int, folder: str) -> str:
    """A datastore of 100 MB: pieces of the text in any order, so that phrases stand often."""
    rng, size = Random(0), 40
    starts = rng.choices(range(max(1, len(text) - size)), k=STORED // size)
    build_datastore(folder, {"vocab_size": vocab_size}, (text[i : i + size] for i in starts))
    return folder


def cases(text: list[int]) -> dict[str, Case]:
    """What is measured; `text` is there for drafters that need a corpus."""
    return {
        "prompt lookup": Case({"method": "pld"}, 0.2),
        "llma": Case({"method": "llma"}, 0.2),
        "aggressive": Case({"method": "sad"}),
        "suffix trees": Case({"method": "suffix"}),
        "suffix automaton": Case({"method": "sam"}, 0.2),
        "suffix automaton, corpus": Case({"method": "sam", "corpus": [text]}, 0.2),
    }


class Times(NamedTuple):
    """Seconds of the one reading and of each step; tokens written in each step."""

    read: float
    steps: list[float]
    tokens: list[int]


def decode(drafter: Drafter, target: ModelTarget, context: list[int], text: list[int]) -> Times:
    """Write `text` after `context`, as a target whose own text it is."""
    one = Sequence.start(context, SamplingParams(temperature=0))
    drafter.begin(one)
    none = torch.empty(1, 0)
    nothing = empty(1, target.device)
    began = perf_counter()
    drafter.observe([one], [Step([], [], 0, 0, nothing, Scores(none, none, none))])
    times = Times(perf_counter() - began, [], [])
    draws, at = draws_for([one], target.device), 0
    while at < len(text) - BUDGET:
        began = perf_counter()
        tree = drafter.draft([one], [BUDGET], draws).trim([BUDGET])
        drafted = perf_counter()
        path = accepted(tree, text[at:])
        tokens = text[at : at + len(path) + 1]
        step = Step(tokens, path, tree.counts[0], 0, tree, scores(tree, target.vocab_size))
        one.tokens.extend(tokens)
        at += len(tokens)
        settled = perf_counter()
        drafter.observe([one], [step])
        times.steps.append(drafted - began + perf_counter() - settled)
        times.tokens.append(len(tokens))
    drafter.end([one])
    return times


def accepted(tree: DraftTree, text: list[int]) -> list[int]:
    """The slots of the longest path that the text follows."""
    tokens, parents = tree.tokens[0].tolist(), tree.parent_slots[0].tolist()
    path: list[int] = []
    for node in range(tree.counts[0]):
        if parents[node] == (path[-1] if path else 0) and tokens[node] == text[len(path)]:
            path.append(node + 1)
    return path


def scores(tree: DraftTree, vocab_size: int) -> Scores:
    """Logits of no meaning, for drafters that look at some."""
    logits = torch.rand(1, tree.nodes + 1, vocab_size)
    return Scores(logits, logits.softmax(-1), torch.zeros(1, tree.nodes + 1, dtype=torch.bool))


def measure(given: Namespace) -> dict[str, Any]:
    """Medians over all steps of all repeats, the drafters taking turns in a rotating order."""
    llm = LLM(given.model, max_num_seqs=1)
    target = ModelTarget(llm.model, 1, CONTEXT + WRITTEN)
    prose = "\n".join(turn for prompt in bundled() for turn in prompt.turns)
    ids: list[int] = llm.tokenizer(prose, verbose=False)["input_ids"]
    context, text = ids[:CONTEXT], ids[CONTEXT : CONTEXT + WRITTEN]
    results: dict[str, list[Times]] = {}
    rest = ids[CONTEXT + WRITTEN :]
    chosen = cases(rest)
    with TemporaryDirectory() as folder, track("Drafting", given.repeats, True) as advance:
        store = store_of(rest, target.vocab_size, folder)
        chosen["retrieval, 100 MB"] = Case({"method": "rest", "datastore": store}, 2.0)
        order = list(chosen)
        for turn in range(given.repeats):
            first = turn % len(order)
            for name in [*order[first:], *order[:first]]:
                drafter = build(chosen[name].config).drafter
                drafter.bind(target)
                results.setdefault(name, []).append(decode(drafter, target, context, text))
            advance()
    return {name: summary(chosen[name], times) for name, times in results.items()}


def summary(case: Case, times: list[Times]) -> dict[str, Any]:
    steps = sorted(1000 * seconds for one in times for seconds in one.steps)
    return {
        "ms_per_step": statistics.median(steps),
        "ms_p90": steps[int(0.9 * len(steps))],
        "ms_reading_context": 1000 * statistics.median(one.read for one in times),
        "tokens_per_step": statistics.mean(times[0].tokens),
        "limit_ms": case.limit,
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="whole texts written (default: 5)")
    parser.add_argument("--check", action="store_true", help="fail if a median is over its limit")
    given = parser.parse_args()
    results = measure(given)
    rows = [["drafter", "ms a step", "90 %", "limit", "context, once", "tokens a step"]]
    for name, one in results.items():
        limit = "–" if one["limit_ms"] is None else f"{one['limit_ms']:g}"
        numbers = [f"{one[key]:.3f}" for key in ("ms_per_step", "ms_p90")]
        rows.append(
            [
                name,
                *numbers,
                limit,
                f"{one['ms_reading_context']:.1f}",
                f"{one['tokens_per_step']:.2f}",
            ]
        )
    table(rows)
    met = all(o["limit_ms"] is None or o["ms_per_step"] <= o["limit_ms"] for o in results.values())
    how = {"context": CONTEXT, "written": WRITTEN, "budget": BUDGET, "repeats": given.repeats}
    save("draft", given, {**how, "drafters": results, "met": met})
    return 0 if met or not given.check else 1


if __name__ == "__main__":
    sys.exit(main())
