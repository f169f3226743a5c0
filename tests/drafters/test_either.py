"""A draft for each sequence, chosen from several drafters' (+)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.either import Either
from foretoken.drafters.lookahead import Lookahead
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.draws import GreedyDraws
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Oracle,
    Pair,
    check_distribution,
    serve,
    table_pair,
)
from foretoken.testing.checks import greedy_reference
from foretoken.tree import DraftTree, Kind, chains
from foretoken.trees.from_lists import from_paths
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly


@dataclass(eq=False)
class Counting(SmallLM):
    """Counts the sequences of each draft, and the nodes that its steps report as drafted."""

    rows: list[int] = field(default_factory=list)
    drafted: int = 0

    def observe(self, sequences: Any, steps: Any) -> None:
        self.drafted += sum(step.drafted for step in steps)
        super().observe(sequences, steps)

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        self.rows.append(len(sequences))
        return super().draft(sequences, budgets, draws)


def test_what_draws_is_asked_only_where_it_is_taken(pair: Pair) -> None:
    """With the right text at hand the small model never drafts; where there is none it does."""
    prompts = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3]]
    params = SamplingParams(temperature=0, max_tokens=24)
    texts = [o.token_ids for o in serve(pair.target, PromptLookup(), TargetOnly(), prompts, params)]
    known = {tuple(prompts[0]): texts[0], tuple(prompts[1]): []}
    small = Counting(pair.draft)
    outputs = serve(
        pair.target, Either([Oracle(known), small]), Speculative(), prompts, params, slots=2
    )
    assert [o.token_ids for o in outputs] == texts
    assert set(small.rows) == {1} and outputs[0].stats.mean_acceptance_length > 4
    assert outputs[1].stats.drafted == small.drafted > 0


@pytest.mark.parametrize(("path", "tested"), [([3], 1), ([1], 2), ([1, 2], 2), ([], 1)])
def test_after_a_leaf_nothing_was_offered(path: list[int], tested: int) -> None:
    """However deep other branches are, so what was accepted to a leaf was right throughout."""
    either, none = Either([Oracle({}), Oracle({})]), torch.empty(1, 0)
    sequence = Sequence.start([5, 9], LONG)
    tree = from_paths([[[1, 2], [3]]], torch.device("cpu"))
    record = either._records(sequence)[0]
    record.used = True
    scores = Scores(none, none, none)
    either.observe([sequence], [Step([0] * (len(path) + 1), path, 3, 0, tree, scores)])
    assert (record.accepted, record.tested) == (len(path), tested)


def test_a_part_that_fails_is_left_and_tried_again(pair: Pair) -> None:
    """Wrong copies lose against the small model, and come back as what is known fades."""
    prompt = [5, 9, 2, 5, 9, 2, 5]
    wrong, small = Oracle({tuple(prompt): [1] * 200}, 4), Counting(pair.target)
    drafter = Either([wrong, small], decay=0.8, level_cost=0.3)
    params = SamplingParams(temperature=0, max_tokens=100)
    [output] = serve(pair.target, drafter, Speculative(), [prompt], params)
    steps = output.stats.passes
    assert steps / 2 < len(small.rows) < steps - 1
    drafter = Either([wrong, Counting(pair.target)], level_cost=9.0)
    [output] = serve(pair.target, drafter, Speculative(), [prompt], params)
    assert output.stats.drafts < output.stats.passes  # neither pays


def test_a_part_that_has_no_draft_is_left(pair: Pair) -> None:
    """As a small model whose context has ended; one that was not asked is not."""
    text = greedy_reference(pair.target, PROMPT, 80)
    short, silent = Oracle({tuple(PROMPT): text}, 2), Counting(pair.draft)
    silent.draft = (  # type: ignore[method-assign]
        lambda sequences, *given: chains([[] for _ in sequences], torch.device("cpu"))
    )
    [alone] = serve(pair.target, short, TargetOnly(), [PROMPT], LONG)
    both = Either([short, silent], level_cost=0.0)  # at first it promises more
    [output] = serve(pair.target, both, Speculative(), [PROMPT], LONG)
    assert output.token_ids == text[:60]
    assert alone.stats.passes == 20 < output.stats.passes < 27
    either, row = Either([short, silent]), Sequence.start(PROMPT, LONG)
    for budget, tested in ((0, 0.0), (4, 1.0)):
        either._choose([row], [budget], {})
        for record in either._records(row):
            record.used = True
        scores = Scores(torch.empty(1, 0), torch.empty(1, 0), torch.empty(1, 0))
        empty = chains([[]], torch.device("cpu"))
        either._note(either._records(row), Step([0], [], 0, 0, empty, scores))
        assert max(record.tested for record in either._records(row)) == tested


@dataclass(eq=False)
class Starting(Oracle):
    """Drafts the text only after a step that took its draft: the first one is an auxiliary node."""

    kinds = frozenset({Kind.CHOSEN, Kind.AUXILIARY})

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        if all(sequence.state.get(self) for sequence in sequences):
            return super().draft(sequences, budgets, draws)
        return replace(chains([[0]] * len(sequences), self._device), kind=Kind.AUXILIARY)

    def observe(self, sequences: Any, steps: Any) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            sequence.state[self] = step.drafted > 0


PROMPT = [5, 9, 2, 5, 9, 2, 5]
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def test_a_part_that_has_to_start_does(pair: Pair) -> None:
    """Its auxiliary node is no draft, but what makes the next one: beside copies of which one token
    is right it is tried, and stays."""
    text = greedy_reference(pair.target, PROMPT, 80)
    half, starting = (
        Oracle({tuple(PROMPT): text}, 8, wrong_at=1),
        Starting({tuple(PROMPT): text}),
    )
    [output] = serve(pair.target, Either([half, starting]), TargetOnly(), [PROMPT], LONG)
    assert output.token_ids == text[:60] and output.stats.passes <= 16


def test_what_is_never_accepted_promises_nothing(pair: Pair) -> None:
    """A window of guesses is deeper than any copy, and right copies are taken all the same; where
    no drafts come of it, what makes drafts is left."""
    text = greedy_reference(pair.target, PROMPT, 80)
    right = Oracle({tuple(PROMPT): text}, 4)
    window = Lookahead(pool_from_prompt=False)
    [output] = serve(pair.target, Either([right, window]), TargetOnly(), [PROMPT], LONG)
    assert output.token_ids == text[:60] and output.stats.passes == 12
    half = Oracle({tuple(PROMPT): text}, 3, wrong_at=1)
    barren = Starting({tuple(PROMPT): [0] * 80}, 0)
    [output] = serve(pair.target, Either([barren, half]), TargetOnly(), [PROMPT], LONG)
    assert output.token_ids == text[:60] and output.stats.passes < 45


WARM = SamplingParams(temperature=0.7)
MAKERS: dict[str, tuple[Any, dict[str, int]]] = {
    "either": (lambda p: Either([PromptLookup(2), SmallLM(p.draft, 2)]), {"steps": 2}),
    "two that draw": (
        lambda p: Either([SmallLM(p.draft, 1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 2, "budget": 2},
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_distribution(name: str) -> None:
    """Every outcome: choosing between drafts keeps the target's distribution."""
    make, size = MAKERS[name]
    drafter = make(table_pair(3))
    rule = MultiCandidate() if drafter.trees else Speculative()
    options = {"rows": 1, "budget": 3, **size}
    check_distribution(make, rule, table_pair(3), WARM, 3, prompt=[0, 1, 2, 0, 1], **options)


