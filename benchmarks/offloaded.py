"""A model larger than the memory it may take: tokens a second by method, bytes read, memory.

Each method runs in a process of its own, with the target's weights bounded by --weights-memory and
its files dropped from the page cache. Seconds are of whole answers, each of whose prompts is read
anew. Without --model the target is `mini` inflated to 1.5 billion parameters in float16, and its
drafter `mini-draft`. Memory is the process's high-water mark while it decodes, less what it had
before the models were loaded; the draft model's bytes, which the bound leaves out, are told beside
it. Where it was interrupted it goes on. Example:

    python benchmarks/offloaded.py --check
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from kept import of_options
from shared import bundled, options, save, table, times_plain

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.memory import PeakMemory
from foretoken.machine import cache_folder
from foretoken.models.load import find
from foretoken.zoo import inflate
from foretoken.zoo.shape import Shape

FASTER = 2.5
"""How many times as fast as plain decoding the best method must be."""

SHAPE = Shape(2_048, 34, 32, 4, 5_632, 8_192)
METHODS = ("plain", "sps", "llmcad", "auto")


def target(given: argparse.Namespace) -> str:
    """The folder or file of the target, made once."""
    if given.model != "mini":
        return str(given.model)
    folder = cache_folder() / "inflated" / "mini-1.5b-float16"
    if not (folder / "config.json").is_file():  # written last
        inflate.inflate(find("mini"), folder, SHAPE, torch.float16)
    return str(folder)


def config(method: str, draft: str) -> dict[str, Any] | None:
    small = {"model": draft, "num_speculative_tokens": 32}
    return {
        "plain": None,
        "sps": {"method": "sps", "num_assistant_tokens_schedule": "cumulative", **small},
        "llmcad": {"method": "llmcad", **small},
        "auto": {"method": "auto:sps,pld,suffix", "sps": small},
    }[method]


def read_bytes() -> int:
    """What this process has had read from disks so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def drop(place: Path) -> None:
    """Drop a checkpoint's files from the page cache."""
    for path in [place] if place.is_file() else place.glob("*.safetensors"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def one(given: argparse.Namespace, method: str) -> dict[str, Any]:
    """Measure one method in this process."""
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.mib() or 0.0
    folder = find(target(given))
    llm = LLM(
        folder,
        dtype="auto",
        weights_memory=given.weights_memory,
        max_num_seqs=1,
        max_model_len=1024,
        speculative_config=config(method, given.draft_model),
    )
    drop(folder)
    texts = [prompt.turns[0][:400] for prompt in bundled()[: given.limit]]
    asked = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts]
    llm.generate([asked[0]], SamplingParams(temperature=0, max_tokens=1))
    llm.reset_stats()
    memory.reset()
    offloaded = llm.model.offloaded  # type: ignore[attr-defined]
    read, disk, begun = offloaded.bytes_so_far, read_bytes(), perf_counter()
    params = SamplingParams(temperature=0, max_tokens=given.max_tokens, ignore_eos=True)
    outs, each = [], list[float]()
    for prompt in asked:
        llm.reset_prefix_cache()  # of what the warm-up and other prompts have read of this one
        outs += llm.generate([prompt], params)
        each.append(perf_counter() - begun - sum(each))
    drafter = llm.engine.drafter
    small = [lm for part in (drafter, *drafter.parts) for lm in part.small_models]
    return {
        "tokens": llm.stats.tokens,
        "seconds": sum(each),
        "seconds_of_prompts": each,
        "passes": llm.stats.passes,
        "pass_bytes": offloaded.pass_bytes,
        "bytes": offloaded.bytes_so_far - read,
        "bytes_from_disk": read_bytes() - disk,
        "memory_mib": (memory.mib() or 0.0) - before,
        "draft_model_mib": sum(lm.bytes_read for lm in {*small}) / 2**20,
        "ids": [out.outputs[0].token_ids for out in outs],
    }


def apart(method: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, *sys.argv, "--one", method]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def missed(results: dict[str, dict[str, Any]], limit_mib: float) -> list[str]:
    """What is wrong, in words."""
    plain = results["plain"]
    rate = {name: one["tokens"] / one["seconds"] for name, one in results.items()}
    best = max(rate, key=lambda name: rate[name])
    wrong = [
        f"{name}: another text than plain decoding's"
        for name, one in results.items()
        if one["ids"] != plain["ids"]
    ]
    for name, done in results.items():
        if done["bytes"] < done["passes"] * done["pass_bytes"]:
            wrong.append(f"{name}: {done['bytes']} bytes read in {done['passes']} passes")
        if done["memory_mib"] - done["draft_model_mib"] > limit_mib:
            wrong.append(f"{name}: {done['memory_mib']:.0f} MiB")
    if rate[best] < FASTER * rate["plain"]:
        gained = rate[best] / rate["plain"]
        wrong.append(f"the best, {best}, is {gained:.2f} times as fast, {FASTER:g} asked for")
    return wrong


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--weights-memory", type=int, default=10**9, help="bytes (default: 1e9)")
    parser.add_argument("--limit", type=int, default=2, help="prompts (default: 2)")
    parser.add_argument("--max-tokens", type=int, default=24, help="of a text (default: 24)")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="default: all four")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given, given.one)))
        return 0
    kept = of_options(Path(__file__), given, [target(given), given.draft_model])
    results = {name: kept.cell(name, lambda name=name: apart(name)) for name in given.methods}
    rows = [["", "tokens/s", "tokens a pass", "GB read", "MiB"]]
    for name, done in results.items():
        rows.append(
            [
                name,
                f"{done['tokens'] / done['seconds']:.2f}",
                f"{done['tokens'] / done['passes']:.2f}",
                f"{done['bytes'] / 1e9:.1f}",
                f"{done['memory_mib']:.0f}",
            ]
        )
    table(rows)
    failures = missed(results, given.weights_memory / 2**20 + 256)  # keys, values, workspaces
    print("\n" + "\n".join(failures or ["every limit is met"]))
    plain = results["plain"]["seconds_of_prompts"]
    told = {
        name: {key: value for key, value in done.items() if key != "ids"}
        | times_plain(plain, done["seconds_of_prompts"])
        for name, done in results.items()
    }
    asked = {"weights_memory": given.weights_memory, "prompts": given.limit}
    asked["max_tokens"] = given.max_tokens
    save("offloaded", given, {**asked, "methods": told, "met": not failures})
    kept.forget()
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
