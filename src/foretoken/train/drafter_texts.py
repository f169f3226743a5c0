"""Texts that a drafter in training writes itself, for its target to correct (on-policy data).

Source: Zhou et al. 2024 (DistillSpec), section 3; departure: new text is written at
intervals, not at each step. A block of texts is written with the weights of one step, so a
resumed run reads it from the folder, or writes the very same.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays
from foretoken.llm import LLM
from foretoken.sampling.params import SamplingParams
from foretoken.train import processes
from foretoken.train.engines import beside
from foretoken.train.records import Records
from foretoken.trainable.small_lm import TrainedLM

_log = logging.getLogger(__name__)

_KIND = "block of a drafter's texts"
_WRITTEN = 32  # texts side by side, where there is memory for them


class DrafterTexts:
    """Texts of `module`, `count` of them at a time, to the prompts of `prompts`; new ones every
    `every` steps (0: once). llm: the target's, for the tokenizer and what ends a text. distinct:
    texts with a smaller share of distinct 4-grams are left out; where all loop, which the log says,
    none is."""

    def __init__(
        self,
        module: TrainedLM,
        llm: LLM,
        prompts: Records,
        folder: Path,
        params: SamplingParams,
        count: int,
        every: int,
        distinct: float,
    ) -> None:
        self._module, self._llm, self._prompts, self._folder = module, llm, prompts, folder
        self._params, self._count, self._every = params, count, every
        self._distinct = distinct
        self._block, self._records = -1, prompts

    def __call__(self, step: int) -> Records:
        """The texts for a step; where a new block begins, the module's weights are that step's."""
        block = step // self._every if self._every else 0
        if block != self._block:
            begins = step == block * self._every
            written = self._read_or_write(block, begins)
            kept = written.without_loops(self._distinct)
            if not len(kept):
                _log.warning("All %d texts that the drafter wrote by itself loop", len(written))
            self._block, self._records = block, kept if len(kept) else written
        return self._records

    def _read_or_write(self, block: int, begins: bool) -> Records:
        path = self._folder / f"own-{block:05d}.npz"
        if begins and not processes.is_first():
            processes.wait_for(path)
        made_for: dict[str, int | str] = {"texts": self._count, "seed": self._params.seed or 0}
        if path.exists():
            arrays = read_arrays(path, _KIND, made_for, Records.ARRAYS)
            return Records(**arrays, limit=self._prompts.limit)
        if not begins:
            raise ForetokenError(
                f"{path} is missing, and was written from weights that are gone; give another "
                "--out."
            )
        records = self._write(block)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_arrays(path, _KIND, made_for, records.arrays)
        return records

    def _write(self, block: int) -> Records:
        rng = np.random.default_rng((self._params.seed or 0, block))
        prompted = [i for i in range(len(self._prompts)) if len(self._prompts.prompt(i))]
        chosen = rng.choice(prompted, min(self._count, len(prompted)), replace=False)
        prompts = [self._prompts.prompt(int(i)) for i in chosen]
        seeds = rng.integers(1 << 40, size=len(prompts))
        params = [replace(self._params, seed=int(seed)) for seed in seeds]
        longest = max(map(len, prompts), default=0) + (self._params.max_tokens or 0)
        with beside(self._llm, self._module.native(), longest, _WRITTEN) as writer:
            outputs = writer.generate(prompts, params)
        answered = zip(prompts, outputs, strict=True)
        pairs = [(p, list(o.token_ids)) for p, o in answered if not o.error]
        failed = [output.error for output in outputs if output.error]
        if failed and not pairs:
            raise ForetokenError(f"The drafter can't answer a prompt; the first, as: {failed[0]}")
        if failed:
            _log.warning(
                "%d of %d prompts, which the drafter can't answer, are left out, the first as: %s",
                len(failed),
                len(prompts),
                failed[0],
            )
        return Records.of(pairs, self._prompts.limit, self._module.facts.vocab_size)
