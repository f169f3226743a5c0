"""Speculative retrieval for KNN-LM: neighbours are looked for in a cache, and verified together.

Source: Zhang et al. 2024 (RaLMSpec), section 5.3 and its OS³ scheduler. The cache holds what
earlier searches found and the entries that follow these in the datastore, as a text that was like a
part of the corpus goes on like it. A guess counts as right where its token is: neighbours aren't
compared. The model's passes are made while it drafts, one a token as in the plain loop, and the
verification goes on from their states, so that it is one search of the whole datastore.

Tokens are chosen with the noise of their own places, so a guess is right wherever the cache leads
to the same distribution; the text is the plain loop's at any temperature, by rules that compare the
guess with the token that is drawn there. Departures: each verification also writes the token after
the last guess; the cache is bounded, the latest entries stay, and of one search what was found
before what follows it; γ is bounded by 0.9, as single tokens are guessed better than documents.

Legend: B sequences, M entries of a cache, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.apps.knn.datastore import Distances, Ids, Neighbours
from foretoken.apps.knn.model import KnnModel
from foretoken.apps.ralm.stride import FixedStride, OptimalStride, Round, Stride
from foretoken.apps.search import products
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, empty


@dataclass(eq=False)
class CachedNeighbours(BaseDrafter):
    """knn: whose `lm` is the target. speculation_stride: tokens that one search verifies, None lets
    OS³ choose; num_speculative_tokens: the most; following: entries that come into the cache with
    each one that was found; cached: entries that a cache may hold."""

    knn: KnnModel
    speculation_stride: int | None = None
    num_speculative_tokens: int = 16
    following: int = 10
    cached: int = 8192

    wants = Wants("ce")
    coupled = True  # see `_guess`

    def __post_init__(self) -> None:
        check_range(
            1,
            MOST_NODES,
            num_speculative_tokens=self.num_speculative_tokens,
            speculation_stride=self.speculation_stride,
        )
        check_range(0, inf, following=self.following)
        check_range(1, inf, cached=self.cached)

    @property
    def nodes(self) -> int:
        return max(self.num_speculative_tokens, self.speculation_stride or 0)

    def bind(self, access: Access) -> None:
        self._access: Access = access

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        """All sequences are run as far as the longest draft, so that verification goes on from the
        states of all."""
        counts = [self._count(s, budget) for s, budget in zip(sequences, budgets, strict=True)]
        longest, access = max(counts), self._access
        if not longest:
            return empty(len(sequences), access.device)
        begun = perf_counter()
        roots = torch.tensor([s.tokens[-1] for s in sequences], device=access.device)
        tokens, states = [roots], list[Tensor]()
        for depth in range(longest):
            layers = range(2 * access.layers)
            states.append(access.draft_states(sequences, tokens[-1][:, None], depth, layers))
            tokens.append(self._guess(sequences, states[-1], tokens[1:], draws))
        seconds = (perf_counter() - begun) / longest
        for sequence, count in zip(sequences, counts, strict=True):
            self._memory(sequence).seconds = seconds if count else 0.0
        tree = DraftTree(torch.stack(tokens[1:], 1), counts)
        run = torch.stack(tokens[:-1], 1)
        return replace(tree, resume=access.resume_point(access.layers, run, torch.cat(states, 1)))

    def _count(self, sequence: Sequence, budget: int) -> int:
        """How many tokens to guess: none before there is anything in the cache."""
        memory = self._memory(sequence)
        room = self._access.max_length + 1 - len(sequence.tokens)
        most = min(budget, room, self.nodes)
        return memory.stride.next(most) if most > 0 and len(memory.ids) else 0

    def _guess(
        self, sequences: Seq[Sequence], states: Tensor, before: Seq[Tensor], draws: Draws
    ) -> Tensor:
        """[B] the next tokens after states [B, 1, D] and the guessed tokens [B] before them."""
        normed = self._access.norm(states)
        queries = normed[:, 0].float().numpy(force=True)
        near = [
            self._memory(sequence).nearest(query, self.knn.k)
            for sequence, query in zip(sequences, queries, strict=True)
        ]
        logits = self.knn.mixture(normed, [each for each, _ in near], [far for _, far in near])

        def contexts() -> list[list[list[int]]]:
            return [[[int(token[row]) for token in before]] for row in range(len(sequences))]

        depths = torch.full((len(sequences), 1), len(before), device=logits.device)
        return draws.pick(fold(logits, sequences, contexts).probs, depths)[:, 0]

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        found = self.knn.found
        for sequence, step in zip(sequences, steps, strict=True):
            if not step.tokens:
                continue
            if found is None or found.logits is not step.scores.logits:
                raise ForetokenError(
                    "The target looked for no neighbours in this step; give LLM the `lm` of the "
                    "KnnModel that CachedNeighbours was made with."
                )
            memory, slots = self._memory(sequence), found.logits.shape[1]
            if step.drafted and memory.seconds:
                done = Round(step.drafted, len(step.path), memory.seconds, found.seconds)
                memory.stride.note(done)
            rows = [step.row * slots + slot for slot in (0, *step.path)]
            memory.insert([found.ids[row] for row in rows], self.following, self.cached)

    def _memory(self, sequence: Sequence) -> _Memory:
        memory: _Memory | None = sequence.state.get(self)
        if memory is None:
            stride = self.speculation_stride
            chosen = (
                OptimalStride(asynchronous=False, highest_rate=0.9)
                if stride is None
                else FixedStride(stride)
            )
            memory = sequence.state[self] = _Memory(self.knn.neighbours, chosen)
        return memory


class _Memory:
    """One request's cache and stride. seconds: of each guess of the latest draft."""

    def __init__(self, neighbours: Neighbours, stride: Stride) -> None:
        self._all, self.stride, self.seconds = neighbours, stride, 0.0
        self.ids: Ids = np.empty(0, np.intp)
        self._gather()

    def insert(self, found: Seq[Ids], following: int, most: int) -> None:
        """Keep what was found [K] at several places, then what follows it, nearest first, then what
        was there before; of each the latest first, and `most` in all."""
        most_ahead = min(following, len(self._all))
        ahead = np.arange(most_ahead + 1)[:, None] + np.concatenate(found[::-1])
        ids = np.concatenate((ahead[ahead < len(self._all)], self.ids))
        _, first = np.unique(ids, return_index=True)
        self.ids = ids[np.sort(first)[:most]]
        self._gather()

    def nearest(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], Distances]:
        """[K] tokens and [K] squared distances of the entries nearest to a query [D], about."""
        [scores] = products(self._keys, query[None])
        scores = scores - self._halves
        if k < len(scores):
            kept = np.argpartition(scores, len(scores) - k)[len(scores) - k :]
            scores, tokens = scores[kept], self._tokens[kept]
        else:
            tokens = self._tokens
        return tokens, (query @ query - 2 * scores).astype(np.float64)

    def _gather(self) -> None:
        store = self._all
        self._keys, self._halves = store.keys[self.ids], store.halves[self.ids]
        self._tokens = store.tokens[self.ids]
