"""Training batches as ids, made ahead by worker processes.

The texts that don't change from one draw to the next are tokenized once, into WORK/TASK/ids.npz;
a worker breaks and tokenizes the rest. A batch is a function of seed and number alone. What a
worker hands over is two arrays of 16 bits, small enough for a pipe.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import model as models
import numpy as np
import pairs
import torch
from model import Arrays, Batch
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from foretoken.files import replacing

_PIECE = 20_000  # texts that are tokenized at once


@dataclass(frozen=True)
class Ids:
    """Texts as ids, end to end. ends: [N + 1] where each one begins, and the end."""

    flat: Any
    ends: Any

    def __getitem__(self, at: int) -> Any:
        return self.flat[self.ends[at] : self.ends[at + 1]]


def _ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Ids:
    found = []
    for at in range(0, len(texts), _PIECE):
        found += models.ids_of(tokenizer, texts[at : at + _PIECE])
    ends = np.cumsum([0, *map(len, found)])
    return Ids(np.concatenate(found), ends)


def stored_ids(
    work: Path, task: str, tokenizer: PreTrainedTokenizerFast, texts: list[Any]
) -> dict[int, Ids]:
    """Side -> its ids: 1 is what is to be written, and 0 the source, if it is always the same."""
    path = work / task / "ids.npz"
    if not path.exists():
        sides = {1: texts} if task == "corrector" else {i: [t[i] for t in texts] for i in (0, 1)}
        made = {side: _ids(tokenizer, part) for side, part in sides.items()}
        parts = {f"{name}{i}": getattr(ids, name) for i, ids in made.items() for name in _PARTS}
        with replacing(path) as file:
            np.savez(file, **parts)
    with np.load(path) as file:
        stored = {i: Ids(*(file[f"{n}{i}"] for n in _PARTS)) for i in (0, 1) if f"flat{i}" in file}
    if any(len(ids.ends) != len(texts) + 1 for ids in stored.values()):
        raise SystemExit(f"{path} is of other texts than train.json.gz; delete it.")
    return stored


_PARTS = ("flat", "ends")


class Made(Dataset[Arrays]):
    """Number -> a batch's ids."""

    def __init__(self, work: Path, task: str, rows: int, seed: int) -> None:
        texts = pairs.read(work, task, "train")
        self._tokenizer = models.tokenizer_of(work, task)
        self._ids = stored_ids(work, task, self._tokenizer, texts)
        self._batches = pairs.Batches(texts, rows, seed)

    def __getitem__(self, number: int) -> Arrays:
        places, rng = self._batches.draw(number)
        written = [self._ids[1][at] for at in places]
        return models.padded(self._sources(places, rng)), models.padded(written)

    def _sources(self, places: list[int], rng: random.Random) -> list[Any]:
        if 0 in self._ids:
            return [self._ids[0][at] for at in places]
        broken = [self._batches.pair(at, rng)[0] for at in places]
        return models.ids_of(self._tokenizer, broken)


def _same(made: Any) -> Any:
    return made


@dataclass(frozen=True)
class Feed:
    """Called with a number, the batches from there on. workers: processes; 0 makes each batch when
    it is needed."""

    made: Made
    device: torch.device
    workers: int = 0

    def __call__(self, first: int) -> Iterator[Batch]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the cores out
        more: dict[str, Any] = {"prefetch_factor": 4} if self.workers else {}
        numbers: Any = count(first)
        loader = DataLoader(
            self.made,
            batch_size=None,
            sampler=numbers,
            num_workers=self.workers,
            collate_fn=_same,
            **more,
        )
        for source, written in loader:
            yield models.batch_of(source, written, self.device)
