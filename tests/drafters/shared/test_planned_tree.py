"""Trees planned while serving: for costs, rates and the number of sequences, and for every drafter
of chosen trees; no text depends on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters.eagle2 import Eagle2
from foretoken.drafters.eagle3 import Eagle3, Eagle3Module
from foretoken.drafters.hydra import Hydra, HydraHeads
from foretoken.drafters.lookahead import Lookahead, Sizes
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.shared import planned_tree
from foretoken.drafters.shared.planned_tree import (
    RATES,
    TreePlanner,
    by_level,
    parents_of,
    whole,
)
from foretoken.drafters.small_tree import SmallTree
from foretoken.drafters.token_recycling import TokenRecycling
from foretoken.draws import GreedyDraws
from foretoken.engine import clock, costs
from foretoken.engine.engine import Engine
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Verifier
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, serve
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.feature_layer import FeatureModel
from foretoken.tree import DraftTree, Kind
from foretoken.trees.from_lists import from_parents
from foretoken.trees.plan import Paths, TreePlan
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.target_only import TargetOnly
from lessons import randomised, seeded

FLAT, STEEP = {1: 10.0, 64: 10.001}, {1: 10.0, 64: 100.0}
LEVEL = {1: 10.0, 16: 10.001, 32: 40.0}  # up to 16 tokens, and steep beyond
FREE = DraftCost(call=0.001)
PROMPTS = [[5, 9, 2, 40, 3, 17, 60], [5, 9, 2, 5, 9, 2, 5]]
GREEDY = SamplingParams(temperature=0, max_tokens=40)
Measure = Callable[[Mapping[str, Drafter]], CostModel]


def costing(passes: dict[int, float], draft: DraftCost = FREE) -> Measure:
    """Stands for the engine's measurement."""
    return lambda parts: CostModel(passes, dict.fromkeys(parts, draft), fixed=True)


def planner(
    passes: dict[int, float],
    rates: tuple[float, ...] = RATES,
    draft: DraftCost = FREE,
    nodes: int = 60,
) -> TreePlanner[TreePlan]:
    made = TreePlanner(rates, nodes, 6, lambda plan: plan)
    made.price(costing(passes, draft), Nothing(), whole)
    return made


NONE = TreePlan([], 1.0)


def paths(made: TreePlanner[TreePlan], sequences: int = 1) -> Paths:
    return made.tree(sequences, NONE).paths


def settled(made: TreePlanner[TreePlan], sequences: int = 1) -> Paths:
    """What is drafted after the trial of drafting at all, which teaches nothing here."""
    return [paths(made, sequences) for _ in range(9)][-1]


def drafted(parents: list[int], path: list[int]) -> Any:
    """A step in which a tree was drafted and these slots accepted."""
    tree = from_parents([[0] * len(parents)], [parents], torch.device("cpu"))
    return SimpleNamespace(tree=tree, row=0, path=path, drafted=len(parents))


def test_the_cost_curve_decides() -> None:
    """Flat: the paper's size; steep: small; a dear level: shallow; no costs: the paper's."""
    flat, steep = paths(planner(FLAT)), paths(planner(STEEP))
    assert len(flat) == 60 and max(map(len, flat)) == 6
    assert 0 < len(steep) < 6
    shallow = paths(planner(FLAT, draft=by_level(2)(DraftCost(call=8.0))))
    assert 0 < max(map(len, shallow)) < 4 < len(shallow)
    assert settled(planner(STEEP, draft=DraftCost(call=20.0))) == []
    unpriced = TreePlanner(RATES, 60, 6, lambda plan: plan)
    assert unpriced.tree(1, NONE) is NONE


def test_more_sequences_get_smaller_trees() -> None:
    """A pass has all sequences' nodes; each number has its own plan, made once."""
    made = planner(LEVEL)
    sizes = [len(paths(made, sequences)) for sequences in (1, 2, 4, 1)]
    assert sizes[0] == 15 and sizes[1] == 7 and sizes[2] == 3 and sizes[3] == 15
    assert made.tree(2, NONE) is made.tree(2, NONE)


def test_a_draft_s_call_is_each_sequences() -> None:
    """What a draft costs a sequence counts for all of them."""
    made = planner({1: 10.0, 64: 10.001}, draft=DraftCost(call=4.0))
    assert settled(made, 1) and not settled(made, 8)


