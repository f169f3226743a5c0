"""Several drafters as one: names joined by + and |, the choice, the common tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.config import build
from foretoken.drafters.either import Either
from foretoken.drafters.merged import Merged
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.protocols import BaseDrafter
from foretoken.testing import (
    Oracle,
    Pair,
    check_distribution,
    check_greedy,
    check_seeded,
    serve,
    table_pair,
)
from foretoken.tree import DraftTree, Kind
from foretoken.trees.plan import SiblingCounts
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

CPU = torch.device("cpu")
WARM = SamplingParams(temperature=0.7)


def test_names_make_parts(pair: Pair) -> None:
    """+ chooses, | merges; the rule is the exact one for what the parts make."""
    built = build({"method": "pld+sps", "model": pair.draft})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert isinstance(drafter, Either) and isinstance(rule, Speculative) and name == "pld+sps"
    assert [type(part) for part in drafter.drafters] == [PromptLookup, SmallLM]
    built = build({"method": "ngram | mcsd", "model": pair.draft})
    drafter, rule = built.drafter, built.verifier
    assert isinstance(drafter, Merged) and isinstance(rule, MultiCandidate)
    assert isinstance(build({"method": "pld+sam"}).verifier, TargetOnly)
    assert isinstance(
        build({"method": "pld+sps", "model": "x", "verifier": "block"}).drafter, Either
    )


def test_options_find_their_part(pair: Pair) -> None:
    """An option goes to all that have it, one under a part's name to that part alone."""
    built = build(
        {
            "method": "pld+sps",
            "model": pair.draft,
            "num_assistant_tokens": 6,
            "level_cost": 0.3,
            "prompt_lookup_max": 5,
            "sps": {"num_speculative_tokens": 2},
        }
    )
    drafter = built.drafter
    assert isinstance(drafter, Either) and drafter.level_cost == 0.3
    lookup, small = drafter.drafters
    assert isinstance(lookup, PromptLookup) and isinstance(small, SmallLM)
    assert (lookup.num_speculative_tokens, lookup.prompt_lookup_max) == (6, 5)
    assert small.num_speculative_tokens == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "pld+spss"}, "Did you mean 'sps'"),
        ({"method": "pld+"}, "Unknown method ''"),
        ({"method": "pld+sps|sad"}, "mixes '+' and '|'"),
        ({"method": "pld+pld"}, "names a part twice"),
        ({"method": "pld+sps", "model": "x", "prompt_lookup_maxx": 3}, "'prompt_lookup_max'"),
        ({"method": "pld+sps", "model": "x", "pld": 3}, "Unknown option"),
        ({"method": "pld+sps", "model": "x", "pld": {"widths": 3}}, "Unknown option"),
        ({"method": "pld+sps"}, "name it"),
        ({"method": "mcsd|sequoia", "model": "x"}, "Only one of the parts"),
        ({"method": "either"}, "at least two"),
    ],
    ids=str,
)
def test_wrong_compositions(config: dict[str, Any], said: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError) as error:
        build(config)
    assert said in str(error.value)


def test_what_needs_its_own_nodes_is_not_merged(pair: Pair) -> None:
    """Hidden states and auxiliary nodes come back by place in the tree."""
    reader, prober = BaseDrafter(), BaseDrafter()
    reader.wants = Wants("c", (-1,))
    prober.kinds = frozenset({Kind.AUXILIARY, Kind.CHOSEN})
    for part in (reader, prober):
        with pytest.raises(ForetokenError, match="can't share a tree"):
            Merged([PromptLookup(), part])  # type: ignore[list-item]
        assert Either([PromptLookup(), part]).wants.levels in ("a", "ac")  # type: ignore[list-item]


@dataclass(eq=False)
class Asked(SmallLM):
    """Notes for how many sequences it is asked, and how many nodes it hears that it drafted."""

    rows: list[int] = field(default_factory=list)
    heard: int = 0

    def observe(self, sequences: Any, steps: Any) -> None:
        self.heard += sum(step.drafted for step in steps)
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
    small = Asked(pair.draft)
    outputs = serve(
        pair.target, Either([Oracle(known), small]), Speculative(), prompts, params, slots=2
    )
    assert [o.token_ids for o in outputs] == texts
    assert set(small.rows) == {1} and outputs[0].stats.mean_acceptance_length > 4
    assert outputs[1].stats.drafted == small.heard > 0


