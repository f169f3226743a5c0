"""Speed on a GPU, in one command: passes, attention, steps, speculation, batches.

1. Passes of the target, inflated to a large shape in bfloat16, as they are and as CUDA graphs:
   reading the weights at the bandwidth measured in the same run ÷ pass(1), and pass(32) ÷ pass(1).
2. Attention of 32 nodes of a tree over a long context: SDPA with a mask, and FlexAttention.
3. The share of a step at batch 1 that is neither drafting nor the target's pass.
4. Tokens per second of `sps`, `auto` and transformers' assisted generation, with the same pair.
5. `auto` against plain decoding at several batch sizes.

Medians of interleaved repeats. Example:

    python benchmarks/gpu.py --check
    python benchmarks/gpu.py --device cpu --shape 135m     # the script itself, without a GPU
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from shared import bundled, forget, inflated, options, save, table
from transformers import AutoModelForCausalLM

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.costs import Meter
from foretoken.progress import track

READING, FLAT, OTHER, ASSISTED, NEVER_SLOWER = 0.8, 1.15, 0.03, 2.0, 0.98
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 4096  # of the attention


class Bench:
    """The pair of models, loaded once, and the prompts."""

    def __init__(self, given: Namespace) -> None:
        self.given, self.dtype = given, getattr(torch, given.dtype)
        self.target = inflated(given.model, given.shape, self.dtype)
        self.draft = inflated(given.draft_model, given.shape, self.dtype, like=given.model)
        self.plain = self.llm(self.target, max(given.batches))
        texts = [prompt.turns[0] for prompt in bundled(max(given.batches))]
        self.prompts = [
            self.plain.chat_prompt([{"role": "user", "content": text}]) for text in texts
        ]

    def llm(self, model: Any, slots: int, **more: Any) -> LLM:
        return LLM(
            model,
            tokenizer=str(self.target),
            dtype=self.dtype,
            device=self.given.device,
            max_num_seqs=slots,
            max_model_len=1024,
            enable_prefix_caching=False,  # transformers reads the prompt each time, too
            **more,
        )

    def speculating(self, method: str, slots: int) -> LLM:
        config = {"method": method, "model": str(self.draft)}
        return self.llm(self.plain.model, slots, speculative_config=config)

    def medians(self, sides: dict[str, Callable[[], float]]) -> dict[str, float]:
        """Each side's number, measured in turn; the first round is a warm-up."""
        results: dict[str, list[float]] = {name: [] for name in sides}
        with track(", ".join(sides), self.given.repeats + 1, True) as advance:
            for repeat in range(self.given.repeats + 1):
                for name, side in sides.items():
                    value = side()
                    if repeat:
                        results[name].append(value)
                advance()
        return {name: statistics.median(values) for name, values in results.items()}


def passes(bench: Bench) -> dict[str, Any]:
    """For each backend: the share of a pass that reading the weights takes, and its flatness."""
    given = bench.given
    meters = {}
    for name in given.backends:
        llm = LLM(
            bench.target,
            dtype=bench.dtype,
            device=given.device,
            backend=name,
            tokenizer=str(bench.target),
            max_num_seqs=1,
            max_model_len=256,
        )
        meters[llm.model.backend] = Meter(llm, {})
    with track("Passes", given.repeats + 1, True) as advance:
        for _ in range(given.repeats + 1):
            for meter in meters.values():
                meter.round()
            advance()
    return {name: _pass(meter.costs()) for name, meter in meters.items()}


def _pass(costs: Any) -> dict[str, Any]:
    ms = costs["target"]["passes"][0]["ms"]
    reading = costs["target"]["weight_bytes"] / costs["bandwidth_gb_s"] / 1e6
    return {
        "bandwidth_gb_s": costs["bandwidth_gb_s"],
        "ms": ms,
        "reading_share": reading / ms["1"],
        "flatness": ms["32"] / ms["1"],
    }