def test_the_plan_follows_what_is_accepted() -> None:
    """First children accepted: a chain; nothing accepted: plain decoding, until it is tried again;
    a reset forgets it."""
    made = planner(STEEP)
    first = paths(made)
    for _ in range(300):
        tree = paths(made)
        made.observe([drafted([0, 0, 1], [1, 3])])
    assert len(tree) > len(first) and {rank for path in tree for rank in path} == {0}
    made.reset()
    assert paths(made) == first
    sizes = []
    for _ in range(6000):
        sizes.append(len(paths(made)))
        if sizes[-1]:
            made.observe([drafted([0], [])])
    assert sizes[0] and not sizes[120]
    tried = sum(map(bool, sizes[1000:]))
    assert 0 < tried < 0.1 * len(sizes[1000:])


def test_what_seems_not_to_pay_is_tried() -> None:
    """A few steps of one node: a drafter that is better than is assumed comes to draft, another
    one to rest."""
    for right in (True, False):
        made, sizes = planner(FLAT, (0.6,), DraftCost(level=8.0)), []
        for _ in range(2000):
            sizes.append(len(paths(made)))
            made.observe([drafted([0], [1] if right else [])] if sizes[-1] else [])
        assert sizes[:9] == [1] * 8 + [0]
        assert min(sizes[100:]) > 1 if right else 0 < sum(sizes[100:]) < 50


def test_nothing_but_auxiliary_nodes_is_a_rejection() -> None:
    """Of a window without n-grams nothing can be accepted, and it is paid for."""
    made = planner(STEEP)
    step = drafted([0, 1], [])
    step.tree.kind = Kind.AUXILIARY
    for _ in range(300):
        tree = paths(made)
        made.observe([step])
    assert tree == []


