"""Trees drafted by small models: their shapes, merging, their distribution, and planning while
serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters.small_tree import SmallTree
from foretoken.draws import KeyedDraws
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.testing import (
    Pair,
    TableModel,
    check_distribution,
    chi_square,
    native,
    related,
    sampled_counts,
    serve,
    table_pair,
    target_distribution,
    tiny_transformers,
)
from foretoken.testing.checks import greedy_reference
from foretoken.tree import DraftTree, Kind
from foretoken.trees.grow import widths_of
from foretoken.trees.plan import SiblingCounts, best_tree
from foretoken.verify.k_seq import KSeq
from foretoken.verify.multi_candidate import MultiCandidate

PROMPT = [5, 9, 2, 5, 9, 2, 5]
WARM = SamplingParams(temperature=0.7)
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def drafted(pair: Pair, drafter: Drafter, params: SamplingParams, budget: int = 64) -> DraftTree:
    """The first draft after the prompt."""
    target = ModelTarget(pair.target, 1, 128)
    drafter.bind(target)
    sequence = Sequence.start(PROMPT, params, seed=3)
    drafter.begin(sequence)
    with torch.inference_mode():
        return drafter.draft([sequence], [budget], draws_for([sequence], target.device))


def levels(tree: DraftTree) -> list[int]:
    """Nodes at each depth."""
    depths = tree.depths[0, 1:][tree.valid[0]]
    return torch.bincount(depths)[1:].tolist()


SHAPES = {
    "specinfer": ([1, 1, 3, 3, 3, 3, 3, 3], Kind.INDEPENDENT),
    "spectr": ([8] * 8, Kind.INDEPENDENT),
    "mcsd": ([4, 8, 16], Kind.WITHOUT_REPLACEMENT),
    "sequoia": (None, Kind.WITHOUT_REPLACEMENT),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_the_papers(pair: Pair, name: str) -> None:
    """Each row's tree, drawn and greedy; siblings differ where they must."""
    expected, kind = SHAPES[name]
    for params in (WARM, GREEDY):
        tree = drafted(pair, build({"method": name, "model": pair.draft}).drafter, params)
        made = Kind.CHOSEN if params.greedy else kind
        kinds = torch.full((tree.nodes,), int(tree.kind)) if tree.kinds is None else tree.kinds[0]
        assert kinds.tolist() == [made] * tree.nodes
        assert levels(tree) == expected or (expected is None and sum(levels(tree)) == 64)
        paths = {tuple(path) for path in tree.contexts()[0]}
        assert len(paths) == tree.nodes + 1 or made == Kind.INDEPENDENT


def test_a_planned_tree_has_the_planners_shape(pair: Pair) -> None:
    """The widths are those of the best tree for the rates."""
    drafter = SmallTree(pair.draft, acceptance=(0.5, 0.3), tree_nodes=9, tree_depth=3)
    assert drafter._widths == widths_of(best_tree((0.5, 0.3), 9, 3).paths)
    assert drafted(pair, drafter, WARM).nodes == 9


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"method": "sequoia", "widths": [2, 2]}, [2, 4]),
        ({"method": "mcsd", "acceptance": [1.0], "tree_nodes": 3}, [1, 1, 1]),
        ({"method": "specinfer", "acceptance": [1.0], "tree_depth": 2}, [1, 1]),
        ({"method": "sequoia", "num_speculative_tokens": 2, "acceptance": [1.0]}, [1, 1]),
        ({"method": "mcsd", "num_speculative_tokens": 2}, [4, 8]),
    ],
)
def test_what_is_given_shapes_the_tree(
    pair: Pair, config: dict[str, Any], expected: list[int]
) -> None:
    """Whatever the row sets otherwise."""
    built = build({**config, "model": pair.draft})
    for params in (WARM, GREEDY):
        assert levels(drafted(pair, built.drafter, params)) == expected


