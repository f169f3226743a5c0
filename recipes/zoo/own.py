"""The target's own answers, with its likeliest tokens at every place, and batches of them.

A drafter meets the text that its target writes, so that is what it learns from. Those tokens
are kept while the answer is written, so that an hour of training needs no pass of the target: four
times as many tokens in the same time.

Legend: N answers, B rows, T tokens, K likeliest tokens.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import Packed
from evaluate import SIX, prompts_of
from model import Llama
from numpy.typing import NDArray
from sample import BEST, in_batches
from torch import Tensor

from foretoken.files import replacing

LIMIT = 96  # tokens of an answer
LONGEST = 350  # tokens of a prompt
GREEDY = 0.75  # of the answers; the others are sampled at temperature 1
PROMPT_WEIGHT = 0.1  # a prompt's tokens are learned as plain text


@dataclass
class Own:
    """Prompts with answers, one after another; each begins at one of `starts`.

    best, chance [tokens, K]: the target's likeliest tokens instead of each token, and their
    probabilities. In place of a prompt's token stands that token alone.
    """

    tokens: NDArray[np.uint16]
    answer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    best: NDArray[np.uint16]
    chance: NDArray[np.float16]

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            np.savez(file, **vars(self))

    @staticmethod
    def load(path: Path) -> Own:
        with np.load(path) as arrays:
            return Own(**{name: arrays[name] for name in arrays.files})


def write(target: Llama, data: dict[str, Packed], count: int, seed: int = 0) -> Own:
    """`count` answers to training prompts, equally many of each task."""
    rng, prompts = random.Random(seed), []
    for task in SIX:
        some = prompts_of(data, task, count * 2, longest=LONGEST)
        prompts += rng.sample(some, min(count // len(SIX), len(some)))
    rng.shuffle(prompts)
    noise, greedy = torch.Generator().manual_seed(seed), int(GREEDY * len(prompts))
    parts: list[tuple[NDArray[np.generic], ...]] = []
    began, total = time.time(), 0
    for some, heat in ((prompts[:greedy], 0.0), (prompts[greedy:], 1.0)):
        for i, written, best, chance in in_batches(target, some, LIMIT, heat, noise):
            parts.append(_record(some[i], written, best, chance))
            total += len(written)
            if len(parts) % 1000 == 0:
                print(f"{len(parts)}/{len(prompts)} answers, {total} tokens", flush=True)
    print(f"{total} tokens of answers in {(time.time() - began) / 60:.1f} min", flush=True)
    tokens, answer, best_, chance_ = (np.concatenate(x) for x in zip(*parts, strict=True))
    starts = np.cumsum([0, *(len(p[0]) for p in parts)])
    return Own(tokens, answer, starts, best_, chance_)


def _record(
    prompt: list[int], written: list[int], best: Tensor, chance: Tensor
) -> tuple[NDArray[np.generic], ...]:
    both = np.array(prompt + written, np.uint16)
    ids, odds = np.zeros((len(both), BEST), np.uint16), np.zeros((len(both), BEST), np.float16)
    ids[:, 0], odds[:, 0] = both, 1.0
    ids[len(prompt) :], odds[len(prompt) :] = best.numpy().astype(np.uint16), chance.numpy()
    answer = np.array([0] * len(prompt) + [1] * len(written), np.uint8)
    return both, answer, ids, odds


class OwnSampler:
    """Endless batches: whole records in random order, packed into rows; the last one is cut."""

    def __init__(self, own: Own, length: int, seed: int) -> None:
        self.own, self.length = own, length
        self.rng = np.random.default_rng(seed)
        self.order: list[int] = []

    def _next(self) -> NDArray[np.int64]:
        if not self.order:
            self.order = self.rng.permutation(len(self.own.starts) - 1).tolist()
        at = self.order.pop()
        return np.arange(self.own.starts[at], self.own.starts[at + 1])

    def _row(self) -> NDArray[np.int64]:
        room, pieces, used = self.length + 1, [], 0
        while used < room:
            pieces.append(self._next())
            used += len(pieces[-1])
        return np.concatenate(pieces)[:room]

    def batch(self, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs [B, T], best [B, T, K] and chance [B, T, K] of the goals, weights [B, T]."""
        at = np.stack([self._row() for _ in range(rows)])
        own, goal = self.own, at[:, 1:]
        ids = torch.from_numpy(own.tokens[at[:, :-1]].astype(np.int64))
        best = torch.from_numpy(own.best[goal].astype(np.int64))
        chance = torch.from_numpy(own.chance[goal].astype(np.float32))
        weight = torch.from_numpy(np.where(own.answer[goal] > 0, 1.0, PROMPT_WEIGHT))
        weight = weight.float()
        return ids, best, chance, weight / weight.sum()