@pytest.mark.parametrize("curve", [STEEP, FLAT], ids=["steep", "flat"])
def test_thinking_is_rare(curve: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are made a few times in a thousand steps, however the number of sequences changes."""
    tables = 0
    table = planned_tree.TreeTable

    def counted(*given: Any) -> Any:
        nonlocal tables
        tables += 1
        return table(*given)

    monkeypatch.setattr(planned_tree, "TreeTable", counted)
    made = planner(curve)
    for step in range(1000):
        made.tree(1 + step % 8, NONE)
        made.observe([drafted([0, 0], [1] * (step % 2))])
    assert 4 < tables < 14


def test_counts_are_kept_and_damage_is_refused(tmp_path: Path) -> None:
    """What was counted comes back, and plans with it."""
    made, other = planner(STEEP), planner(STEEP)
    for _ in range(100):
        paths(made)
        made.observe([drafted([0, 1], [1, 2])])
    made.save(tmp_path / "counts")
    other.load(tmp_path / "counts")
    assert len(paths(other)) > len(paths(planner(STEEP)))
    with pytest.raises(ForetokenError, match="sibling ranks"):
        planner(STEEP, (0.5,)).load(tmp_path / "counts")


def test_a_huge_tree_is_the_papers(caplog: pytest.LogCaptureFixture) -> None:
    """And the log says so."""
    with caplog.at_level(logging.WARNING):
        made = planner(STEEP, nodes=129)
    assert made.tree(1, NONE) is NONE
    assert planner(STEEP, nodes=128).tree(1, NONE) is not NONE
    assert "more than 128 nodes are not planned: Nothing drafts its 129 nodes" in caplog.text


def heads(cls: Any, pair: Pair) -> Any:
    return randomised(cls(Facts.of(pair.target), own_lm_heads=False), scale=0.03)


MAKE: dict[str, tuple[Callable[..., Any], int, Verifier]] = {
    "token_recycling": (lambda pair, tree: TokenRecycling(tree=tree), 80, TargetOnly()),
    "medusa": (lambda pair, tree: Medusa(heads(MedusaHeads, pair), tree=tree), 63, TargetOnly()),
    "hydra": (lambda pair, tree: Hydra(heads(HydraHeads, pair), tree=tree), 63, TargetOnly()),
    "eagle2": (lambda pair, tree: Eagle2(seeded(EagleModule, pair), tree=tree), 59, TargetOnly()),
    "eagle3": (lambda pair, tree: Eagle3(seeded(Eagle3Module, pair), tree=tree), 59, TargetOnly()),
    "lookahead": (lambda pair, tree: Lookahead(tree=tree), 56, TargetOnly()),
    "sequoia": (
        lambda pair, tree: SmallTree(pair.draft, acceptance=RATES, tree=tree),
        64,
        MultiCandidate(),
    ),
}


def served(
    pair: Pair, name: str, tree: str, measure: Measure, params: SamplingParams
) -> tuple[list[list[int]], int]:
    """The texts of two sequences, and the most nodes that were drafted for one."""
    make, _, rule = MAKE[name]
    engine = Engine(ModelTarget(pair.target, 2, 160), make(pair, tree), rule)
    engine.drafter.price(measure)
    score, most = engine.target.score, 0

    def recorded(sequences: Any, trees: DraftTree) -> Any:
        nonlocal most
        most = max(most, *trees.counts)
        return score(sequences, trees)

    engine.target.score = recorded  # type: ignore[method-assign]
    engine.reset_stats()
    requests = [engine.add(prompt, params) for prompt in PROMPTS]
    while engine.busy:
        engine.step()
    assert measure is never or engine.drafter._planner._counts.steps  # type: ignore[attr-defined]
    return [request.snapshot().token_ids for request in requests], most


def never(parts: Mapping[str, Drafter]) -> CostModel:
    raise AssertionError("measured")


@pytest.mark.parametrize("name", MAKE)
def test_every_drafter_asks_for_its_tree(pair: Pair, name: str) -> None:
    """A steep curve: few nodes; a flat one: many; "paper": all, and nothing is measured. Greedy
    texts are plain decoding's."""
    nodes = MAKE[name][1]
    plain = serve(pair.target, Nothing(), TargetOnly(), PROMPTS, GREEDY)
    sizes = []
    for tree, measure in (("auto", costing(STEEP)), ("auto", costing(FLAT)), ("paper", never)):
        written, most = served(pair, name, tree, measure, GREEDY)
        assert written == [output.token_ids for output in plain]
        sizes.append(most)
    steep, flat, paper = sizes
    assert steep < 8 < flat <= nodes
    assert 30 < paper <= nodes


@pytest.mark.parametrize("name", ["medusa", "eagle2", "lookahead", "token_recycling"])
def test_chosen_samples_do_not_depend_on_the_tree(pair: Pair, name: str) -> None:
    """At a seed they are plain decoding's."""
    warm = SamplingParams(temperature=1.0, seed=3, max_tokens=30)
    plain = serve(pair.target, Nothing(), TargetOnly(), PROMPTS, warm)
    written, most = served(pair, name, "auto", costing(STEEP), warm)
    assert written == [output.token_ids for output in plain] and most < 8


def test_drawn_trees_keep_their_shape(pair: Pair) -> None:
    """Above temperature 0 sequoia drafts the paper's tree, so a seed's text is the same on every
    machine."""
    warm = SamplingParams(temperature=1.0, seed=3, max_tokens=30)
    steep, flat, paper = (
        served(pair, "sequoia", tree, measure, warm)
        for tree, measure in (("auto", costing(STEEP)), ("auto", costing(FLAT)), ("paper", never))
    )
    assert steep == flat == paper and steep[1] > 20


def test_lookahead_plans_its_sizes() -> None:
    """A flat curve: the paper's; where the n-grams' nodes fit into what is free and the window's no
    longer do: half as many; steep: nothing."""
    for passes, expected in (
        ({1: 10.0, 64: 10.001}, Sizes(7, 5, 7)),
        ({1: 10.0, 29: 10.001, 57: 40.0}, Sizes(4, 5, 4)),
        ({1: 1.0, 64: 100.0}, Sizes(0, 1, 0)),
    ):
        drafter = Lookahead()
        drafter.price(costing(passes))
        assert [drafter._planner.tree(1, drafter._paper) for _ in range(9)][-1] == expected
    narrow = Lookahead(window=2)
    narrow.price(costing({1: 10.0, 64: 10.001}))
    assert narrow._planner.tree(1, narrow._paper) == Sizes(2, 5, 7)
    few = Lookahead(guesses=1)  # of which a second one is never planned, instead of a longer one
    few.price(costing({1: 10.0, 64: 10.001}))
    assert few._planner.tree(1, few._paper) == Sizes(1, 5, 1)


def test_a_window_keeps_its_size_for_a_while(pair: Pair) -> None:
    """A sequence that joins doesn't make the others' windows begin again at once."""
    drafter = Lookahead()
    drafter.bind(ModelTarget(pair.target, 2, 160))
    drafter.price(costing({1: 10.0, 57: 10.001, 114: 40.0}))
    rows = [Sequence.start(prompt, GREEDY) for prompt in PROMPTS]
    sizes = []
    for count in (1, *[2] * 40):
        drafter.draft(rows[:count], [99] * count, GreedyDraws())
        sizes.append(drafter._state(rows[0]).sizes)
    assert sizes[0] == sizes[31] == Sizes(7, 5, 7) != sizes[32] == sizes[40]


def test_the_engine_measures(pair: Pair, tmp_path: Path, monkeypatch: Any) -> None:
    """Costs come from the engine, and what measuring taught is forgotten."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    drafter: Any = TokenRecycling()
    Engine(ModelTarget(pair.target, 2, 160), drafter, TargetOnly())
    assert (drafter._matrix.rows == -1).all()
    assert drafter._planner._costs is not None and drafter._planner._counts.steps == 0


@pytest.mark.parametrize("depth", [3, 6])
def test_a_level_of_a_beam_costs_a_pass(
    depth: int, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the engine's own timed drafts, of one node and of four, however deep their trees are."""
    passes, run = 0, FeatureModel.level

    def level(self: FeatureModel, sequences: Any, frontier: Any) -> Any:
        nonlocal passes
        passes += 1
        return run(self, sequences, frontier)

    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(FeatureModel, "level", level)
    monkeypatch.setattr(clock, "perf_counter", lambda: passes / 1000)  # a pass takes 1 ms
    drafter = Eagle2(seeded(EagleModule, pair), depth=depth)
    Engine(ModelTarget(pair.target, 2, 160), drafter, TargetOnly())
    assert drafter._planner._draft.level == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenRecycling(tree="oak"), "tree is 'oak'; it must be 'auto'"),
        (lambda: SmallTree("a", tree="auto"), "from acceptance"),
        (
            lambda: SmallTree(models=["a", "b"], replacement=True, acceptance=(0.5,), tree="auto"),
            "one model's tree",
        ),
        (lambda: Eagle2(tree="oak"), "tree is 'oak'"),
        (lambda: Lookahead(tree="oak"), "tree is 'oak'"),
    ],
)
def test_wrong_options(make: Callable[[], Drafter], message: str) -> None:
    """One sentence."""
    with pytest.raises(ForetokenError, match=message):
        make()