def test_parameters_are_made_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each draft, since making them checks all that a request brought along."""
    made, check = [], SamplingParams.__post_init__
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    monkeypatch.setattr(SamplingParams, "__post_init__", lambda own: (made.append(1), check(own)))
    drafter = SmallTree(pair.draft, widths=(2,))
    [output] = serve(pair.target, drafter, MultiCandidate(), [PROMPT], params)
    assert output.stats.passes > 8 and len(made) == 1


def test_several_models_share_a_tree(pair: Pair) -> None:
    """Chosen nodes are merged where they share a prefix; every drawn one stays, in draw order."""
    other = native(related(pair.transformers, 0.1, 9))
    alone = [drafted(pair, SmallTree(m, widths=(2, 1)), GREEDY) for m in (pair.draft, other)]
    both = SmallTree(models=[pair.draft, other], widths=(2, 1), replacement=True)
    merged = drafted(pair, both, GREEDY)
    paths = [{tuple(path) for path in tree.contexts()[0]} for tree in (*alone, merged)]
    assert paths[2] == paths[0] | paths[1] and merged.nodes == len(paths[2]) - 1
    twice = SmallTree(models=[pair.target, pair.target], widths=(3,), replacement=True)
    cold = drafted(pair, twice, SamplingParams(temperature=0.05))
    assert levels(cold) == [6] and len(set(cold.tokens[0].tolist())) < 6


@pytest.mark.parametrize("shape", ["spectr", "two models", "learned"])
def test_distribution(shape: str) -> None:
    """Every outcome of branches under K-SEQ, of two models, and of trees that follow the past."""
    small = table_pair(2 if shape == "learned" else 3)
    other = small.target.noisy(0.4, 3)  # type: ignore[attr-defined]
    make, rule, size = {
        "spectr": (
            lambda p: SmallTree(p.draft, widths=(2, 1), replacement=True),
            KSeq(),
            {"steps": 1, "budget": 4},
        ),
        "two models": (
            lambda p: SmallTree(models=[p.draft, other], widths=(1, 1), replacement=True),
            MultiCandidate(),
            {"steps": 1, "budget": 4},
        ),
        "learned": (
            lambda p: SmallTree(
                p.draft, acceptance=(0.5, 0.45), tree_nodes=2, tree_depth=2, learn_every=1
            ),
            MultiCandidate(),
            {"rows": 1, "steps": 2, "budget": 2},
        ),
    }[shape]
    check_distribution(make, rule, small, WARM, 3, **{"rows": 256, **size})  # type: ignore[arg-type]


def seeds_p() -> float:
    """How likely the distribution over seeds of two models' trees is under the target's."""
    target = TableModel.markov(torch.tensor([[0.4, 0.5, 0.1]] * 3))
    even = TableModel.markov(torch.full((3, 3), 1 / 3))
    counts = sampled_counts(
        target,
        lambda: SmallTree(models=[even, even], widths=(1,), replacement=True),
        MultiCandidate(),
        [0],
        SamplingParams(),
        2,
        3000,
        budget=2,
    )
    return chi_square(counts, target_distribution(target, [0], SamplingParams(), 2))


def test_models_draw_by_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many seeds the distribution is the target's, and isn't if two models share their
    numbers."""
    assert seeds_p() > 1e-3
    monkeypatch.setattr(KeyedDraws, "inner", lambda self, part, starts=None: self)
    assert seeds_p() < 1e-6


def test_rates_are_counted_by_rank() -> None:
    """Children of every accepted node are offered, the accepted one counts for its rank."""
    counts = SiblingCounts([0.5, 0.25], weight=4)
    assert counts.rates() == [0.5, 0.25]
    counts.add([0, 0, 2, 2, -1, 2], [2, 3])  # the root's second child, then its first
    assert counts.rates() == [(2 + 1) / 6, (1 + 1) / 6]
    counts.add([0], [])
    assert counts.rates() == [3 / 7, 2 / 6]


def test_learning_moves_the_tree(pair: Pair, tmp_path: Path) -> None:
    """Where every first child is accepted the tree becomes a chain; counts are saved and loaded."""
    options: dict[str, Any] = dict(
        acceptance=(0.3, 0.3, 0.3), tree_nodes=6, tree_depth=6, learn_every=1
    )
    drafter = SmallTree(pair.target, **options)
    wide = drafter._widths
    for _ in range(6):
        serve(pair.target, drafter, MultiCandidate(), [PROMPT], GREEDY)
    assert drafter._widths == [[1]] * 6 != wide
    assert drafter.shared is not None
    drafter.shared.save(tmp_path / "counts")
    new = SmallTree(pair.target, **options)
    assert new.shared is not None
    new.shared.load(tmp_path / "counts")
    assert levels(drafted(pair, new, GREEDY)) == [1] * 6
    new.shared.reset()
    assert drafted(pair, new, GREEDY).nodes == 6 and new._widths == wide


def test_loaded_counts_shape_the_next_draft(pair: Pair, tmp_path: Path) -> None:
    """At once, in a drafter that has drafted by other ones."""
    counts = SiblingCounts((0.3, 0.3, 0.3))
    for _ in range(200):
        counts.add([0, 0, 0], [1])
    counts.save(tmp_path / "counts")
    rates = (0.3, 0.3, 0.3)
    drafter = SmallTree(pair.target, acceptance=rates, tree_nodes=6, tree_depth=6, learn_every=999)
    before = levels(drafted(pair, drafter, GREEDY))
    assert drafter.shared is not None
    drafter.shared.load(tmp_path / "counts")
    assert levels(drafted(pair, drafter, GREEDY)) == [1] * 6 != before


