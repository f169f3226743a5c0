"""Several drafters' drafts in one tree (|)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.drafters.either import Either
from foretoken.drafters.merged import Merged
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.models.target import ModelTarget
from foretoken.protocols import BaseDrafter
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.testing import (
    Drawn,
    Oracle,
    Pair,
    Scripted,
    check_distribution,
    check_greedy,
    logits_after,
    native,
    related,
    serve,
    table_pair,
)
from foretoken.testing.checks import greedy_reference
from foretoken.tree import DraftTree, Kind
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

CPU = torch.device("cpu")
WARM = SamplingParams(temperature=0.7)


def test_what_needs_its_own_nodes_is_not_merged(pair: Pair) -> None:
    """Hidden states and auxiliary nodes come back by place in the tree."""
    reader, prober = BaseDrafter(), BaseDrafter()
    reader.wants = Wants("c", (-1,))
    prober.kinds = frozenset({Kind.AUXILIARY, Kind.CHOSEN})
    for part in (reader, prober):
        with pytest.raises(ForetokenError, match="can't share a tree"):
            Merged([PromptLookup(), part])  # type: ignore[list-item]
        assert Either([PromptLookup(), part]).wants.levels in ("a", "ac")  # type: ignore[list-item]


class Stopping(SmallLM):
    """Ends its draft by what was drawn."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        return tree.trim([1 if tree.nodes and row[0] else 2 for row in tree.tokens.tolist()])


