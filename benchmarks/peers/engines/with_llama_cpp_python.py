"""llama-cpp-python: its token generator, plain and with its prompt lookup.

Its KV cache is stored in float32 and forgotten before each call. It offers no draft model.
"""

from __future__ import annotations

from importlib.metadata import version
from itertools import islice
from time import perf_counter
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import serve

_FLOAT32 = 0  # GGML_TYPE_F32


class LlamaCppPython:
    def __init__(self, given: dict[str, Any]) -> None:
        self.versions = {"llama-cpp-python": version("llama-cpp-python")}
        self._eos = given["eos"]
        self._models = {
            method: llama_cpp.Llama(
                given["target"],
                n_ctx=given["context"],
                n_threads=given["threads"],
                n_threads_batch=given["threads"],
                type_k=_FLOAT32,
                type_v=_FLOAT32,
                verbose=False,
                draft_model=LlamaPromptLookupDecoding(**options) if options else None,
            )
            for method, options in given["methods"].items()
        }

    def generate(self, method: str, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
        model = self._models[method]
        model.reset()
        ids: list[int] = []
        began = perf_counter()
        for token in islice(model.generate(prompt, temp=0.0, top_k=1), max_tokens):
            ids.append(token)
            if token == self._eos:
                break
        return ids, perf_counter() - began


if __name__ == "__main__":
    serve(LlamaCppPython)
