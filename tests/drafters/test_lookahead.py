"""Lookahead: window, pool and tree against a window that is moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.lookahead import Lookahead, Sizes
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.testing import (
    Pair,
    check_distribution,
    check_seeded,
    logits_after,
    serve,
    table_pair,
)
from foretoken.testing.checks import PROMPTS
from foretoken.tree import DraftTree, Kind
from foretoken.verify.target_only import TargetOnly

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def begun(pair: Pair, drafter: Lookahead, prompts: list[list[int]]) -> tuple[Any, list[Sequence]]:
    """A target that has read the prompts."""
    target, rows = ModelTarget(pair.target, len(prompts), 256), []
    drafter.bind(target)
    for prompt in prompts:
        rows.append(Sequence.start(prompt, GREEDY))
        target.begin(rows[-1])
    while late := [s for s in rows if target.pending(s)]:
        prefill(target, drafter, late, 64)
    return target, rows


def contexts(levels: list[list[int]]) -> list[list[int]]:
    """What the end of each column sees of the window, itself included: the first level up to the
    column, of which the root's is empty, then the column's guesses of the later levels."""
    return [
        [*levels[0][:i], *(level[i] for level in levels[1:])] for i in range(len(levels[0]) + 1)
    ]


@pytest.mark.parametrize(("window", "size"), [(3, 2), (2, 3), (4, 4), (1, 2), (1, 3)])
def test_the_window_moves_as_by_hand(pair: Pair, window: int, size: int) -> None:
    """The last level is what the model predicts after columns; complete ones enter the pool."""
    drafter = Lookahead(window, size, 50, pool_from_prompt=False)
    target, [one] = begun(pair, drafter, [PROMPTS[1]])
    state = drafter._state(one)
    assert len(state.levels) == 1 and state.width == window + size - 2
    assert set(state.levels[0]) <= set(PROMPTS[1])
    for _ in range(size + 4):
        before, text = [list(level) for level in state.levels], list(one.tokens)
        pool = {first: list(rests) for first, rests in state.pool.items()}
        step(target, drafter, TargetOnly(), [one], [60])
        new = [int(logits_after(pair.target, text + c).argmax()) for c in contexts(before)]
        if len(before) < size - 1:
            assert state.levels == [level[1:] for level in [*before, new]] and not state.pool
            continue
        following = [*before[1:], new]
        assert state.levels == [following[0][1:], *following[1:]] and state.width == window
        for gram in zip([text[-1], *before[0]], *before[1:], new, strict=True):
            rests = pool.setdefault(gram[0], [])
            rests[:] = [gram[1:], *(rest for rest in rests if rest != gram[1:])]
        assert state.pool == pool and state.pool[text[-1]]


def test_the_output_is_in_the_pool(pair: Pair) -> None:
    """Its n-grams, and those that begin in the prompt, as they are written."""
    drafter = Lookahead(2, 4, 2)
    _, [one] = begun(pair, drafter, [[1, 2]])
    assert not drafter._state(one).pool
    one.tokens += [3, 4, 5]
    assert drafter._state(one).pool == {1: [(2, 3, 4)], 2: [(3, 4, 5)]}
    one.tokens += [6]
    assert drafter._state(one).pool[3] == [(4, 5, 6)]
    drafter._state(one).add((1, 9, 9, 9), 2)
    assert drafter._state(one).pool[1] == [(9, 9, 9), (2, 3, 4)]  # as no text is read twice
    plain = Lookahead(2, 4, 2, pool_from_prompt=False)
    plain.bind(ModelTarget(pair.target, 1, 64))
    assert not plain._state(one).pool


def test_one_tree_of_two_kinds(pair: Pair) -> None:
    """N-grams are chosen and come first; the window is auxiliary, complete or not there at all."""
    drafter = Lookahead(3, 3, 2)
    _, rows = begun(pair, drafter, [[1, 2, 3, 1, 2, 4, 1, 5, 6, 1], [7, 8, 9]])
    for row in rows:
        drafter._state(row).levels = [[20, 21], [30, 31, 32]]
    tree = drafter.draft(rows, [60, 60], None)  # type: ignore[arg-type]
    assert tree.counts == [9, 5]
    window = [[20], [20, 21], [30], [20, 31], [20, 21, 32]]
    assert tree.contexts()[0][1:] == [[5], [5, 6], [2], [2, 4], *window]
    assert tree.contexts()[1][1:6] == window
    assert tree.valid.tolist() == [[True] * 4 + [False] * 5, [False] * 9]
    assert tree.depths[0].tolist() == [0, 1, 2, 1, 2, 1, 2, 1, 2, 3]
    small = drafter.draft(rows, [8, 5], None)  # type: ignore[arg-type]
    assert small.counts == [4, 5]
    assert [drafter._state(row).scored for row in rows] == [None, 5]
    alone = drafter.draft(rows[1:], [60], None)  # type: ignore[arg-type]
    assert not alone.valid.any() and alone.counts == [5]


def test_the_pool_keeps_the_latest(pair: Pair) -> None:
    """At most G rests for a first token; one that comes again is the latest."""
    drafter = Lookahead(2, 2, 2)
    _, [one] = begun(pair, drafter, [[1, 2, 1, 3, 1, 4, 1, 3, 5]])
    assert drafter._state(one).pool[1] == [(3,), (4,)]
    plain = Lookahead(2, 2, 2, pool_from_prompt=False)
    _, [other] = begun(pair, plain, [[1, 2, 1, 2]])
    assert not plain._state(other).pool


def test_a_source_is_the_prompt(pair: Pair) -> None:
    """Of an encoder–decoder: the window begins with its tokens, and its n-grams are tried."""
    drafter = Lookahead(2, 3, 2)
    drafter.bind(ModelTarget(pair.target, 1, 64))
    one = Sequence.start([0], GREEDY, source=[7, 8, 9, 7, 8])
    state = drafter._state(one)
    assert set(state.levels[0]) <= {7, 8, 9}
    assert state.pool == {7: [(8, 9)], 8: [(9, 7)], 9: [(7, 8)]}


def test_no_window_token_is_ever_accepted(pair: Pair) -> None:
    """Auxiliary nodes are scored but never on a path, even where the target predicts them."""
    drafter = Lookahead(3, 4, 2)
    target, [one] = begun(pair, drafter, [[11] * 5])
    for _ in range(12):
        done = step(target, drafter, TargetOnly(), [one], [60])[0]
        kinds = [Kind.AUXILIARY] * done.drafted
        if done.tree.kinds is not None:
            kinds = done.tree.kinds[0].tolist()
        elif done.tree.kind == Kind.CHOSEN:
            kinds = [Kind.CHOSEN] * done.drafted
        assert all(kinds[slot - 1] == Kind.CHOSEN for slot in done.path)


def test_n_grams_are_accepted(pair: Pair) -> None:
    """Fewer passes than tokens, from trajectories alone too."""
    for from_prompt in (True, False):
        drafter = Lookahead(pool_from_prompt=from_prompt, tree="paper")
        [output] = serve(pair.target, drafter, TargetOnly(), [PROMPTS[1]], GREEDY)
        assert output.stats.passes < output.stats.tokens


def test_distribution() -> None:
    """The sampled distribution of two tokens with window and n-grams, every outcome enumerated."""
    check_distribution(
        lambda p: Lookahead(1, 3, 1, tree="paper"),
        TargetOnly(),
        table_pair(3),
        SamplingParams(temperature=0.8),
        2,
        prompt=[0, 1, 2, 0],
        rows=1,
        budget=4,
    )


def test_sampled_text_in_a_batch(pair: Pair) -> None:
    """Small windows move on in every row, and the text is plain decoding's."""
    check_seeded(lambda p: Lookahead(2, 3, 2), TargetOnly(), pair, slots=4)


