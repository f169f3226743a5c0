"""Masks by a node's own path: kept in step with the text, and exact with every kind of draft."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from foretoken import ForetokenError, SamplingParams
from foretoken.draws import Draws
from foretoken.grammar.constraint import CompiledGrammar, Constraint, Ids, mask
from foretoken.protocols import Verifier
from foretoken.registry import build_verifier
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Drawn,
    automaton,
    check_distribution,
    distance,
    joint_distribution,
    table_pair,
    target_distribution,
)
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared import chains

MOVES = {0: {0: 1, 2: 2}, 1: {2: 0, 0: 2}, 2: {0: 0}}
GRAMMAR = automaton(3, MOVES, whole={0})
END = frozenset({1})
PARAMS = SamplingParams(temperature=0.8, structured_outputs=GRAMMAR)
ENDLESS = frozenset[int]()


def allowed(constraint: Constraint, output: list[int], *paths: list[int]) -> list[set[int] | None]:
    """The tokens that may follow each path; None where all may."""
    words = [place.words for place in constraint.places(output, paths)]
    return [None if w is None else {t for t in range(3) if int(w[0]) >> t & 1} for w in words]


def test_each_place_has_the_mask_of_its_own_path() -> None:
    """On a tree whose branches are given in any order, the end only where the text is whole."""
    constraint = Constraint(GRAMMAR, END)
    paths = [[2, 0], [], [0], [2], [0, 2], [0, 0]]
    found = allowed(constraint, [], *paths)
    assert found == [{0, 1, 2}, {0, 1, 2}, {0, 2}, {0}, {0, 1, 2}, {0}]


def test_after_an_end_of_the_text_all_is_allowed() -> None:
    """As where it isn't heeded: the grammar has nothing to say any more, though it goes on."""
    constraint = Constraint(GRAMMAR, frozenset({2}))
    assert allowed(constraint, [0], []) == [{0, 2}]
    assert allowed(constraint, [0, 2], [], [0]) == [None] * 2
    assert allowed(constraint, [0, 2, 0], []) == [None]


def test_places_that_cannot_be_reached_stay_as_they_are() -> None:
    """Below a token that the grammar forbids, and after the end: no mask of zeros to fold."""
    constraint = Constraint(GRAMMAR, END)
    assert allowed(constraint, [2], [2], [2, 0], [0, 1], [0, 1, 2], [1]) == [None] * 5
    logits = torch.zeros(1, 3, 3, dtype=torch.float64)
    sequence = Sequence.start([0], PARAMS, end_ids=END)
    folded = fold(logits, [sequence], lambda: [[[], [2], [2, 2]]])
    assert torch.isfinite(folded.probs).all() and not folded.bad.any()


def test_the_state_follows_the_text_wherever_it_goes() -> None:
    """A partial acceptance, a step back after a pass that failed, and another text altogether."""
    constraint, fresh = Constraint(GRAMMAR, END), lambda: Constraint(GRAMMAR, END)
    drafts = [[], [0], [0, 2], [0, 2, 2], [2], [2, 0]]
    for output in ([], [0], [0, 2, 2], [0], [2, 0, 0], [], [0, 2], [0, 2, 0, 2]):
        assert allowed(constraint, output, *drafts) == allowed(fresh(), output, *drafts)


class Ends(frozenset[int]):
    """Counts the tokens that are looked for in it."""

    looked = 0

    def isdisjoint(self, tokens: Seq[int]) -> bool:  # type: ignore[override]
        Ends.looked += len(tokens)
        return super().isdisjoint(tokens)


def test_a_draft_costs_its_own_tokens() -> None:
    """And not those of the text before it; that has an end of text in it, or not, for good."""
    constraint, output = Constraint(GRAMMAR, Ends({1})), [0] * 3000
    constraint.places(output, [()])
    Ends.looked = 0
    found = allowed(constraint, output, [0], [0, 0], [2], [2, 2], [1], [1, 0])
    assert Ends.looked <= 10
    assert found == [{0, 2}, {0}, {0}, None, None, None]
    assert allowed(constraint, [*output, 1], [], [0]) == [None, None]
    assert allowed(constraint, [*output, 1, 0], []) == [None]
    assert allowed(constraint, output, [0]) == [{0, 2}]