@torch.inference_mode()
@pytest.mark.parametrize(("budget", "rows"), [(1, [1]), (4, [])])
def test_what_may_be_drafted_decides_what_pays(pair: Pair, budget: int, rows: list[int]) -> None:
    """A short draft may pay where a long one costs more than it brings."""
    small = Counting(pair.draft)
    either = Either([Oracle({tuple(PROMPT): []}), small], level_cost=0.5)
    either.bind(ModelTarget(pair.target, 1, 64))
    sequence = Sequence.start(PROMPT, LONG)
    either.begin(sequence)
    either.draft([sequence], [budget], GreedyDraws())
    assert small.rows == rows


def test_what_says_nothing_of_a_parts_drafts() -> None:
    """A prediction that was drafted instead; auxiliary nodes, which have no depth. How often these
    brought nothing fades, as all that is counted does."""
    either, none, cpu = Either([Oracle({}), Oracle({})]), torch.empty(1, 0), torch.device("cpu")
    sequence, scores = Sequence.start([5, 9], LONG), Scores(none, none, none)
    record = either._records(sequence)[0]
    record.depth = 3
    told = replace(chains([[1, 2]], cpu), kind=Kind.AUXILIARY)
    for step, barren in (
        (Step([0, 0], [1], 0, 0, chains([[1, 2]], cpu), scores), 0.0),
        (Step([0], [], 2, 0, told, scores), 1.0),
        (Step([0], [], 0, 0, chains([[]], cpu), scores), 0.95),
    ):
        record.used = True
        either.observe([sequence], [step])
        assert (record.accepted, record.tested, record.depth) == (0, 0, 3)
        assert record.barren == pytest.approx(barren)


def test_each_row_has_the_depth_of_its_own_draft() -> None:
    either, none, cpu = Either([Oracle({}), Oracle({})]), torch.empty(2, 0), torch.device("cpu")
    rows, scores = [Sequence.start([5, 9], LONG) for _ in range(2)], Scores(none, none, none)
    for row in rows:
        either._records(row)[0].used = True
    tree = chains([[1], [1, 2, 3]], cpu)
    either.observe(rows, [Step([0], [], n, row, tree, scores) for row, n in enumerate((1, 3))])
    assert [either._records(row)[0].depth for row in rows] == [1, 3]


def test_what_was_accepted_fades_as_what_was_tested() -> None:
    """So no part seems to be more than always right."""
    either, none, cpu = Either([Oracle({}), Oracle({})]), torch.empty(1, 0), torch.device("cpu")
    sequence, scores = Sequence.start([5, 9], LONG), Scores(none, none, none)
    record = either._records(sequence)[0]
    record.accepted = record.tested = 2.0
    either.observe([sequence], [Step([0], [], 0, 0, chains([[]], cpu), scores)])
    assert record.accepted == record.tested == pytest.approx(1.9)


@pytest.mark.parametrize(
    "options", [{"level_cost": -0.1}, {"weight": 0.0}, {"decay": 1.1}, {"rate": -0.1}]
)
def test_settings_that_cannot_be(options: dict[str, float]) -> None:
    """Each is named."""
    with pytest.raises(ForetokenError, match=f"{next(iter(options))} is"):
        Either([PromptLookup(), Oracle({})], **options)