def test_wrong_counts_are_refused(tmp_path: Path) -> None:
    """A missing, damaged or foreign file: one sentence, and the counts stay."""
    path, counts = tmp_path / "counts", SiblingCounts([0.5])
    with pytest.raises(ForetokenError, match="can't be read"):
        counts.load(path)
    path.write_text("{}")
    with pytest.raises(ForetokenError, match="damaged or not a count of accepted siblings"):
        counts.load(path)
    SiblingCounts([0.4, 0.2]).save(path)
    with pytest.raises(ForetokenError, match="sibling ranks 2"):
        counts.load(path)
    assert counts.rates() == [0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name one as model"),
        ({"model": "a", "models": ["b"]}, "name one as model"),
        ({"models": ["a", "b"]}, "replacement to true"),
        ({"model": "a", "widths": ()}, "widths is empty"),
        ({"model": "a", "learn_every": 3}, "needs acceptance"),
        ({"model": "a", "acceptance": (0.9, 0.9)}, "at most 1 together"),
        ({"model": "a", "acceptance": (-0.5,)}, "acceptance is -0.5"),
        ({"model": "a", "widths": (100, 100)}, "nodes_of_widths is 10100"),
        ({"model": "a", "acceptance": (0.5,), "widths": (2,)}, "give one of them"),
        ({"model": "a", "tree_depth": 2}, "tree_depth is 2 and needs acceptance"),
        (
            {"model": "a", "acceptance": (0.5,), "tree_depth": 2, "num_speculative_tokens": 3},
            "both are the tree's levels",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError, match=message):
        SmallTree(**options)


def test_no_draft_passes_the_drafters_context(pair: Pair) -> None:
    """A small model with a shorter context drafts as far as that reaches, and then no more."""
    small = native(related(tiny_transformers(max_length=12), 0.02))
    drafter = SmallTree(small, widths=(1,) * 6)
    assert [drafted(pair, drafter, GREEDY, n).nodes for n in (4, 6)] == [4, 6]
    params = SamplingParams(temperature=0, max_tokens=20)
    [output] = serve(
        pair.target, SmallTree(small, widths=(1,) * 6), MultiCandidate(), [PROMPT], params
    )
    assert output.token_ids == greedy_reference(pair.target, PROMPT, 20)
    first = drafted(pair, SmallTree(small, widths=(1,) * 20), GREEDY)
    assert first.nodes == 13 - len(PROMPT)


def test_what_was_drafted_to_measure_does_not_count(pair: Pair) -> None:
    """For the tree of sampled texts, as for the planned one."""
    drafter: Any = SmallTree(pair.draft, acceptance=(0.5,), tree="auto", learn_every=1)

    def measure(parts: Any) -> CostModel:
        drafter._counts.add([0], [])
        costs = dict.fromkeys(parts, DraftCost(level=0.1))
        return CostModel({1: 1.0, 64: 2.0}, costs, fixed=True)

    drafter.price(measure)
    assert drafter._counts.rates() == [0.5]


def test_a_tree_is_planned_again_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first, and after so many drafts."""
    drafter: Any = SmallTree("a", acceptance=(0.3,), learn_every=3)
    planned: list[Any] = []
    monkeypatch.setattr(drafter, "_plan", planned.append)
    for _ in range(7):
        drafter._replan(drafter._counts)
        drafter._counts.add([0], [1])
    assert len(planned) == 3


def test_as_many_nodes_are_declared_as_may_be_drafted(pair: Pair) -> None:
    """Of all models, and of a tree that may be planned again."""
    both, learned = [pair.draft, pair.target], {"acceptance": (1.0,), "learn_every": 1}
    options: list[tuple[dict[str, Any], int]] = [
        ({"model": pair.draft, "widths": (4, 2, 2)}, 4 + 8 + 16),
        ({"models": both, "widths": (2, 1), "replacement": True}, 8),
        ({"model": pair.draft, "tree_nodes": 9, "tree_depth": 2, **learned}, 9),
    ]
    for given, nodes in options:
        drafter = SmallTree(**given)
        drafter.bind(ModelTarget(pair.target, 1, 64))
        assert drafter.nodes == nodes


def test_all_that_was_counted_is_forgotten() -> None:
    """For sampled texts' tree and for the planned one."""
    drafter: Any = SmallTree("a", acceptance=(0.5,), tree="auto", learn_every=1)
    counts = drafter._counts, drafter._planner._counts
    for each in counts:
        each.add([0], [1])
    drafter.shared.reset()
    assert [each.steps for each in counts] == [0, 0]