def test_loaded_counts_plan_at_once(tmp_path: Path) -> None:
    """Whatever was planned by others before."""
    made, other = planner(STEEP), planner(STEEP)
    for _ in range(100):
        made.observe([drafted([0, 1], [1, 2])])
    made.save(tmp_path / "counts")
    before = paths(other)
    other.load(tmp_path / "counts")
    assert len(paths(other)) > len(before)


def test_what_was_drafted_to_measure_does_not_count() -> None:
    """Nor where costs were known before, as for another engine."""
    made = planner(STEEP)

    def measure(parts: Mapping[str, Drafter]) -> CostModel:
        for _ in range(300):
            made.observe([drafted([0], [])])
        return costing(STEEP)(parts)

    made.price(measure, Nothing(), whole)
    assert paths(made) == paths(planner(STEEP)) != []


def test_what_was_accepted_long_ago_is_forgotten() -> None:
    """Most drafts of all were right, and none of the later ones."""
    made = planner(STEEP)
    for step in range(5600):
        paths(made)
        made.observe([drafted([0, 1], [1, 2] if step < 3000 else [])])
    assert paths(made) == []


def test_recycling_forgets_what_its_tree_counted(pair: Pair) -> None:
    """Together with its matrix."""
    drafter: Any = TokenRecycling()
    drafter.bind(ModelTarget(pair.target, 1, 64))
    drafter.price(costing(STEEP))
    drafter._planner.observe([drafted([0, 1], [1, 2])])
    assert drafter._planner._counts.steps == 1
    drafter.shared.reset()
    assert drafter._planner._counts.steps == 0


def test_a_rows_tree_is_its_own() -> None:
    """Of a batch's trees."""
    tree = from_parents([[0, 0, 0], [0, 0]], [[0, 1, 2], [0, 0]], torch.device("cpu"))
    steps: list[Any] = [SimpleNamespace(tree=tree, row=row) for row in (0, 1)]
    assert [parents_of(step) for step in steps] == [[0, 1, 2], [0, 0, -1]]
