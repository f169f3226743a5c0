"""The drafts of several drafters in one tree: `a|b`.

Chosen drafts are merged where they share a prefix; drawn ones stand next to the others, each with
its distribution and its own random numbers. Source: Miao et al. 2024
(SpecInfer), section 3.1 (merge-based trees). Where the tree is cut to a budget, the nodes of
the parts named last are dropped first.

Parts are told what was written and not which nodes were accepted. So a part's length rule does not
adapt, and a drafter that reads its nodes' states or auxiliary nodes' scores can't be a part.

Legend: B sequences, N tree nodes.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from foretoken.access import Wants
from foretoken.drafters.shared.wrapper import Wrapper
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind
from foretoken.trees.join import join


@dataclass(eq=False)
class Merged(Wrapper):
    """drafters: the parts; of a tree that must be cut, the first ones' nodes are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in self.drafters:
            if part.wants.hidden or Kind.AUXILIARY in part.kinds:
                raise ForetokenError(
                    f"{type(part).__name__} reads states or scores of its nodes and can't share a "
                    "tree; choose between drafts with '+' instead of '|'."
                )
        thinned = [Kind.WITHOUT_REPLACEMENT in part.kinds for part in self.drafters]
        if sum(thinned) > 1:
            raise ForetokenError(
                "Only one of the parts may draw without replacement, since each would have to "
                "leave out the others' tokens; give the others replacement=true."
            )
        self._before = thinned.index(True) if any(thinned) else 0  # parts named before that one
        # Such a draw is assumed to have left out all siblings before it, so it stands first.
        self.drafters = sorted(
            self.drafters, key=lambda part: Kind.WITHOUT_REPLACEMENT not in part.kinds
        )
        self.wants = Wants("".join(sorted({*self.wants.levels, "b"})))
        self.kinds = self.kinds | {
            Kind.CHOSEN
        }  # no rule may take siblings for draws from one distribution
        self.trees = True

    @property
    def nodes(self) -> int:
        """All parts' drafts together."""
        return sum(part.nodes for part in self.drafters)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        trees = []
        for number, part in enumerate(self.drafters):
            # A part may choose by the noise of the places themselves (`coupled`).
            own = draws if part.kinds == {Kind.CHOSEN} else draws.inner(number)
            trees.append(part.draft(sequences, budgets, own).trim(budgets))
        before = self._before
        if trees[0].proposals is None:  # nothing was drawn without replacement: the named order
            trees = [*trees[1 : before + 1], trees[0], *trees[before + 1 :]]
        else:
            trees[0] = trees[0].trim(self._left(trees, budgets))
        return join(trees).trim(budgets)

    def _left(self, trees: Seq[DraftTree], budgets: Seq[int]) -> list[int]:
        """What the parts named before the first one leave of the budgets.

        Of a drawn draft its most nodes count. How many there are may follow from what was drawn,
        and by this nothing may be left out that is judged before it: its tokens would no longer be
        draws from their distribution.
        """
        left, end = list(budgets), self._before + 1
        for part, tree in zip(self.drafters[1:end], trees[1:end], strict=True):
            counts = tree.counts if tree.proposals is None else [part.nodes] * tree.batch
            left = [room - count for room, count in zip(left, counts, strict=True)]
        return left

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        anonymous = [replace(step, path=[], drafted=0) for step in steps]
        for part in self.drafters:
            part.observe(sequences, anonymous)
