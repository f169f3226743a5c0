"""What a model's states were followed by in a corpus, and the nearest of them, exactly.

Each entry is a state of the model (the key) and the token that came after it. Which entries are
nearest must not depend on the other queries of a call, and a product of matrices rounds otherwise
for one row than for several. So the product, in float32, only leaves out what can't be among the
nearest; the rest is measured in float64, row by row. How wrong an inner product can be: Higham
2002, section 3.1.

Source: Khandelwal et al. 2020 (KNN-LM), section 2. Departure: the key is the last state, as the
head reads it, and theirs is what the last feed-forward reads.

Legend: N entries, Q queries, K nearest, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretoken.apps.search import contenders, products
from foretoken.errors import ForetokenError, one_line
from foretoken.files import DAMAGE, replacing
from foretoken.models.feed import chain_feed
from foretoken.models.model import CausalLM
from foretoken.progress import track_late

Ids = NDArray[np.intp]
Distances = NDArray[np.float64]

_WINDOWS = 8  # texts of a pass


class Neighbours:
    """Entries of a datastore.

    keys: [N, D] states, kept in float32. tokens: [N] what followed each; entries that follow each
    other in the corpus follow each other here. Raises `ForetokenError` for other shapes, for keys
    that aren't finite and where there are none.
    """

    def __init__(self, keys: Any, tokens: Any) -> None:
        self.keys = np.ascontiguousarray(keys, np.float32)
        self.tokens = np.ascontiguousarray(tokens, np.int64)
        if self.keys.ndim != 2 or self.tokens.shape != self.keys.shape[:1] or not self.tokens.size:
            raise ForetokenError(
                f"The keys have the shape {list(self.keys.shape)} and the tokens "
                f"{list(self.tokens.shape)}; give [N, D] and [N], of at least one entry."
            )
        if not np.isfinite(self.keys).all():
            raise ForetokenError("A key has a number that is not finite; see what the model gives.")
        if self.tokens.min() < 0:
            raise ForetokenError("A token's id is below 0; give the ids of the model's vocabulary.")
        squares = np.einsum("nd,nd->n", self.keys, self.keys, dtype=np.float64)
        self.halves = (squares / 2).astype(np.float32)
        self._longest = float(np.sqrt(squares.max()))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        _, width = self.keys.shape
        return int(width)

    @classmethod
    def build(cls, model: CausalLM, texts: Seq[Seq[int]], window: int = 256) -> Neighbours:
        """An entry for each token of the texts but the first, read in windows of so many tokens.

        model: that of the datastore. texts: token ids. Raises `ForetokenError` where no text has
        two tokens, for ids that the model doesn't have, and for a window that it can't read.
        """
        if not 2 <= window <= model.max_length:
            raise ForetokenError(
                f"window is {window}; it must be from 2 to the model's context, {model.max_length}."
            )
        runs = [
            list(text[at : at + window + 1])
            for text in texts
            for at in range(0, len(text) - 1, window)
        ]
        if runs and not 0 <= min(map(min, runs)) <= max(map(max, runs)) < model.vocab_size:
            raise ForetokenError(
                f"A text has token ids outside the vocabulary of {model.vocab_size}; tokenize the "
                "texts with the model's tokenizer."
            )
        cache = model.new_cache(_WINDOWS, window)
        slots = [cache.acquire(owner) for owner in range(_WINDOWS)]
        keys: list[NDArray[np.float32]] = []
        with torch.inference_mode(), track_late("Building the datastore", len(runs)) as advance:
            for first in range(0, len(runs), _WINDOWS):
                several = runs[first : first + _WINDOWS]
                feed = chain_feed(cache, slots[: len(several)], [run[:-1] for run in several])
                feed.logits = False
                states = model.forward(feed, cache, (-1,)).hidden[-1].float().numpy(force=True)
                for row, run in enumerate(several):
                    keys.append(states[row, : len(run) - 1].copy())
                    advance()
        if not keys:
            raise ForetokenError("No text has two tokens, so nothing follows anything; give more.")
        return cls(np.concatenate(keys), [token for run in runs for token in run[1:]])

    def save(self, path: str | Path) -> None:
        """Write one file, whole. Raises `ForetokenError` where that can't be done."""
        with replacing(path) as file:
            np.savez(file, keys=self.keys, tokens=self.tokens)

    @classmethod
    def load(cls, path: str | Path) -> Neighbours:
        """Read what `save` wrote. Raises `ForetokenError` for anything else."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                return cls(stored["keys"], stored["tokens"])
        except (*DAMAGE, OSError) as error:
            raise ForetokenError(
                f"{path} can't be read as a datastore of neighbours ({one_line(error)}); build it "
                "again."
            ) from error

    def search(self, queries: Any, k: int) -> tuple[list[Ids], list[Distances]]:
        """For each query [Q, D] the ids of its k nearest entries, of equally near ones the lowest
        ids, and their squared distances, both in the order of ids."""
        exact = np.asarray(queries, np.float64)
        rough = np.ascontiguousarray(exact, np.float32)
        rows = zip(exact, products(self.keys, rough), strict=True)
        found = [self._nearest(query, row - self.halves, k) for query, row in rows]
        return [ids for ids, _ in found], [distances for _, distances in found]

    def _nearest(
        self, query: Distances, scores: NDArray[np.float32], k: int
    ) -> tuple[Ids, Distances]:
        """scores: [N] x·q - x²/2, which order as the distances do, but for their rounding."""
        norm = float(np.linalg.norm(query))
        error = 2 * (self.width + 4) * 2.0**-24 * self._longest * (norm + self._longest)
        ids = contenders(scores, k, error)
        distances = np.square(self.keys[ids] - query).sum(-1)
        chosen = np.sort(np.lexsort((ids, distances))[:k])
        return ids[chosen], distances[chosen]
