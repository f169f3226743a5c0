"""Whether the speedups predicted from acceptance and pass costs are those that are measured.

The pair as it is ("mini") and inflated to larger shapes: plain decoding, prompt lookup and the
small model answer the bundled prompts at batch 1, one prompt by all methods before the next, and
between prompts every pass is timed. Then the speedup that `foretoken simulate` predicts from
acceptance and costs is compared with the measured one, as is the ideal from bytes. For the pair as
it is, only the model-free method is wanted within the bound: a pass of so small a drafter is mostly
Python. And where a method writes more than 1.5 tokens a step, at least 0.9 of what pass costs allow
is wanted.

The speedups are of totals over prompts and repeats. Example:

    python benchmarks/simulate.py --shapes mini 135m --check
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.costs import Meter
from foretoken.bench.measure.ideal import ideal, nodes_per_step
from foretoken.bench.record import BASELINE
from foretoken.cli.zoo import write
from foretoken.engine.stats import EngineStats
from foretoken.models.load import find
from foretoken.progress import track

NEAR = 0.15
LEAST, LONG = 0.9, 1.5
AS_IT_IS = "mini"
MODEL_FREE = "pld"
DRAFTED = 4


def models(given: Namespace, shape: str, folder: Path) -> tuple[str, str]:
    """Where target and draft model of a shape are."""
    if shape == AS_IT_IS:
        return given.model, given.draft_model
    target = find(given.model)
    large = write(target, folder / "target", shape, None)
    small = write(find(given.draft_model), folder / "draft", shape, target)
    return str(large), str(small)


def load(target: str, draft: str) -> dict[str, LLM]:
    """The methods around one copy of the target."""
    first = LLM(target, dtype="float32", max_num_seqs=1)
    sps = {"method": "sps", "model": draft, "num_speculative_tokens": DRAFTED}
    results = {BASELINE: first}
    for config in ({"method": MODEL_FREE}, sps):
        results[str(config["method"])] = LLM(
            first.model, tokenizer=first.tokenizer, speculative_config=config, max_num_seqs=1
        )
    return results


def race(given: Namespace, shape: str, llms: dict[str, LLM]) -> dict[str, Any]:
    """Measure, and predict from what was measured: numbers by method, and the costs."""
    first = llms[BASELINE]
    prompts = [
        first.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in bundled(given.limit)
    ]
    params = SamplingParams(
        temperature=given.temperature, max_tokens=given.max_tokens, ignore_eos=True, seed=0
    )
    context = sum(map(len, prompts)) // len(prompts) + given.max_tokens // 2
    meter = Meter(first, llms, context=context)
    for llm in llms.values():
        llm.generate([prompts[0]], params)
        llm.reset_stats()
    meter.round()
    turns = list(llms.values())
    with track(f"Measuring {shape}", len(prompts) * given.repeats, True) as advance:
        for prompt in prompts * given.repeats:
            for llm in turns:
                llm.generate([prompt], params)
            turns.append(turns.pop(0))
            meter.round()
            advance()
    costs = meter.costs()
    parts = {name: part(llm.stats) for name, llm in llms.items()}
    plain = parts[BASELINE]
    for name, own in parts.items():
        own["speedup"] = own["tokens_per_second"] / plain["tokens_per_second"]
        own["ideal"] = ideal(own, plain, costs, name, 1)
        own["measured_to_predicted"] = own["speedup"] / own["ideal"]["from_pass_costs"]
    return {"methods": parts, "costs": costs}


def part(stats: EngineStats) -> Any:
    """A run's numbers by the names of results.json, as far as they are needed."""
    spent = stats.decode_time
    return {
        "tokens": stats.tokens,
        "tokens_per_second": stats.tokens / spent,
        "target_passes": stats.passes,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate_per_position": stats.acceptance_rate_per_position,
        "nodes_per_step": nodes_per_step([stats]),
        "ms_per_step": stats.ms_per_step,
    }


def far(results: dict[str, Any]) -> list[str]:
    """The shapes and methods whose prediction is further off than wanted."""
    return [
        f"{shape} {name}"
        for shape, one in results.items()
        for name, own in one["methods"].items()
        if (shape != AS_IT_IS or name == MODEL_FREE)
        and abs(own["measured_to_predicted"] - 1) > NEAR
    ]


def short(results: dict[str, Any]) -> list[str]:
    """Where a method of long drafts makes too little of what the passes' costs allow, in words."""
    return [
        f"{shape} {name} ({own['measured_to_predicted']:.2f})"
        for shape, one in results.items()
        for name, own in one["methods"].items()
        if own["mean_acceptance_length"] > LONG and own["measured_to_predicted"] < LEAST
    ]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--shapes", nargs="+", default=[AS_IT_IS, "135m", "1.1b"])
    parser.add_argument("--limit", type=int, default=1, help="prompts of a task (default: 1)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer (default: 48)")
    parser.add_argument("--repeats", type=int, default=3, help="of every prompt (default: 3)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"fail unless all are within {100 * NEAR:g} %%, and reach {LEAST:g} of the ideal",
    )
    given = parser.parse_args()
    results = {}
    for shape in given.shapes:
        with tempfile.TemporaryDirectory(prefix="foretoken-") as folder:
            results[shape] = race(given, shape, load(*models(given, shape, Path(folder))))
    rows = [["shape", "method", "tokens/step", "measured", "predicted", "ratio", "from bytes"]]
    for shape, one in results.items():
        for name, own in one["methods"].items():
            numbers = (
                own["mean_acceptance_length"],
                own["speedup"],
                own["ideal"]["from_pass_costs"],
                own["measured_to_predicted"],
                own["ideal"]["from_bytes"],
            )
            rows.append([shape, name, *(f"{number:.2f}" for number in numbers)])
    table(rows)
    missed = far(results)
    slow = short(results)
    print(f"\nFurther off than {NEAR:.0%}: {', '.join(missed) or 'none'}.")
    print(
        f"Over {LONG:g} tokens a step, measured below {LEAST:g} x the ideal from pass costs: "
        f"{', '.join(slow) or 'none'}."
    )
    save(
        "simulate",
        given,
        {
            "temperature": given.temperature,
            "max_tokens": given.max_tokens,
            "limit": given.limit,
            "repeats": given.repeats,
            "drafted": DRAFTED,
            "shapes": results,
            "wanted_within": NEAR,
            "wanted_of_ideal": LEAST,
            "met": not missed and not slow,
        },
    )
    return 1 if (missed or slow) and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
