"""KNN-LM: a model whose next token is also that of its nearest neighbours in a datastore.

    weight · p_kNN + (1 - weight) · p_LM,   p_kNN(v) ∝ Σ exp(-distance / distance_temperature)

over the k nearest entries whose token is v; distances are squared. Source: Khandelwal et al. 2020,
equations 2 and 3, and its defaults k = 1024, weight = 0.25.

The mixture is made of logits in place of the head's, so that drafters, rules and sampling
parameters treat the model like any other. A pass over a draft is then one search for all its
places, which hardly takes longer than one for a single place.

Legend: B sequences, S slots, R = B · S rows, K neighbours, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretoken.apps.knn.datastore import Distances, Ids, Neighbours
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.models.load import load_model, wrapped
from foretoken.models.native.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Found:
    """What the latest search found. logits: [B, S, V] that were made of it. ids: of each row's
    neighbours, R arrays [K]. seconds: of the search."""

    logits: Tensor
    ids: list[Ids]
    seconds: float


class KnnModel:
    """A model and its neighbours; `lm` is the `CausalLM` that mixes both, for `LLM`.

        knn = KnnModel("mini", Neighbours.load("store.npz"), k=256)
        LLM(knn.lm, tokenizer="mini", speculative_config={"method": CachedNeighbours(knn)})

    Args:
        model: as `LLM` takes it; it must run natively.
        neighbours: made by the same model.
        k: how many neighbours count.
        weight: theirs in the mixture, from 0 to 1.
        distance_temperature: how far neighbours still count.

    Raises `ForetokenError` for values out of range, for a model that doesn't run natively, and for
    a datastore of another width or vocabulary. searches, queries, search_time: how often, for how
    many places and how long the whole datastore was searched so far.
    """

    def __init__(
        self,
        model: Any,
        neighbours: Neighbours,
        *,
        k: int = 1024,
        weight: float = 0.25,
        distance_temperature: float = 1.0,
    ) -> None:
        check_range(1, math.inf, k=k)
        check_range(0, 1, weight=weight)
        check_range(1e-9, math.inf, distance_temperature=distance_temperature)
        loaded = load_model(model) if isinstance(model, (str, Path)) else wrapped(model)
        if not isinstance(loaded, Transformer):
            raise ForetokenError(
                "Neighbours are looked up by a native model's states, and this one runs by "
                "transformers' code; use model_impl='native'."
            )
        if neighbours.width != loaded.width or neighbours.tokens.max() >= loaded.vocab_size:
            raise ForetokenError(
                f"The datastore has states of {neighbours.width} numbers and tokens up to "
                f"{neighbours.tokens.max()}, and the model has {loaded.width} and a vocabulary of "
                f"{loaded.vocab_size}; build it by this model."
            )
        self.base, self.neighbours = loaded, neighbours
        self.k, self.weight, self.distance_temperature = k, weight, distance_temperature
        self.lm = loaded.with_head(self._mixed)
        self.found: Found | None = None
        self.searches = self.queries = 0
        self.search_time = 0.0

    def _mixed(self, states: Tensor) -> Tensor:
        """The head of `lm`: normed states [B, S, D] -> logits [B, S, V], by one search."""
        begun = perf_counter()
        rows = states.reshape(-1, states.shape[-1])
        ids, distances = self.neighbours.search(rows.double().numpy(force=True), self.k)
        seconds = perf_counter() - begun
        logits = self.mixture(states, [self.neighbours.tokens[each] for each in ids], distances)
        self.found = Found(logits, ids, seconds)
        self.searches += 1
        self.queries += len(ids)
        self.search_time += seconds
        return logits

    def mixture(
        self, states: Tensor, tokens: Seq[NDArray[np.int64]], distances: Seq[Distances]
    ) -> Tensor:
        """Log-probabilities [..., V] after states [..., D], given each row's neighbours: R arrays
        [K] of tokens and squared distances. A row without any is the model's alone."""
        logits = self.base.head(states)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        mixed = logits.log_softmax(-1)
        for row, near, far in zip(mixed.view(-1, mixed.shape[-1]), tokens, distances, strict=True):
            if len(near):
                self._mix(row, torch.from_numpy(near), torch.from_numpy(far))
        return mixed

    def _mix(self, row: Tensor, tokens: Tensor, distances: Tensor) -> None:
        """Change one row [V]; several neighbours may have the same token."""
        shares = (-distances / self.distance_temperature).softmax(-1).to(row)
        tokens = tokens.to(row.device)
        mass = torch.zeros_like(row).index_add_(0, tokens, shares)[tokens]
        row += math.log1p(-self.weight) if self.weight < 1 else -math.inf
        theirs = mass.log() + (math.log(self.weight) if self.weight else -math.inf)
        row[tokens] = torch.logaddexp(row[tokens], theirs)
