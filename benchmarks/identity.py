"""Whether every method writes exactly plain decoding's tokens, on the bundled model in float64.

1. Greedy: each method × {native, adapter over transformers' code} × batch {1, 3, 8}, compared
   with transformers' `generate` on the bundled prompts.
2. Prompt lookup at temperature 0.7 with a seed, compared with plain decoding at that seed.

Fails if a single token differs. Example:

    python benchmarks/identity.py --limit 2
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import torch
from shared import bundled, options, save, table
from transformers import AutoModelForCausalLM

from foretoken import LLM, SamplingParams
from foretoken.models.load import find
from foretoken.progress import track

BATCHES = (1, 3, 8)
TARGETS = {"native": "native", "adapter": "transformers"}
Texts = list[list[int]]


def configs(given: Namespace) -> dict[str, dict[str, Any]]:
    return {
        "autoregressive": {"method": "autoregressive"},
        "pld": {"method": "pld"},
        "sps": {"method": "sps", "model": given.draft_model, "num_speculative_tokens": 4},
    }


def reference(given: Namespace, prompts: Texts) -> Texts:
    """transformers' own greedy text, prompt by prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(find(given.model), dtype=torch.float64)
    texts = []
    with track("transformers", len(prompts), True) as advance:
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=given.max_tokens,
            )
            texts.append(out[0, len(prompt) :].tolist())
            advance()
    return texts


def build(given: Namespace, method: str, target: str, batch: int) -> LLM:
    return LLM(
        given.model,
        speculative_config=configs(given)[method],
        dtype="float64",
        model_impl=TARGETS[target],
        max_num_seqs=batch,
        max_model_len=2048,
    )


def write(llm: LLM, prompts: Texts, params: list[SamplingParams]) -> tuple[Texts, float]:
    """The token ids of all prompts together, and the mean acceptance length."""
    llm.reset_stats()
    texts = [out.token_ids for out in llm.generate(prompts, params)]
    return texts, llm.stats.mean_acceptance_length


def compare(name: str, wanted: Texts, results: Texts, length: float) -> dict[str, Any]:
    """How many texts are the same, and where the first difference stands in each other."""
    different = {}
    for i, (a, b) in enumerate(zip(wanted, results, strict=True)):
        if a != b:
            pairs = enumerate(zip(a, b, strict=False))
            different[i] = next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
    return {
        "cell": name,
        "prompts": len(wanted),
        "identical": len(wanted) - len(different),
        "tokens": sum(map(len, wanted)),
        "mean_acceptance_length": length,
        "first_difference": different,
    }


def greedy(given: Namespace, prompts: Texts) -> list[dict[str, Any]]:
    wanted = reference(given, prompts)
    params = [SamplingParams(temperature=0, max_tokens=given.max_tokens)] * len(prompts)
    cells = [(m, t, b) for m in configs(given) for t in TARGETS for b in BATCHES]
    results = []
    with track("Greedy", len(cells), True) as advance:
        for method, target, batch in cells:
            texts, length = write(build(given, method, target, batch), prompts, params)
            results.append(
                compare(f"{method}, {target}, batch {batch}, T=0", wanted, texts, length)
            )
            advance()
    return results


def sampled(given: Namespace, prompts: Texts) -> list[dict[str, Any]]:
    """Chosen drafts keep the very tokens at any temperature."""
    params = [
        SamplingParams(temperature=0.7, max_tokens=given.max_tokens, seed=seed)
        for seed in range(len(prompts))
    ]
    wanted, _ = write(build(given, "autoregressive", "native", 1), prompts, params)
    results = []
    with track("Sampled", 2, True) as advance:
        for batch in (1, 8):
            texts, length = write(build(given, "pld", "native", batch), prompts, params)
            results.append(compare(f"pld, native, batch {batch}, T=0.7", wanted, texts, length))
            advance()
    return results


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--limit", type=int, default=10, help="prompts of a task (default: 10)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: 64)")
    given = parser.parse_args()
    plain = LLM(given.model, max_num_seqs=1)
    prompts = [
        plain.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in bundled(given.limit)
    ]
    cells = greedy(given, prompts) + sampled(given, prompts)
    rows = [["", "identical", "mean length"]]
    rows += [
        [c["cell"], f"{c['identical']}/{c['prompts']}", f"{c['mean_acceptance_length']:.2f}"]
        for c in cells
    ]
    table(rows)
    met = all(c["identical"] == c["prompts"] for c in cells)
    print("\nEvery token is the same." if met else "\nSome text differs.")
    save(
        "identity",
        given,
        {"dtype": "float64", "max_tokens": given.max_tokens, "met": met, "cells": cells},
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
