"""Rollback by a run of mismatches: a few wrong tokens pass, too many in a row are rejected.

The draft is accepted up to the first run of `mismatches` consecutive tokens that differ from the
target's likeliest ones; the whole run is rolled back and the target's token stands at its start.
`mismatches` = 1 is greedy decoding. Source: Xia et al. 2024 (survey), section 6.1, which describes
the criterion of Big Little Decoder (Kim et al. 2023) in this way; the paper itself measures
cross-entropy (`rollback`).

Departures: the survey names no number and not where a draft is cut; here the default is 2 and the
cut is before the run. Runs are counted within a draft, so a shorter run at its end is kept.

Legend: B sequences, N chain nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import likeliest, verdict


@dataclass(frozen=True)
class RollbackRun(Verifier):
    """mismatches: how many consecutive ones are rejected."""

    mismatches: int = 2

    exact: ClassVar[bool] = False
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = False
    source: ClassVar[str] = "Xia et al. 2024 (survey), §6.1, of BiLD"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __post_init__(self) -> None:
        if self.mismatches < 1:
            raise ForetokenError(f"mismatches is {self.mismatches}; it must be at least 1.")

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        place = torch.arange(1, trees.nodes + 1, device=trees.tokens.device)
        right = likeliest(trees, scores) | ~trees.valid
        if trees.nodes == 0:
            return verdict(trees, scores, draws, right)
        run = place - torch.where(right, place, 0).cummax(1).values  # [B, N] mismatches up to here
        cut = torch.where(run >= self.mismatches, place - self.mismatches, trees.nodes).amin(1)
        return verdict(trees, scores, draws, place <= cut[:, None])
