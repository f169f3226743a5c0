"""OpenVINO GenAI: plain, with prompt lookup, and with a draft model; token ids in and out.

Everything is stored in float32, the KV cache too (OpenVINO's default on x86 is 8 bits), unless
"properties" say otherwise, and no prompt is kept from one call to the next.
"""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino_genai import GenerationConfig, LLMPipeline, SchedulerConfig, TokenizedInputs
from protocol import serve

_FLOAT32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "PERFORMANCE_HINT": "LATENCY",
}


class OpenVINO:
    def __init__(self, given: dict[str, Any]) -> None:
        self.versions = {name: version(name) for name in ("openvino", "openvino-genai")}
        self._methods = given["methods"]
        self._eos = given["eos"]
        self._pipelines = {name: self._pipeline(given, name) for name in self._methods}

    def _pipeline(self, given: dict[str, Any], method: str) -> Any:
        device = {
            **given.get("properties", _FLOAT32),
            "INFERENCE_NUM_THREADS": given["threads"],
        }
        scheduler = SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 4096  # a prompt in one pass
        more: dict[str, Any] = {}
        how = self._methods[method].get("drafts")
        if how == "lookup":
            more["prompt_lookup"] = True
        elif how == "model":
            more["draft_model"] = openvino_genai.draft_model(given["draft"], "CPU", **device)
        return LLMPipeline(given["target"], "CPU", scheduler_config=scheduler, **device, **more)

    def generate(
        self, method: str, prompt: list[int], max_tokens: int, **drawn: Any
    ) -> tuple[list[int], float]:
        config = GenerationConfig()
        config.do_sample, config.max_new_tokens = bool(drawn), max_tokens
        if drawn:
            config.temperature, config.rng_seed = drawn["temperature"], drawn["seed"]
            config.top_p = 1.0
        config.set_eos_token_id(self._eos)
        for name, value in self._methods[method].items():
            if name != "drafts":
                setattr(config, name, value)
        row = np.array([prompt], dtype=np.int64)
        given = TokenizedInputs(openvino.Tensor(row), openvino.Tensor(np.ones_like(row)))
        began = perf_counter()
        out = self._pipelines[method].generate(given, config)
        seconds = perf_counter() - began
        return list(out.tokens[0]), seconds


if __name__ == "__main__":
    serve(OpenVINO)