def test_a_text_that_is_none_of_the_grammars_has_no_distribution() -> None:
    """What something else wrote is an error, and no licence to write anything."""
    constraint = Constraint(GRAMMAR, END)
    [place] = constraint.places([2, 2], [()])
    assert place.error is not None and "a toy" in str(place.error)
    assert allowed(constraint, [2], []) == [{0}]  # and the matcher serves on


def test_where_no_token_fits_the_error_names_the_grammar() -> None:
    """A grammar whose next text no token writes ends the request, and no other one."""
    dead = automaton(3, {0: {0: 1}, 1: {}}, whole=())
    row = torch.zeros(3, 3, dtype=torch.float64)
    wrong = mask(row.clone(), row, Constraint(dead, END), [], [[], [0], [2]])
    assert [*wrong] == [1] and "a toy allows no token" in str(wrong[1])
    assert row[1].isnan().all() and row[0].tolist() == [0, -torch.inf, -torch.inf]


def test_nothing_to_write_is_an_error_where_nothing_ends_a_text() -> None:
    """A token of any kind would be none of the grammar's."""
    empty = automaton(3, {0: {}}, whole={0})
    [place] = Constraint(empty, ENDLESS).places([], [()])
    assert place.error is not None and "the empty text only" in str(place.error)
    assert allowed(Constraint(empty, END), [], []) == [{1}]
    assert Constraint(replace(empty, reasoning_end=Ids((2,))), ENDLESS).finished([0, 2])


def test_what_a_backend_raises_is_the_places_error() -> None:
    """And the matcher that raised isn't used again."""

    class Broken:
        def __init__(self) -> None:
            self.states: list[int] = []
            self.spent = False

        def accept(self, token: int) -> bool:
            self.states.append(token)
            return True

        def rollback(self, count: int) -> None:
            del self.states[-count:]

        def fill(self, words: object) -> None:
            if self.spent or 2 in self.states:
                self.spent = True
                raise RuntimeError("too complex")
            words[0] = 7  # type: ignore[index]

        complete = False

        def forced(self) -> list[int]:
            return []

    constraint = Constraint(CompiledGrammar("it", 3, Broken), END)
    first, second, third = constraint.places([0], [[2], [2, 0], []])
    assert "too complex" in str(first.error) and second.error is not None and third.error is None
    [later] = constraint.places([0], [[0]])
    assert later.error is None


def test_a_marker_that_can_not_be_looked_for_is_no_free_text() -> None:
    """What a tokenizer raises is raised whenever the same text is asked about: masks are filled on
    a thread first, where nobody hears of it."""

    class Unread:
        def after(self, text: Seq[int], seen: int) -> int | None:
            if len(text) > seen:
                raise RuntimeError("no such id")
            return None

    constraint = Constraint(replace(GRAMMAR, reasoning_end=Unread()), END)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such id"):
            constraint.places([0], [()])


def test_a_whole_text_that_cannot_go_on_is_finished() -> None:
    """With and without a token for the end."""
    short = automaton(3, {0: {0: 1}, 1: {}}, whole={1})
    for ends in (END, ENDLESS):
        constraint = Constraint(short, ends)
        assert not constraint.finished([]) and constraint.finished([0])
    assert allowed(Constraint(short, END), [], [0]) == [{1}]
    assert allowed(Constraint(short, ENDLESS), [], [0]) == [None]
    assert not Constraint(GRAMMAR, END).finished([0, 2])  # whole, but it may go on


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_reasoning_that_ends_inside_a_block(place: int) -> None:
    """The grammar holds from the marker on, wherever in a draft it is."""
    marked = replace(GRAMMAR, reasoning_end=Ids((2, 2)))
    draft = [*[0] * place, 2, 2, 2, 0]
    constraint = Constraint(marked, ENDLESS)
    found = allowed(constraint, [], *[draft[:size] for size in range(len(draft) + 1)])
    assert found == [None] * (place + 2) + [{0, 2}, {0}, {0, 2}]
    written = Constraint(marked, ENDLESS)
    assert allowed(written, [0, 2], [2], [2, 2]) == [{0, 2}, {0}]


def test_reasoning_of_a_text_that_starts_again() -> None:
    """Where the marker was before says nothing of it."""
    constraint = Constraint(replace(GRAMMAR, reasoning_end=Ids((2, 2))), ENDLESS)
    assert allowed(constraint, [0, 2, 2, 0], []) == [{0, 2}]
    assert allowed(constraint, [0], [], [2], [2, 2]) == [None, None, {0, 2}]