@pytest.mark.parametrize("options", [{"window": 0}, {"ngram_size": 1}, {"guesses": 0}])
def test_wrong_options(options: dict[str, Any]) -> None:
    """One sentence."""
    with pytest.raises(ForetokenError, match="must be at least 1, 2 and 1"):
        Lookahead(**options)


def test_the_window_is_no_draft(pair: Pair) -> None:
    """Statistics count what might have been accepted: n-grams of the pool, not the window."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    counted, seen = 0, []

    class Watched(Lookahead):
        def observe(self, sequences: Any, steps: Any) -> None:
            seen.extend(s for s in steps if s.tokens)
            super().observe(sequences, steps)

    outputs = serve(
        pair.target, Watched(4, 3, 4, tree="paper"), TargetOnly(), PROMPTS[:2], params, slots=2
    )
    for done in seen:
        real = done.tree.valid[done.row].sum()
        counted += int(real)
    assert counted < sum(done.drafted for done in seen)
    stats = [output.stats for output in outputs]
    assert 0 < counted == sum(s.drafted for s in stats)
    assert all(len(s.drafted_at) <= 2 and s.drafts <= s.passes for s in stats)
    assert sum(sum(s.accepted_at) for s in stats) == sum(s.accepted for s in stats)


class Cut(Lookahead):
    """Its trees lose their last node, as where less was chosen of them."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        return tree.trim([count - 1 for count in tree.counts])