def attentions(bench: Bench) -> dict[str, float]:
    """Milliseconds of SDPA and of FlexAttention with a mask in memory."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if bench.plain.model.device.type == "cpu":
        return {}
    queries, device = 32, bench.plain.model.device
    shape = (1, 8, CONTEXT, 128)
    keys, values = (torch.randn(shape, device=device, dtype=bench.dtype) for _ in range(2))
    query = torch.randn(1, 32, queries, 128, device=device, dtype=bench.dtype)
    seen = torch.rand(queries, CONTEXT, device=device) < 0.9
    additive = torch.zeros(seen.shape, device=device, dtype=bench.dtype)
    additive.masked_fill_(~seen, -torch.inf)
    blocks = create_block_mask(
        lambda b, h, q, k: seen[q, k], None, None, queries, CONTEXT, device=device
    )
    flex = torch.compile(flex_attention, dynamic=False)

    def timed(run: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(100):
            run()
        torch.cuda.synchronize()
        return 10 * (perf_counter() - began)

    with torch.inference_mode():
        return bench.medians(
            {
                "sdpa": lambda: timed(
                    lambda: F.scaled_dot_product_attention(
                        query, keys, values, attn_mask=additive, enable_gqa=True
                    )
                ),
                "flex": lambda: timed(
                    lambda: flex(query, keys, values, block_mask=blocks, enable_gqa=True)
                ),
            }
        )


def rate(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second, all prompts at once; nothing of earlier answers is known."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    forget(llm)
    began = perf_counter()
    done = llm.generate(prompts, params)
    spent = perf_counter() - began
    return sum(len(output.outputs[0].token_ids) for output in done) / spent


def step_share(bench: Bench) -> float:
    """What is neither drafting nor the pass, as a share of a step of plain decoding."""
    llm = bench.plain

    def share() -> float:
        llm.reset_stats()
        rate(llm, bench.prompts[:1], bench.given.tokens)
        parts = llm.stats.ms_per_step
        return parts["other"] / sum(parts.values())

    return bench.medians({"other": share})["other"]


def assisted(bench: Bench) -> dict[str, float]:
    """Tokens per second at batch 1."""
    given, prompt = bench.given, bench.prompts[0]
    load = AutoModelForCausalLM.from_pretrained
    target, draft = (
        load(folder, dtype=bench.dtype).to(bench.plain.model.device).eval()
        for folder in (bench.target, bench.draft)
    )
    ids = torch.tensor([prompt], device=bench.plain.model.device)

    def theirs() -> float:
        began = perf_counter()
        out = target.generate(
            ids,
            assistant_model=draft,
            do_sample=False,
            max_new_tokens=given.tokens,
            min_new_tokens=given.tokens,
        )
        return (out.shape[1] - ids.shape[1]) / (perf_counter() - began)

    sides: dict[str, Callable[[], float]] = {"transformers": theirs}
    for method in bench.given.methods:
        llm = bench.speculating(method, 1)
        sides[method] = lambda llm=llm: rate(llm, [prompt], given.tokens)
    with torch.inference_mode():
        return bench.medians(sides)


def sweep(bench: Bench) -> dict[int, float]:
    """Speedup over plain decoding of the last method, at each batch size."""
    batches: list[int] = bench.given.batches
    quick, results = bench.speculating(bench.given.methods[-1], max(batches)), {}
    for batch in batches:
        prompts = bench.prompts[:batch]
        speeds = bench.medians(
            {
                "plain": lambda prompts=prompts: rate(bench.plain, prompts, bench.given.tokens),
                "quick": lambda prompts=prompts: rate(quick, prompts, bench.given.tokens),
            }
        )
        results[batch] = speeds["quick"] / speeds["plain"]
    return results


def missed(results: dict[str, Any]) -> list[str]:
    """What is on the wrong side of its limit, in words."""
    whole = [
        part for name, part in results["passes"].items() if not name.endswith(("int8", "int4"))
    ]
    best = max(whole, key=lambda part: part["reading_share"])
    stock = results["assisted"]["transformers"]
    checks = [
        (best["reading_share"] >= READING, f"pass(1) reads at {best['reading_share']:.0%}"),
        (best["flatness"] <= FLAT, f"pass(32) is {best['flatness']:.2f} of pass(1)"),
        (results["other_share"] <= OTHER, f"{results['other_share']:.1%} of a step is not passes"),
    ]
    checks += [
        (speed >= ASSISTED * stock, f"{name} is {speed / stock:.2f} times transformers' assisted")
        for name, speed in results["assisted"].items()
        if name != "transformers"
    ] + [
        (ratio >= NEVER_SLOWER, f"{ratio:.2f} of plain decoding at batch {batch}")
        for batch, ratio in results["sweep"].items()
    ]
    return [text for met, text in checks if not met]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--shape", default="7b", help="the shape to inflate to (default: 7b)")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--backends", nargs="+", default=["plain", "cuda_graphs"])
    parser.add_argument("--methods", nargs="+", default=["sps", "auto"])
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, help="default: 1 to 64")
    parser.add_argument("--tokens", type=int, default=128, help="written for each prompt")
    parser.add_argument("--repeats", type=int, default=5, help="at least 5 (default: 5)")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    bench = Bench(given)
    results: dict[str, Any] = {"shape": given.shape, "passes": passes(bench)}
    rows = [["backend", "GB/s", "pass(1) ms", "reading ÷ pass(1)", "pass(32) ÷ pass(1)"]]
    for name, part in results["passes"].items():
        rows.append(
            [
                name,
                f"{part['bandwidth_gb_s']:.0f}",
                f"{part['ms']['1']:.2f}",
                f"{part['reading_share']:.2f}",
                f"{part['flatness']:.2f}",
            ]
        )
    table(rows)
    results |= {"attention_ms": attentions(bench), "other_share": step_share(bench)}
    results |= {"assisted": assisted(bench), "sweep": sweep(bench)}
    for name in ("attention_ms", "other_share", "assisted", "sweep"):
        print(f"{name}: {results[name]}")
    failures = missed(results)
    print("\n" + "\n".join(failures or ["every limit is kept"]))
    save("gpu", given, {**results, "met": not failures})
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
