"""What it costs that a cache grows while a text is written.

On Linux with a CPU a cache takes memory page by page. For each token of a text the same pass runs
twice: the first writes cells whose pages may not be there yet, the second finds them. The page
faults of the first say whether it took any. All is done for several texts one after the other, and
the median over them is taken at each place. Example:

    python benchmarks/growing.py smollm2-135m-instruct.gguf
"""

from __future__ import annotations

import resource
import statistics
from argparse import Namespace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from shared import of_several, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.progress import track
from foretoken.sampling.sequence import Sequence
from foretoken.tree import empty

BEGIN = 16  # tokens of the prompt
FEW = 8  # faults of a pass that has nothing to do with the cache


class Text:
    """One text, written a token at a time: milliseconds and page faults of its passes."""

    def __init__(self, llm: LLM, first: int) -> None:
        self._target, self._tree = llm.engine.target, empty(1, llm.model.device)
        self._sequence = Sequence.start([first] * BEGIN, SamplingParams(temperature=0))
        self._target.begin(self._sequence)
        self._target.prefill([self._sequence], BEGIN)

    def step(self) -> tuple[float, float, int]:
        """Of the first pass and the second, and the faults of the first."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        first = self._pass()
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        second = self._pass()
        self._target.commit([self._sequence], [[]])
        self._sequence.tokens.append(self._sequence.tokens[0])
        return first, second, taken

    def _pass(self) -> float:
        began = perf_counter()
        self._target.score([self._sequence], self._tree)
        return 1000 * (perf_counter() - began)

    def end(self) -> None:
        self._target.end(self._sequence)


@torch.inference_mode()
def measured(model: str, given: Namespace) -> dict[str, Any]:
    llm = LLM(model, max_num_seqs=1, max_model_len=BEGIN + given.tokens + 8, device="cpu")
    texts = []
    with track(Path(model).stem, given.texts * given.tokens, True) as advance:
        for number in range(given.texts):
            text, steps = Text(llm, 10 + number), []
            for _ in range(given.tokens):
                steps.append(text.step())
                advance()
            text.end()
            texts.append(steps)
    return {"name": Path(model).stem, "backend": llm.model.backend, **summary(texts)}


def summary(texts: list[list[tuple[float, float, int]]]) -> dict[str, Any]:
    """Of several texts' steps, each (ms of the first pass, of the second, faults of the first)."""
    places = list(zip(*texts, strict=True))
    extra = [statistics.median(step[0] - step[1] for step in steps) for steps in places]
    taken = [statistics.median(step[2] for step in steps) > FEW for steps in places]
    growing = [ms for ms, grows in zip(extra, taken, strict=True) if grows]
    others = [ms for ms, grows in zip(extra, taken, strict=True) if not grows]
    return {
        "tokens": len(places),
        "texts": len(texts),
        "pass_ms": statistics.median(step[1] for steps in places for step in steps),
        "growing_steps": len(growing),
        "extra_ms_of_a_growing_step": statistics.median(growing) if growing else 0.0,
        "largest_extra_ms": max(growing, default=0.0),
        "largest_extra_ms_of_others": max(others, default=0.0),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tokens", type=int, default=1500, help="written of each text")
    parser.add_argument("--texts", type=int, default=5, help="one after the other")
    given = of_several(parser)
    results = [measured(model, given) for model in given.models]
    keys = ("pass_ms", "growing_steps", "extra_ms_of_a_growing_step", "largest_extra_ms")
    keys = (*keys, "largest_extra_ms_of_others")
    rows = [["model", *(key.replace("_", " ") for key in keys)]]
    for part in results:
        rows.append([part["name"], *(f"{part[key]:.3g}" for key in keys)])
    table(rows)
    save("growing", given, {"models": results})


if __name__ == "__main__":
    main()
