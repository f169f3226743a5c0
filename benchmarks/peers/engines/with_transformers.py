"""transformers: `generate`, with prompt lookup, and with an assistant model.

An assistant's options belong to its own generation config; prompt lookup's belong to the call.
"""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Any

import torch
import transformers
from protocol import serve
from transformers import AutoModelForCausalLM


class Transformers:
    def __init__(self, given: dict[str, Any]) -> None:
        torch.set_num_threads(given["threads"])
        transformers.utils.logging.set_verbosity_error()
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self._methods = given["methods"]
        self._target = self._load(given["target"])
        self._draft = self._load(given["draft"])
        self._draft_config = copy.deepcopy(self._draft.generation_config)

    @staticmethod
    def _load(folder: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(self, method: str, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
        ids = torch.tensor([prompt])
        options = dict(self._methods[method])
        call = dict(options.pop("call", {}))
        if options.pop("assisted", False):
            call["assistant_model"] = self._draft
            self._draft.generation_config = copy.deepcopy(self._draft_config)
            self._draft.generation_config.update(**options)
        began = perf_counter()
        out = self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            **call,
        )
        seconds = perf_counter() - began
        return out[0, len(prompt) :].tolist(), seconds


if __name__ == "__main__":
    serve(Transformers)
