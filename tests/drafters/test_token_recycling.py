"""Token Recycling: what the matrix learns, what is drafted from it, and its file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.token_recycling import Matrix, TokenRecycling, template, template_of
from foretoken.engine.engine import Engine
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.testing.checks import PROMPTS
from foretoken.tree import DraftTree, Kind
from foretoken.trees.from_lists import from_parents
from foretoken.verify.target_only import TargetOnly

VOCAB = 6
CPU = torch.device("cpu")


def bound(**options: Any) -> TokenRecycling:
    drafter = TokenRecycling(**options, tree="paper")
    drafter.bind(SimpleNamespace(device=CPU, vocab_size=VOCAB))
    return drafter


def sequence(*tokens: int) -> Sequence:
    return Sequence.start(tokens, SamplingParams())


def logits(rows: list[list[list[int]]]) -> torch.Tensor:
    """[B, S, V] whose largest are the tokens given for each slot, in that order."""
    made = torch.zeros(len(rows), len(rows[0]), VOCAB)
    for b, row in enumerate(rows):
        for s, best in enumerate(row):
            made[b, s, best] = torch.arange(len(best), 0, -1.0)
    return made


def step(tree: DraftTree, predicted: torch.Tensor, row: int, path: list[int], extra: int) -> Step:
    tokens = [*(int(tree.tokens[row, slot - 1]) for slot in path), extra]
    scores = Scores(predicted, predicted, torch.zeros(predicted.shape[:2], dtype=torch.bool))
    return Step(tokens, path, tree.counts[row], row, tree, scores)


def test_levels_have_the_papers_sizes() -> None:
    """80 nodes in six levels; every node's parent is on the level before; no place twice."""
    levels = template((8, 21, 25, 15, 8, 3), 8)
    assert [len(level) for level in levels] == [8, 21, 25, 15, 8, 3]
    assert levels[0] == [(0, rank) for rank in range(8)]
    assert levels[1][:3] == [(1, 0), (1, 1), (2, 0)]  # products of ranks 1, 2, 2
    first = 1
    for above, level in pairwise(levels):
        assert {slot for slot, _ in level} <= set(range(first, first + len(above)))
        assert len(set(level)) == len(level)
        first += len(above)


def test_a_planned_template() -> None:
    """Rank paths, level by level and the likeliest first, below the slots of their parents."""
    paths = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0, 0), (2, 0)]
    assert template_of(paths) == [
        [(0, 0), (0, 1), (0, 2)],
        [(1, 0), (1, 1), (2, 0), (3, 0), (2, 1)],
        [(6, 0)],
    ]
    assert template_of([]) == []


def test_drafts_are_filled_level_by_level() -> None:
    """Known tokens only; a batch's trees differ in size; a budget cuts the deepest."""
    drafter = bound(num_candidates=2, level_sizes=(2, 3))
    drafter.shared.rows[1] = torch.tensor([2, 3])
    drafter.shared.rows[2] = torch.tensor([4, 1])
    drafter.shared.rows[3, 0] = 5
    tree = drafter.draft([sequence(0, 1), sequence(5), sequence(3)], [9] * 3, None)  # type: ignore[arg-type]
    assert tree.counts == [5, 0, 1]
    assert tree.contexts()[0] == [[], [2], [3], [2, 4], [2, 1], [3, 5]]
    assert tree.contexts()[2][1] == [5]
    small = drafter.draft([sequence(0, 1)], [3], None)  # type: ignore[arg-type]
    assert small.contexts()[0] == [[], [2], [3], [2, 4]]
    assert drafter.draft([sequence(0)], [9], None).nodes == 0  # type: ignore[arg-type]


def test_every_node_is_recycled() -> None:
    """Root, accepted and rejected nodes of every row; padding and empty places are not."""
    drafter = bound(num_candidates=2)
    tree = from_parents([[1, 2, 3], [4]], [[0, 0, 1], [0]], CPU)
    predicted = logits([[[1, 2], [3, 4], [5, 0], [2, 1]], [[3, 0], [2, 2], [5, 5], [5, 5]]])
    rows = [sequence(0), sequence(5)]
    steps = [step(tree, predicted, 0, [1, 3], 2), step(tree, predicted, 1, [], 3)]
    for one, done in zip(rows, steps, strict=True):
        one.tokens += done.tokens
    drafter.observe(rows, steps)
    found = drafter.shared.rows.tolist()
    assert found[:4] == [[1, 2], [3, 4], [5, 0], [2, 1]]
    assert found[4][0] == 2 and found[5] == [3, 0]
    assert found[VOCAB] == [-1, -1]


def test_places_without_a_distribution_and_wrong_kinds_teach_nothing() -> None:
    """NaN places, prefill chunks, and nodes that were never real."""
    drafter = bound(num_candidates=1)
    tree = from_parents([[1, 2]], [[0, 1]], CPU)
    tree.kinds = torch.tensor([[Kind.CHOSEN, Kind.PADDING]], dtype=torch.int8)
    done = step(tree, logits([[[3], [4], [5]]]), 0, [], 3)
    done.scores.bad[0, 0] = True
    drafter.observe([sequence(0, 3)], [done])
    assert drafter.shared.rows.flatten().tolist() == [-1, 4, -1, -1, -1, -1, -1]
    nothing = torch.empty(1, 0)
    empty = DraftTree(torch.zeros(1, 0, dtype=torch.int64), [0])
    drafter.observe([sequence(0)], [Step([], [], 0, 0, empty, Scores(nothing, nothing, nothing))])
    assert drafter.shared.rows.flatten().tolist() == [-1, 4, -1, -1, -1, -1, -1]


