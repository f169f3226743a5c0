"""foretoken itself: its methods around one copy of the target."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from protocol import serve

import foretoken
from foretoken import LLM, SamplingParams


class Foretoken:
    def __init__(self, given: dict[str, Any]) -> None:
        torch.set_num_threads(given["threads"])
        self.versions = {"foretoken": foretoken.__version__, "torch": torch.__version__}
        plain = LLM(
            given["target"],
            dtype="float32",
            max_num_seqs=1,
            enable_prefix_caching=False,  # as the others are asked to keep no prompt
        )
        self._llms = {
            method: self._beside(plain, given["draft"], options)
            for method, options in given["methods"].items()
        }

    @staticmethod
    def _beside(plain: LLM, draft: str, options: dict[str, Any]) -> LLM:
        config = {**options, "model": draft} if options["method"] == "sps" else options
        return LLM(
            plain.model,
            tokenizer=plain.tokenizer,
            speculative_config=config,
            max_num_seqs=1,
            enable_prefix_caching=False,
            eos_ids=plain.engine.eos_ids,
        )

    def generate(self, method: str, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        began = perf_counter()
        [out] = self._llms[method].generate([prompt], params)
        seconds = perf_counter() - began
        return list(out.outputs[0].token_ids), seconds


if __name__ == "__main__":
    serve(Foretoken)
