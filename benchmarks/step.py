"""How long one step takes, and how much of it is not the models' work.

1. One token at a context of about 128, batch 1, float32: our native forward, and transformers'
   (AutoModelForCausalLM with a DynamicCache) on the same checkpoint.
2. The part of a step at batch 1 that is neither drafting nor the target's pass, for the pair as it
   is and inflated: milliseconds, and the share of the step.

All is interleaved, and medians of the repeats are reported. The share is limited for the inflated
pair only: a step of the small one is hardly longer than the few operations of any step. Example:

    python benchmarks/step.py --check
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from time import perf_counter
from typing import Any

import torch
from shared import bundled, inflated, options, save, table
from transformers import AutoModelForCausalLM, DynamicCache

from foretoken import LLM, SamplingParams
from foretoken.models.load import find
from foretoken.progress import track
from foretoken.sampling.sequence import Sequence
from foretoken.tree import empty

CONTEXT = 112  # and 32 tokens on top: about 128 on average
TOKENS = 32
FASTER = 2.0
AS_IT_IS = "mini"
DRAFTED = (4, 12)
OTHER, OTHER_MS = 0.05, 1.0


class Native:
    """Our pass, with everything that a step does to make it."""

    def __init__(self, llm: LLM) -> None:
        self._target = llm.engine.target

    def seconds(self, prompt: list[int]) -> float:
        """A token, on average."""
        target = self._target
        sequence = Sequence.start([*prompt, prompt[-1]], SamplingParams(temperature=0))
        target.begin(sequence)
        target.prefill([sequence], CONTEXT)
        tree = empty(1, target.device)
        began = perf_counter()
        for _ in range(TOKENS):
            target.score([sequence], tree)
            target.commit([sequence], [[]])
            sequence.tokens.append(prompt[0])
        spent = perf_counter() - began
        target.end(sequence)
        return spent / TOKENS


class Stock:
    """transformers' own forward with its own growing cache."""

    def __init__(self, model: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(find(model), dtype=torch.float32)
        self._model.eval()

    def seconds(self, prompt: list[int]) -> float:
        cache = DynamicCache()
        self._model(torch.tensor([prompt]), past_key_values=cache, use_cache=True)
        token = torch.tensor([[prompt[0]]])
        began = perf_counter()
        for _ in range(TOKENS):
            self._model(token, past_key_values=cache, use_cache=True)
        return (perf_counter() - began) / TOKENS


@torch.inference_mode()
def forward(given: Namespace) -> dict[str, Any]:
    """Milliseconds a token of both, and their ratio."""
    sides = {
        "native": Native(LLM(given.model, dtype="float32", max_num_seqs=1)),
        "transformers": Stock(given.model),
    }
    prompt = torch.randint(10, 200, (CONTEXT,), generator=torch.manual_seed(0)).tolist()
    times: dict[str, list[float]] = {name: [] for name in sides}
    with track("Forward", given.repeats + 1, True) as advance:
        for repeat in range(given.repeats + 1):
            for name, side in sides.items():
                seconds = side.seconds(prompt)
                if repeat:  # the first is a warm-up
                    times[name].append(seconds)
            advance()
    median = {name: 1000 * statistics.median(values) for name, values in times.items()}
    ratios = [b / a for a, b in zip(times["native"], times["transformers"], strict=True)]
    return {
        "ms": median,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "repeats": given.repeats,
        "context": CONTEXT + TOKENS // 2,
        "wanted_ratio": FASTER,
    }


def shares(given: Namespace, shape: str) -> dict[str, Any]:
    """Milliseconds of a step's parts for each method, and the share of the rest."""
    target, draft = models(given, shape)
    first = LLM(target, dtype="float32", max_num_seqs=1)
    sps = {"method": "sps", "model": draft}
    configs = {
        "pld": {"method": "pld"},
        **{f"sps γ={n}": sps | {"num_speculative_tokens": n} for n in DRAFTED},
    }
    llms = {"autoregressive": first} | {
        name: LLM(first.model, tokenizer=first.tokenizer, speculative_config=c, max_num_seqs=1)
        for name, c in configs.items()
    }
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    prompts = [first.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in bundled(1)]
    prompts = prompts if shape == AS_IT_IS else prompts[:2]
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in llms}
    with track(f"Steps of {shape}", given.repeats + 1, True) as advance:
        for repeat in range(given.repeats + 1):
            for name, llm in llms.items():
                llm.reset_stats()
                for prompt in prompts:
                    llm.generate([prompt], params)
                if repeat:
                    seen[name].append(llm.stats.ms_per_step)
            advance()
    return {name: _middle(parts) for name, parts in seen.items()}


def models(given: Namespace, shape: str) -> tuple[Any, Any]:
    """Target and draft model, as they are or inflated."""
    if shape == AS_IT_IS:
        return given.model, given.draft_model
    return inflated(given.model, shape), inflated(given.draft_model, shape, like=given.model)


def missed(results: dict[str, Any]) -> list[str]:
    """What is above its limit, in words."""
    slow = []
    for shape, steps in results.items():
        for name, part in steps.items():
            if part["other"] > OTHER_MS:
                slow.append(f"{shape} {name}: {part['other']:.2f} ms outside passes")
            if shape != AS_IT_IS and part["other_share"] > OTHER:
                slow.append(f"{shape} {name}: {part['other_share']:.1%} outside passes")
    return slow


def _middle(parts: list[dict[str, float]]) -> dict[str, float]:
    names = ("draft", "verify", "other")
    results = {name: statistics.median(part[name] for part in parts) for name in names}
    share = statistics.median(part["other"] / sum(part.values()) for part in parts)
    return {**results, "other_share": share}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="at least 5 (default: 7)")
    parser.add_argument("--shapes", nargs="+", default=[AS_IT_IS, "135m"])
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    one, steps = forward(given), {shape: shares(given, shape) for shape in given.shapes}
    low, high = one["ratio_range"]
    print(
        f"native {one['ms']['native']:.3f} ms, transformers {one['ms']['transformers']:.3f} ms: "
        f"{one['ratio']:.2f} times as fast ({low:.2f}-{high:.2f})\n"
    )
    rows = [["shape, method", "draft ms", "verify ms", "other ms", "other share"]]
    for shape, parts in steps.items():
        for name, part in parts.items():
            numbers = [f"{part[k]:.3f}" for k in ("draft", "verify", "other")]
            rows.append([f"{shape}, {name}", *numbers, f"{part['other_share']:.1%}"])
    table(rows)
    slow = missed(steps)
    if one["ratio"] < FASTER:
        slow.append(f"the forward is {one['ratio']:.2f} times as fast, and {FASTER:g} are wanted")
    print("\n" + "\n".join(slow or ["every limit is kept"]))
    save(
        "step",
        given,
        {
            "forward": one,
            "steps": steps,
            "wanted_other_share": OTHER,
            "wanted_other_ms": OTHER_MS,
            "met": not slow,
        },
    )
    return 1 if slow and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
