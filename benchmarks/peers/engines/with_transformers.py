"""transformers: `generate`, with prompt lookup, and with an assistant model.

An assistant's options belong to its own generation config; prompt lookup's belong to the call.
Weights are float32, or as "dtype" says; "draft" is null where no method needs one.
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
        dtype = getattr(torch, given.get("dtype", "float32"))
        self._target = self._load(given["target"], dtype)
        self._draft = self._load(given["draft"], dtype) if given["draft"] else None
        if self._draft is not None:
            self._draft_config = copy.deepcopy(self._draft.generation_config)

    @staticmethod
    def _load(folder: str, dtype: torch.dtype) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def generate(
        self, method: str, prompt: list[int], max_tokens: int, **drawn: Any
    ) -> tuple[list[int], float]:
        ids = torch.tensor([prompt])
        options = dict(self._methods[method])
        call = dict(options.pop("call", {}))
        if options.pop("assisted", False):
            call["assistant_model"] = self._draft
            self._draft.generation_config = copy.deepcopy(self._draft_config)
            self._draft.generation_config.update(**options)
        if drawn:
            torch.manual_seed(drawn["seed"])
            call |= {"temperature": drawn["temperature"], "top_k": 0, "top_p": 1.0}
        began = perf_counter()
        out = self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=bool(drawn),
            **call,
        )
        seconds = perf_counter() - began
        return out[0, len(prompt) :].tolist(), seconds


if __name__ == "__main__":
    serve(Transformers)