def test_forced_tokens() -> None:
    """What must follow in any case, after the reasoning only."""
    forced = automaton(3, {0: {0: 1}, 1: {2: 2}, 2: {0: 3, 1: 3}, 3: {}}, whole={3})
    constraint = Constraint(forced, ENDLESS)
    assert constraint.forced([]) == [0, 2]
    assert constraint.forced([0]) == [2] and constraint.forced([0, 2]) == []
    assert constraint.forced([2]) == []
    marked = Constraint(replace(forced, reasoning_end=Ids((1,))), ENDLESS)
    assert marked.forced([0]) == [] and marked.forced([0, 1]) == [0, 2]


@dataclass(eq=False)
class Unmasked(Drawn):
    """Draws without regard to the grammar."""

    cut: bool = False

    def _distribution(self, sequence: Sequence, path: list[int]) -> Tensor:
        free = replace(sequence.params, structured_outputs=None)
        return super()._distribution(replace(sequence, params=free, grammar=None), path)

    def draft(self, sequences: list[Sequence], budgets: list[int], draws: Draws) -> DraftTree:  # type: ignore[override]
        tree = super().draft(sequences, budgets, draws)
        if self.cut:
            tree.counts = [
                self._valid(s, row) for s, row in zip(sequences, tree.tokens.tolist(), strict=True)
            ]
        return tree

    def _valid(self, sequence: Sequence, drafted: list[int]) -> int:
        constraint = Constraint(GRAMMAR, END)
        for size, token in enumerate(drafted):
            [may] = allowed(constraint, sequence.output, drafted[:size])
            if may is not None and token not in may:
                return size
        return len(drafted)


RULES = [
    (name, kind, branches)
    for name, kind, branches in [
        ("speculative", Kind.INDEPENDENT, (1, 1)),
        ("block", Kind.INDEPENDENT, (1, 1)),
        ("traversal", Kind.INDEPENDENT, (2, 1)),
        ("traversal", Kind.WITHOUT_REPLACEMENT, (2, 1)),
        ("multi_candidate", Kind.INDEPENDENT, (2, 1)),
        ("multi_candidate", Kind.WITHOUT_REPLACEMENT, (2, 1)),
        ("k_seq", Kind.INDEPENDENT, (2, 1)),
        ("optimal_transport", Kind.INDEPENDENT, (2, 1)),
    ]
]


@pytest.mark.parametrize(("name", "kind", "branches"), RULES)
def test_invalid_draws_are_rejected_by_the_rule(
    name: str, kind: Kind, branches: tuple[int, ...]
) -> None:
    """Tokens drawn without the mask, which the grammar may forbid: the distribution is plain
    constrained decoding's, the bonus token's included."""
    tree = len(branches) > 1 and branches[0] > 1
    check_distribution(
        lambda p: Unmasked(p.draft, branches, kind),
        build_verifier(name),
        table_pair(3),
        PARAMS,
        3,
        end_ids=END,
        rows=256,
        **({"budget": 4, "steps": 1} if tree else {}),
    )


def off(rule: Verifier, cut: bool = False) -> float:
    pair = table_pair(3)
    found = joint_distribution(
        pair.target,
        lambda: Unmasked(pair.draft, (1, 1), cut=cut),
        rule,
        (0, 1, 0),
        PARAMS,
        3,
        end_ids=END,
        rows=8,
    )
    return distance(found, target_distribution(pair.target, (0, 1, 0), PARAMS, 3, END))


def test_cutting_a_draft_at_a_forbidden_token_would_be_noticed() -> None:
    """The token that replaces it must come from the residual."""
    rule = build_verifier("speculative")
    assert off(rule) < 1e-12 < 1e-4 < off(rule, cut=True)


def test_a_residual_without_the_mask_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left after a rejection obeys the grammar too."""
    whole = chains._final_distribution

    def unmasked(trees: DraftTree, probs: Tensor, *more: Tensor) -> Tensor:
        return whole(trees, (probs + 0.05) / (probs + 0.05).sum(-1, keepdim=True), *more)  # type: ignore[arg-type]

    monkeypatch.setattr(chains, "_final_distribution", unmasked)
    with pytest.raises((AssertionError, ForetokenError)):
        assert off(build_verifier("speculative")) < 1e-3