def test_a_window_that_was_cut_stays_where_it_is(pair: Pair) -> None:
    drafter = Cut(3, 3, 2, pool_from_prompt=False)
    target, [one] = begun(pair, drafter, [PROMPTS[1]])
    state = drafter._state(one)
    before = [list(level) for level in state.levels]
    [done] = step(target, drafter, TargetOnly(), [one], [60])
    assert done.drafted == len(before[0]) - 1
    assert state.levels == before and not state.pool and state.scored is None


def test_no_more_n_grams_than_the_window_has_columns(pair: Pair) -> None:
    """Nor longer ones, whatever the pool has."""
    drafter = Lookahead(3, 4, 3)
    _, [one] = begun(pair, drafter, [[1, 2, 3, 4, 1, 5, 6, 7, 1]])
    state = drafter._state(one)
    assert state.fitting(1) == [(5, 6, 7), (2, 3, 4)]
    state.sizes = Sizes(2, 3, 1)
    assert state.fitting(1) == [(5, 6)]


@pytest.mark.parametrize("size", [2, 3])
def test_a_row_is_read_where_its_step_says(pair: Pair, size: int) -> None:
    """In a batch's scores, whoever else is observed."""
    drafter = Lookahead(3, size, 2, pool_from_prompt=False)
    target, rows = begun(pair, drafter, PROMPTS[:2])
    first, state = (drafter._state(row) for row in rows)
    for _ in range(3):
        before = state.levels, dict(state.pool)
        steps = step(target, drafter, TargetOnly(), rows, [60, 60])
        wanted = state.levels, state.pool
        (state.levels, state.pool), state.scored = before, steps[1].drafted
        drafter.observe(rows[1:], steps[1:])
        assert (state.levels, state.pool) == wanted and state.levels != first.levels


@pytest.mark.parametrize(
    ("window", "size", "guesses"), [(3, 5, 2), (7, 5, 7), (1, 2, 1), (1, 6, 1)]
)
def test_it_has_as_many_nodes_as_it_says(pair: Pair, window: int, size: int, guesses: int) -> None:
    """At most: where all n-grams fit, and the window is largest, which isn't always at its end."""
    drafter = Lookahead(window, size, guesses, pool_from_prompt=False)
    target, [one] = begun(pair, drafter, [PROMPTS[1]])
    rests = [(97 - guess,) * (size - 1) for guess in range(1, guesses + 1)]
    drafter._state(one).pool = {token: list(rests) for token in range(97)}
    steps = [step(target, drafter, TargetOnly(), [one], [999])[0] for _ in range(size + 1)]
    assert max(done.drafted for done in steps) == drafter.nodes