def test_a_part_that_fails_is_left_and_tried_again(pair: Pair) -> None:
    """Wrong copies lose against the small model, and come back as what is known fades."""
    prompt = [5, 9, 2, 5, 9, 2, 5]
    wrong, small = Oracle({tuple(prompt): [1] * 200}, 4), Asked(pair.target)
    drafter = Either([wrong, small], decay=0.8, level_cost=0.3)
    params = SamplingParams(temperature=0, max_tokens=100)
    [output] = serve(pair.target, drafter, Speculative(), [prompt], params)
    steps = output.stats.passes
    assert steps / 2 < len(small.rows) < steps - 1
    drafter = Either([wrong, Asked(pair.target)], level_cost=9.0)
    [output] = serve(pair.target, drafter, Speculative(), [prompt], params)
    assert output.stats.drafts < output.stats.passes  # neither pays


def test_chosen_parts_keep_the_seeds_text(pair: Pair) -> None:
    """Of chosen drafts, picked or merged, the text is plain decoding's at any temperature."""
    for method in ("pld+sam", "pld|sam"):
        check_seeded(lambda p, m=method: build({"method": m}).drafter, TargetOnly(), pair, slots=3)  # type: ignore[misc]


LAWS: dict[str, tuple[Any, dict[str, int]]] = {
    "either": (lambda p: Either([PromptLookup(2), SmallLM(p.draft, 2)]), {"steps": 2}),
    "two that draw": (
        lambda p: Either([SmallLM(p.draft, 1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 2, "budget": 2},
    ),
    "merged": (lambda p: Merged([PromptLookup(2), SmallLM(p.draft, 1)]), {"steps": 1}),
    "merged, without replacement": (
        lambda p: Merged([PromptLookup(1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 1},
    ),
    "merged, two that draw": (
        lambda p: Merged([SmallLM(p.draft, 1), SmallTree(p.draft, widths=(2,))]),
        {"steps": 1},
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_distribution(name: str) -> None:
    """Every outcome: choosing between drafts and putting them together keeps the target's
    distribution."""
    make, size = LAWS[name]
    drafter = make(table_pair(3))
    rule = MultiCandidate() if drafter.trees else Speculative()
    options = {"rows": 1, "budget": 3, **size}
    check_distribution(make, rule, table_pair(3), WARM, 3, prompt=[0, 1, 2, 0, 1], **options)


class Sorted(Merged):
    """Not allowed: a draw without replacement after a copied sibling that it didn't leave out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.drafters = list(reversed(self.drafters))


def test_draws_without_replacement_stand_first() -> None:
    """Whatever was named first; else the distribution is another."""
    parts = [PromptLookup(1), SmallTree("x", widths=(2,))]
    assert isinstance(Merged(parts).drafters[0], SmallTree)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="is off by"):
        check_distribution(
            lambda p: Sorted([PromptLookup(1), SmallTree(p.draft, widths=(2,))]),
            MultiCandidate(),
            table_pair(3),
            WARM,
            3,
            rows=1,
            prompt=[0, 1, 2, 0, 1],
            steps=1,
            budget=3,
            tolerance=1e-3,
        )


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


def test_what_parts_learn_is_kept_apart(pair: Pair, tmp_path: Path) -> None:
    """Shared memories are saved side by side, and reset together."""
    parts = [
        SmallTree(pair.draft, acceptance=(rate,), learn_every=1, replacement=True)
        for rate in (0.5, 0.25)
    ]
    merged = Merged(parts)  # type: ignore[arg-type]
    serve(pair.target, merged, MultiCandidate(), [[1, 2]], SamplingParams(max_tokens=4, seed=1))
    assert merged.shared is not None
    merged.shared.save(tmp_path / "learned")
    for part in parts:
        assert isinstance(part.shared, SiblingCounts)
        part.shared.add([0], [1])
    merged.shared.load(tmp_path / "learned")
    assert [part.shared.rates() for part in parts] == [[0.5], [0.25]]  # type: ignore[union-attr]
    merged.shared.reset()


class ModelAccess:
    device = CPU
