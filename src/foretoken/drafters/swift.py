"""SWIFT: the target drafts with some of its sub-layers left out, and improves the set as it serves.

Source: Xia et al. 2025 (SWIFT), section 4; defaults of its code. After a step, a candidate set runs
over the last tokens of each text at once, and the share of them that it predicts is its score; the
best set so far drafts. Candidates are drawn at random, every 25th is the best of many draws by a
Gaussian process and an upper confidence bound. A draft is the chain of likeliest tokens, with more
siblings at a place the less sure the drafter is. Departures: their code scores candidates on the
first tokens that were generated; the set that the search starts from is scored first, where theirs
is replaced by the first candidate; the Gaussian process has a fixed length scale, and the rows of a
batch test one candidate together.

Legend: B sequences, T tokens of the window, V vocabulary, M sub-layers that may be left out, C
candidates, n sets tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from foretoken.access import Access, Wants
from foretoken.drafters.shared.ranking import ranking
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.models import layer_set
from foretoken.models.drafting.self_model import SelfModel
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.from_lists import from_parents
from foretoken.trees.siblings import SiblingChain

_WIDTHS = ((0.95, 3, 1), (0.8, 5, 3), (0.5, 8, 5), (-1.0, 10, 10))
"""(the drafter's confidence is above, nodes at that place when greedy, when sampling)."""
_WIDEST = 10
_LONGEST_WINDOW = 64
_KAPPA = 2.5
_POOL = 256  # draws that the upper confidence bound chooses from
_NOISE = 0.1  # variance of a score, one window being unlike another, as a share of all scores'


@dataclass(eq=False)
class Swift(BaseDrafter):
    """num_speculative_tokens: longest chain; assistant_confidence_threshold: it ends after a token
    less likely; skip_ratio: share of the sub-layers left out, at least one of them; context_window:
    tokens that a candidate is scored on; opt_interval: steps between two; bayes_interval: every
    n-th is chosen by the bound; the search ends at max_score, after max_tolerance_iter candidates
    that were no better in a row, or after max_opt_iter in all."""

    num_speculative_tokens: int = 25
    assistant_confidence_threshold: float = 0.8
    skip_ratio: float = 0.45
    context_window: int = 32
    opt_interval: int = 1
    bayes_interval: int = 25
    max_opt_iter: int = 1000
    max_tolerance_iter: int = 300
    max_score: float = 0.95

    wants = Wants("abce")
    trees = True

    def __post_init__(self) -> None:
        if not 0 < self.skip_ratio < 1:
            raise ForetokenError(
                f"skip_ratio is {self.skip_ratio}; it must be above 0 and below 1, as the target "
                "with all of its layers drafts no faster than it decodes."
            )
        if not 2 <= self.context_window <= _LONGEST_WINDOW:
            raise ForetokenError(
                f"context_window is {self.context_window}; it must be 2 to {_LONGEST_WINDOW}."
            )
        if min(self.num_speculative_tokens, self.opt_interval, self.bayes_interval) < 1:
            raise ForetokenError(
                "num_speculative_tokens, opt_interval and bayes_interval must be at least 1."
            )
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        check_range(
            0,
            1,
            assistant_confidence_threshold=self.assistant_confidence_threshold,
            max_score=self.max_score,
        )
        check_range(
            0, math.inf, max_opt_iter=self.max_opt_iter, max_tolerance_iter=self.max_tolerance_iter
        )

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens * _WIDEST

    def bind(self, access: Access) -> None:
        self._access = access
        self._steps, self._drafted = 0, False  # whether it has drafted since the last step
        self.shared: Search = Search(access, self)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        """Likelier siblings stand first, and the first one's children after them all."""
        lm, self._drafted = self._model(self.shared.best), True
        drafts = [SiblingChain(min(n, lm.room(s))) for s, n in zip(sequences, budgets, strict=True)]
        views = [ranking(sequence) for sequence in sequences]
        trunk: list[list[int]] = []  # the likeliest tokens [B] of each place so far
        best = None

        def contexts() -> list[list[list[int]]]:
            return [
                [[tokens[row] for tokens in trunk]] * draft.open for row, draft in enumerate(drafts)
            ]

        for _ in range(self.num_speculative_tokens):
            if not any(draft.open for draft in drafts):
                break
            logits = lm.root_logits(sequences) if best is None else lm.next_logits(sequences, best)
            folded = fold(logits, views, contexts, [int(draft.open) for draft in drafts])
            top = folded.probs[:, 0].topk(min(_WIDEST, logits.shape[-1]))
            best = top.indices[:, 0]
            trunk.append(best.tolist())
            shares = top.values.masked_fill(folded.bad, 0)  # no distribution, no token
            both = torch.stack((shares.double(), top.indices.double())).tolist()
            for draft, sequence, likely, ids in zip(drafts, sequences, *both, strict=True):
                if draft.open:
                    sure = likely[0] >= self.assistant_confidence_threshold
                    possible = sum(share > 0 for share in likely)
                    draft.grow(ids[: min(possible, _width(likely[0], sequence))], more=sure)
        return from_parents([d.tokens for d in drafts], [d.parents for d in drafts], lm.device)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Score a candidate on the texts that are long enough, after a step for which it drafted: a
        pass is too dear for a part that `auto` doesn't use."""
        if not steps or not steps[0].tokens or not self._drafted:
            return
        self._drafted = False
        self._steps += 1
        long = [s for s in sequences if len(s.output) > self.context_window]
        if not long or self._steps % self.opt_interval:
            return
        candidate = self.shared.candidate()
        if candidate is None:
            return
        logits = self._model(candidate).again(long, self.context_window)
        written = torch.tensor([s.tokens[-self.context_window :] for s in long])
        right = logits.argmax(-1) == written.to(logits.device)  # [B, T]
        self.shared.learn(candidate, float(right.double().mean()))

    def _model(self, left_out: Seq[int]) -> SelfModel:
        return SelfModel(self._access, layer_set.kept(left_out, self._access.layers))


def _width(confidence: float, sequence: Sequence) -> int:
    """Siblings at a place, the chain's own token among them."""
    _, greedy, sampled = next(row for row in _WIDTHS if confidence > row[0])
    return greedy if sequence.params.greedy else sampled


class Search:
    """Finds the best set of sub-layers to leave out; the same scores lead to the same sets."""

    def __init__(self, access: Access, settings: Swift) -> None:
        self._access, self._settings = access, settings
        self._optional = [
            s for layer in range(1, access.layers - 1) for s in (2 * layer, 2 * layer + 1)
        ]
        self._count = int(settings.skip_ratio * len(self._optional)) or min(1, len(self._optional))
        self._start = layer_set.every_second(access.layers)
        self.reset()

    def reset(self) -> None:
        """Begin the search again."""
        self.best, self.score = self._start, -1.0
        self.tried: list[tuple[tuple[int, ...], float]] = []
        self._idle = 0
        self._random = Random(0)

    def save(self, path: str | Path) -> None:
        """Write the best set, which `draft_verify` takes too."""
        layer_set.save(path, self.best, self._access)

    def load(self, path: str | Path) -> None:
        """Resume from a file's set. Raises `ForetokenError` for a damaged file or another model."""
        best = layer_set.load(path, self._access)
        self.reset()
        self.best = best

    def candidate(self) -> tuple[int, ...] | None:
        """The next set to score, or None where the search is over."""
        settings = self._settings
        if (
            self.score > settings.max_score
            or self._idle >= settings.max_tolerance_iter
            or len(self.tried) >= settings.max_opt_iter
            or not self._count
        ):
            return None
        if not self.tried:
            return self.best
        if len(self.tried) % settings.bayes_interval:
            return self._drawn()
        pool = [self._drawn() for _ in range(_POOL)]
        scores = np.array([score for _, score in self.tried])
        known = self._vectors([left_out for left_out, _ in self.tried])
        return pool[int(upper_bounds(known, scores, self._vectors(pool)).argmax())]

    def learn(self, left_out: tuple[int, ...], score: float) -> None:
        """Take the set's score into account."""
        self.tried.append((left_out, score))
        self._idle += 1
        if score > self.score:
            self.best, self.score, self._idle = left_out, score, 0

    def _drawn(self) -> tuple[int, ...]:
        return tuple(sorted(self._random.sample(self._optional, self._count)))

    def _vectors(self, sets: Seq[tuple[int, ...]]) -> NDArray[np.float64]:
        """[n, M] 1 where a sub-layer is left out."""
        return np.array([[float(s in each) for s in self._optional] for each in sets])


def upper_bounds(
    tried: NDArray[np.float64], scores: NDArray[np.float64], points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[C] mean + κ · deviation of a Gaussian process at points [C, M], given scores [n] at known
    [n, M].

    Matérn kernel, ν = 5/2, of length √M.
    """
    scale = float(scores.std()) or 1.0
    standardised = (scores - scores.mean()) / scale
    noise = _NOISE * np.eye(len(tried))
    across = _matern(points, tried)  # [C, n]
    solved = np.linalg.solve(
        _matern(tried, tried) + noise, np.column_stack((standardised, across.T))
    )
    variance = 1 - (across * solved[:, 1:].T).sum(1)
    upper = across @ solved[:, 0] + _KAPPA * np.sqrt(variance.clip(min=0))
    bounds: NDArray[np.float64] = scores.mean() + scale * upper
    return bounds


def _matern(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    # Of 0s and 1s the squared distance is how many differ: in the end of a search an array
    # [n, n, M] would take almost a gigabyte.
    apart = left.sum(1)[:, None] + right.sum(1) - 2 * left @ right.T
    far = np.sqrt(5 * apart / left.shape[1])
    kernel: NDArray[np.float64] = (1 + far + far**2 / 3) * np.exp(-far)
    return kernel