MAKERS: dict[str, tuple[Any, dict[str, int]]] = {
    "merged": (lambda p: Merged([PromptLookup(2), SmallLM(p.draft, 1)]), {"steps": 1}),
    "merged, without replacement": (
        lambda p: Merged([PromptLookup(1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 1},
    ),
    "merged, two that draw": (
        lambda p: Merged([SmallLM(p.draft, 1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 1},
    ),
    "merged and cut, without replacement": (
        lambda p: Merged([PromptLookup(1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 1, "budget": 2},
    ),
    "merged and cut after a drawn length": (
        lambda p: Merged([Stopping(p.draft, 2), SmallTree(p.draft, widths=(2,))]),
        {"steps": 1},
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_distribution(name: str) -> None:
    """Every outcome: putting drafts into one tree keeps the target's distribution."""
    make, size = MAKERS[name]
    drafter = make(table_pair(3))
    rule = MultiCandidate() if drafter.trees else Speculative()
    options = {"rows": 1, "budget": 3, **size}
    check_distribution(make, rule, table_pair(3), WARM, 3, prompt=[0, 1, 2, 0, 1], **options)


BIASED = (MultiCandidate(), table_pair(3), WARM, 3)
ONE_STEP: dict[str, Any] = {"rows": 1, "prompt": [0, 1, 2, 0, 1], "steps": 1, "budget": 3}
"""What `check_distribution` shows a bias by."""


class Sorted(Merged):
    """Not allowed: a draw without replacement after a copied sibling that it didn't leave out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.drafters, self._before = list(reversed(self.drafters)), 0


def test_draws_without_replacement_stand_first() -> None:
    """Whatever was named first; else the distribution is another."""
    parts = [PromptLookup(1), SmallTree("x", widths=(2,))]
    assert isinstance(Merged(parts).drafters[0], SmallTree)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="is off by"):
        check_distribution(
            lambda p: Sorted([PromptLookup(1), SmallTree(p.draft, widths=(2,))]),
            *BIASED,
            **ONE_STEP,
            tolerance=1e-3,
        )


class Counted(Merged):
    """Not allowed: how many siblings stand first follows from a draw that is judged after them."""

    def _left(self, trees: Any, budgets: Any) -> list[int]:
        return [room - count for room, count in zip(budgets, trees[1].counts, strict=True)]


def test_no_draw_leaves_out_what_is_judged_before_it() -> None:
    """Else the distribution is another; `test_distribution` has the same parts as they are."""
    with pytest.raises(AssertionError, match="is off by"):
        check_distribution(
            lambda p: Counted([Stopping(p.draft, 2), SmallTree(p.draft, widths=(2,))]),
            *BIASED,
            **ONE_STEP,
        )


@dataclass(eq=False)
class Greedy(Scripted):
    """Chosen at temperature 0, else drawn without replacement."""

    kinds = frozenset({Kind.WITHOUT_REPLACEMENT})


def test_the_nodes_of_the_parts_named_last_are_dropped_first() -> None:
    """Wherever they stand; of drawn ones the last drawn. Shared prefixes count once."""
    pair = table_pair(6)
    copy, last = Oracle({(0, 1): [1, 2, 3]}, 3), Oracle({(0, 1): [5, 5]}, 2)
    small = Drawn(pair.draft, (4, 1), Kind.WITHOUT_REPLACEMENT)
    best = Greedy(lambda *_: [[1, 2], [4, 4]])
    access, sequence = ModelTarget(pair.target, 1, 64), Sequence.start([0, 1], WARM, seed=3)

    def drafted(parts: list[Any], budget: int) -> list[tuple[int, ...]]:
        merged = Merged(parts)
        merged.bind(access)
        tree = merged.draft([sequence], [budget], draws_for([sequence], CPU))
        assert tree.counts[0] <= budget
        return [tuple(path) for path in tree.contexts()[0][1 : tree.counts[0] + 1]]

    copied, all_ = [(1,), (1, 2), (1, 2, 3)], drafted([small, copy, last], 99)
    drawn = all_[:8]
    assert all_[8:] == [*copied, (5,), (5, 5)]
    assert drafted([copy, small], 5) == [*drawn[:2], *copied]
    assert drafted([small, copy], 9) == [*drawn, *copied[:1]]
    assert drafted([copy, small], 3) == copied
    assert drafted([copy, small, last], 12) == [*drawn, *copied, (5,)]
    assert drafted([copy, small, last], 6) == [*drawn[:3], *copied]
    assert drafted([copy, best], 4) == [*copied, (4,)]
    assert drafted([best, copy], 4) == [(1,), (1, 2), (4,), (4, 4)]


def test_merged_greedy(pair: Pair) -> None:
    """A draft model's cache survives that another part's nodes were accepted."""
    prompts = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3]]
    params = SamplingParams(temperature=0, max_tokens=24)
    texts = [o.token_ids for o in serve(pair.target, PromptLookup(), TargetOnly(), prompts, params)]
    known = {tuple(p): t for p, t in zip(prompts, texts, strict=True)}
    [first, _] = check_greedy(
        lambda p: Merged([Oracle(known, 3, 2, cycle=True), SmallLM(p.draft, 5)]),
        MultiCandidate(),
        pair,
        slots=2,
        prompts=prompts,
        expected=texts,
    )
    assert first.stats.mean_acceptance_length > 3


def test_parts_draw_by_numbers_of_their_own() -> None:
    """Two parts that draw: enumeration, which keeps the keys of requests, finds no number twice."""
    make, size = MAKERS["merged, two that draw"]
    check_distribution(
        make, MultiCandidate(), table_pair(3), WARM, 3, rows=1, **{"budget": 3, **size}
    )


class Noting(SmallLM):
    """Notes what it drafts after which text."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        drafts = tree.tokens[0].tolist()[: tree.counts[0]]
        self.noted = [*getattr(self, "noted", []), (list(sequences[0].tokens), drafts)]
        return tree


def test_a_parts_cache_follows_the_text_and_not_the_trees_nodes(pair: Pair) -> None:
    """Also where another part's nodes were accepted, whose slots its own nodes have in its own
    tree, it drafts what it would after that text alone."""
    [prompt] = prompts = [[5, 9, 2, 5, 9, 2, 5]]
    text = greedy_reference(pair.target, prompt, 24)
    other = native(related(pair.transformers, 0.1, 9))
    small = Noting(other, 3)
    parts = Merged([Oracle({tuple(prompt): text}, 3), small])
    params = SamplingParams(temperature=0, max_tokens=24)
    serve(pair.target, parts, MultiCandidate(), prompts, params)
    assert any(draft[0] != text[len(seen) - len(prompt)] for seen, draft in small.noted[:-2])
    for seen, draft in small.noted:
        assert draft == greedy_reference(other, seen, len(draft))


class Foreseeing(BaseDrafter):
    """Chooses the next token by the noise with which the target will draw it."""

    coupled = True

    def __init__(self, pair: Pair) -> None:
        self._model = pair.target

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        logits = torch.stack([logits_after(self._model, s.tokens) for s in sequences])[:, None]
        probs = fold(logits, sequences, lambda: [[[]] for _ in sequences]).probs
        tokens = draws.pick(probs, torch.zeros(len(sequences), 1, dtype=torch.int64))
        return DraftTree(tokens, [min(1, budget) for budget in budgets])


def test_a_part_that_foresees_has_the_places_noise(pair: Pair) -> None:
    """Alone and beside another part it is always right."""
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    for drafter in (Foreseeing(pair), Merged([PromptLookup(1), Foreseeing(pair)])):
        [output] = serve(pair.target, drafter, TargetOnly(), [[5, 9, 2, 5, 9]], params)
        assert output.stats.passes == 10


def test_what_one_tree_of_several_drafts_needs(pair: Pair) -> None:
    """A target of trees, with room for all drafts, and a rule that takes chosen nodes."""
    merged = Merged([PromptLookup(2), SmallLM(pair.draft, 3)])
    assert merged.trees and "b" in merged.wants.levels and Kind.CHOSEN in merged.kinds
    merged.bind(ModelTarget(pair.target, 1, 32))
    assert merged.nodes == 5
