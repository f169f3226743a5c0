"""Draws packed training batches from the token arrays: no padding, few records cut.

A batch is B rows of T + 1 tokens. Records are drawn by task share, longest first into the first
row that has room; what is left at the ends of rows is filled with the beginnings of short
records. A record longer than a row keeps its beginning and its end, so that instruction and
answer both survive; running text gives a random window instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from corpus import Packed
from numpy.typing import NDArray
from tokenizer import EOS_ID
from torch import Tensor

# Shares of the tokens drawn, by task; within a task sources count by tokens ** 0.6, and the
# factors below set right what that gets wrong.
SIMPLE = {
    "chat": 0.22,
    "translation": 0.28,
    "qa": 0.14,
    "math": 0.12,
    "grammar": 0.08,
    "rag": 0.07,
    "summarization": 0.05,
    "lm": 0.04,
}
EVERYTHING = {
    "chat": 0.17,
    "translation": 0.22,
    "qa": 0.08,
    "math": 0.12,
    "grammar": 0.04,
    "rag": 0.15,
    "summarization": 0.12,
    "lm": 0.07,
    "lm_de": 0.01,
    "code": 0.02,
}
LONG = {
    "chat": 0.14,
    "translation": 0.16,
    "qa": 0.12,
    "math": 0.10,
    "grammar": 0.03,
    "rag": 0.20,
    "summarization": 0.20,
    "lm": 0.04,
    "code": 0.01,
}
MIXES = {"simple": SIMPLE, "everything": EVERYTHING, "long": LONG}
FACTORS = {
    "bible_bsb_tafel": 0.3,
    "eltec_eng_novels": 0.4,
    "german_novels": 0.5,
    "squad_question_generation": 0.3,
    "t0_wiki_bio": 0.2,
    "factbook_rag": 0.5,
    "scitldr_a": 2.0,
    "oasst_en_100_trees": 3.0,
    "self_instruct_seed": 2.0,
    "xquad_en": 2.0,
    "nq_oracle_rag": 2.0,
}
# Answers that go round in circles are how small models fail, so ending one counts more.
ENDING_WEIGHT = 3.0
PROMPT_WEIGHT = 0.2  # of a prompt's tokens in the loss; answers and running text count 1
RUNNING = ("lm", "lm_de")


@dataclass
class Piece:
    tokens: NDArray[np.uint16]
    weight: NDArray[np.float32]


class Sampler:
    """Endless batches from one mix; the state to resume from is the number of batches drawn."""

    def __init__(
        self, sources: dict[str, Packed], mix: dict[str, float], length: int, seed: int
    ) -> None:
        self.sources = {n: p for n, p in sources.items() if p.task in mix}
        self.names = sorted(self.sources)
        self.length = length
        self.rng = np.random.default_rng(seed)
        self.cursor = {
            n: int(self.rng.integers(len(self.sources[n].starts) - 1)) for n in self.names
        }
        share = self._shares(mix)
        mean = np.array([self._mean_length(n) for n in self.names])
        self.chance = share / mean / (share / mean).sum()

    def _shares(self, mix: dict[str, float]) -> NDArray[np.float64]:
        size = {n: len(p.tokens) ** 0.6 * FACTORS.get(n, 1.0) for n, p in self.sources.items()}
        total: dict[str, float] = {}
        for n, p in self.sources.items():
            total[p.task] = total.get(p.task, 0.0) + size[n]
        tasks = {n: self.sources[n].task for n in self.names}
        return np.array([mix[tasks[n]] * size[n] / total[tasks[n]] for n in self.names])

    def _mean_length(self, name: str) -> float:
        return float(np.minimum(np.diff(self.sources[name].starts), self.length + 1).mean())

    def _next(self, name: str) -> Piece:
        source = self.sources[name]
        at = self.cursor[name]
        self.cursor[name] = (at + 1) % (len(source.starts) - 1)
        lo, hi, room = int(source.starts[at]), int(source.starts[at + 1]), self.length + 1
        if hi - lo > room and source.task in RUNNING:
            lo += int(self.rng.integers(hi - lo - room))
            hi = lo + room
        keep = np.arange(lo, hi)
        if hi - lo > room:
            keep = np.concatenate([keep[: room // 2], keep[-(room - room // 2) :]])
        answer = source.answer[keep]
        floor = 1.0 if source.task in RUNNING else PROMPT_WEIGHT
        weight = np.where(answer > 0, 1.0, floor).astype(np.float32)
        weight[(answer > 0) & (source.tokens[keep] == EOS_ID)] = ENDING_WEIGHT
        return Piece(source.tokens[keep], weight)

    def _draw(self) -> Piece:
        return self._next(self.names[int(self.rng.choice(len(self.names), p=self.chance))])

    def batch(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [B, T], goals [B, T], weights [B, T] that sum to one."""
        room, pieces, total = self.length + 1, [], 0
        while total < rows * room:
            pieces.append(self._draw())
            total += len(pieces[-1].tokens)
        pieces.sort(key=lambda p: -len(p.tokens))
        tokens = np.zeros((rows, room), np.int64)
        weight = np.zeros((rows, room), np.float32)
        used = [0] * rows

        def put(row: int, piece: Piece) -> None:
            lo = used[row]
            n = min(room - lo, len(piece.tokens))
            tokens[row, lo : lo + n] = piece.tokens[:n]
            weight[row, lo : lo + n] = piece.weight[:n]
            used[row] = lo + n

        for piece in pieces:
            row = next((r for r in range(rows) if used[r] + len(piece.tokens) <= room), None)
            if row is not None:
                put(row, piece)
        for row in range(rows):
            while used[row] < room:
                put(row, self._draw())
        ids, w = torch.from_numpy(tokens), torch.from_numpy(weight)
        return ids[:, :-1], ids[:, 1:], w[:, 1:] / w[:, 1:].sum()