def test_of_one_tokens_places_the_accepted_counts() -> None:
    """Among equals the last one."""
    drafter = bound(num_candidates=1)
    tree = from_parents([[1, 2, 1, 2]], [[0, 0, 2, 0]], CPU)
    done = step(tree, logits([[[1], [3], [4], [5], [0]]]), 0, [1], 3)
    drafter.observe([sequence(0, 1, 3)], [done])
    assert drafter.shared.rows[:3, 0].tolist() == [1, 3, 0]


def test_a_request_with_a_salt_has_a_matrix_of_its_own() -> None:
    """In a batch with others it learns from its own row, and drafts from that."""
    drafter = bound(num_candidates=1, level_sizes=(1,))
    mine = Sequence.start([0], SamplingParams(cache_salt="a"))
    other, third = sequence(0), Sequence.start([0], SamplingParams(cache_salt="a"))
    tree = DraftTree(torch.zeros(3, 0, dtype=torch.int64), [0] * 3)
    predicted = logits([[[1]], [[2]], [[3]]])
    rows = [mine, other, third]
    steps = [step(tree, predicted, row, [], 0) for row in range(3)]
    for one in rows:
        one.tokens.append(0)
    drafter.observe(rows, steps)
    assert drafter.shared.rows[0].tolist() == [2]
    drafted = drafter.draft([third, sequence(0), mine, other], [1] * 4, None)  # type: ignore[arg-type]
    assert drafted.tokens.flatten().tolist() == [3, 2, 1, 2]
    fresh = Sequence.start([0], SamplingParams(cache_salt="a"))
    assert drafter.draft([fresh], [1], None).counts == [0]  # type: ignore[arg-type]


def test_the_matrix_is_kept_and_reset(pair: Pair) -> None:
    """A request is faster the second time, and as slow as at first after a reset."""
    drafter: Any = TokenRecycling(tree="paper")
    engine = Engine(ModelTarget(pair.target, 1, 256), drafter, TargetOnly())
    passes = []
    for _ in range(3):
        request = engine.add(PROMPTS[1], SamplingParams(temperature=0, max_tokens=40))
        while engine.busy:
            engine.step()
        passes.append(request.stats.passes)
        if passes[1:]:
            drafter.shared.reset()
    assert passes[1] < passes[0] == passes[2]


def test_saved_and_loaded(tmp_path: Path) -> None:
    """What was saved comes back; another vocabulary, another k and damage are refused."""
    path, mine = tmp_path / "matrix", Matrix(VOCAB, 2, CPU)
    mine.rows[3] = torch.tensor([5, 0])
    mine.save(path)
    copy = Matrix(VOCAB, 2, CPU)
    copy.load(path)
    assert torch.equal(copy.rows, mine.rows)
    with pytest.raises(ForetokenError, match="was made for vocab_size 6 and this target has 7"):
        Matrix(7, 2, CPU).load(path)
    with pytest.raises(ForetokenError, match="num_candidates 2"):
        Matrix(VOCAB, 3, CPU).load(path)
    mine.rows[3, 0] = VOCAB
    mine.save(path)
    with pytest.raises(ForetokenError, match="its rows are no tokens"):
        copy.load(path)
    assert copy.rows[3].tolist() == [5, 0]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ForetokenError, match="damaged"):
        copy.load(path)


@pytest.mark.parametrize("options", [{"num_candidates": 0}, {"level_sizes": ()}])
def test_wrong_options(options: dict[str, Any]) -> None:
    """One sentence."""
    with pytest.raises(ForetokenError, match="at least one candidate, one level"):
        TokenRecycling(**options)


def test_a_row_is_learned_from_where_its_step_says() -> None:
    """In a batch's tree and scores, whoever else is observed."""
    drafter = bound(num_candidates=1)
    tree = from_parents([[1], [4]], [[0], [0]], CPU)
    predicted = logits([[[2], [2]], [[3], [0]]])
    drafter.observe([sequence(5, 3)], [step(tree, predicted, 1, [], 3)])
    assert drafter.shared.rows.flatten().tolist() == [-1, -1, -1, -1, 0, 3, -1]


def test_candidates_of_few_tokens() -> None:
    """No more are known than the vocabulary has; nor may too many be asked for."""
    drafter = bound(num_candidates=8, level_sizes=(8,))
    tree = DraftTree(torch.zeros(1, 0, dtype=torch.int64), [0])
    drafter.observe([sequence(0, 1)], [step(tree, logits([[[1, 2, 3, 4, 5, 0]]]), 0, [], 1)])
    assert drafter.shared.rows[0].tolist() == [1, 2, 3, 4, 5, 0, -1, -1]
    with pytest.raises(ForetokenError, match="num_candidates is 257; it must be from 1 to 256"):
        TokenRecycling(num_candidates=257)
