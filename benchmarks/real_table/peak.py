"""The most memory that one conversation of 2,000 tokens takes, in a process of its own, as JSON.

Everything but the backend at its defaults, as `LLM` and `foretoken chat` have them; what Python and
its libraries take is in the figure. Called by real.py:

    python benchmarks/real_table/peak.py BACKEND MODEL [DRAFT MODEL]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.memory import PeakMemory
from foretoken.bench.suites.suite import load_suite

READ, WRITTEN = 1_900, 100


def main(backend: str, model: str, draft: str | None = None) -> None:
    memory = PeakMemory(torch.device("cpu"))
    drafting = {"method": "sps", "model": draft, "draft_backend": backend}
    config = None if draft is None else drafting
    with LLM(model, backend=backend, speculative_config=config) as llm:
        own = load_suite(Path(__file__).with_name("prompts.jsonl"), "own").prompts
        ids = llm.tokenizer("\n\n".join(prompt.turns[0] for prompt in own))["input_ids"]
        read = (ids * (1 + READ // len(ids)))[: min(READ, llm.engine.target.max_length - WRITTEN)]
        params = SamplingParams(temperature=0, max_tokens=WRITTEN, ignore_eos=True)
        [output] = llm.generate([read], params)
        output.raise_error()
        results = {
            "tokens": len(read) + len(output.token_ids),
            "peak_mib": memory.mib(),
            "backend": llm.model.backend,
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
