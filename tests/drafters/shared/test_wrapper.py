"""Drafters made of drafters: joined by + and |, with options and memories of their parts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.config import build
from foretoken.drafters.either import Either
from foretoken.drafters.merged import Merged
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.drafters.suffix import Suffix
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Pair,
    check_seeded,
    serve,
)
from foretoken.trees.plan import SiblingCounts
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly


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
    ("config", "message"),
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
def test_wrong_compositions(config: dict[str, Any], message: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError) as error:
        build(config)
    assert message in str(error.value)


def test_chosen_parts_keep_the_seeds_text(pair: Pair) -> None:
    """Of chosen drafts, picked or merged, the text is plain decoding's at any temperature."""
    for method in ("pld+sam", "pld|sam"):
        check_seeded(lambda p, m=method: build({"method": m}).drafter, TargetOnly(), pair, slots=3)  # type: ignore[misc]


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
    for part in parts:
        part.shared.add([0], [1])  # type: ignore[union-attr]
    merged.shared.reset()
    assert [part.shared.rates() for part in parts] == [[0.5], [0.25]]  # type: ignore[union-attr]


def test_all_parts_end(pair: Pair) -> None:
    """Also those behind a part that raises; what it raised comes through."""

    class Fails(PromptLookup):
        def end(self, sequences: Any) -> None:
            raise LookupError("end")

    class Notes(PromptLookup):
        ended = 0

        def end(self, sequences: Any) -> None:
            self.ended += len(sequences)

    parts = [Notes(), Fails(), Notes()]
    with pytest.raises(LookupError):
        Either(parts).end([Sequence.start([1, 2], SamplingParams())])
    assert [part.ended for part in parts if isinstance(part, Notes)] == [1, 1]


def part(*wants: Any) -> Any:
    """A drafter that wants this of the target."""
    made: Any = BaseDrafter()
    made.wants = Wants(*wants)
    return made


def test_states_of_as_much_of_a_prompt_as_any_part_reads() -> None:
    """Of all of it where one part does; parts that read no states don't count."""
    one, three, every, none = (
        part("c", (-1,), 1),
        part("c", (-1,), 3),
        part("c", (-1,)),
        part("a"),
    )
    for parts, last in (([one, three], 3), ([one, every], None), ([none, one], 1)):
        assert Either(parts).wants.last == last


def test_what_any_part_is_the_whole_is() -> None:
    """Of as many nodes as the largest draft, a tree, coupled."""
    coupled = part("a")
    coupled.coupled = True
    either = Either([PromptLookup(3), coupled, Suffix(7)])
    assert either.nodes == 64 and either.trees and either.coupled
    assert Either([PromptLookup(3), PromptLookup(7)]).nodes == 7


class Late(BaseDrafter):
    """Knows what it reads once it is bound."""

    wants = Wants("c", (-1,))

    def bind(self, access: Any) -> None:
        self.wants = Wants("c", (-1, 3), 1)


def test_what_parts_want_is_known_once_they_are_bound() -> None:
    either = Either([Late(), PromptLookup()])
    either.bind(SimpleNamespace(device="cpu", vocab_size=9))  # type: ignore[arg-type]
    assert (either.wants.hidden, either.wants.last) == ((-1, 3), 1)


def test_all_parts_hear_of_what_begins() -> None:
    """And of copies."""
    heard: list[tuple[str, Sequence]] = []

    class Notes(PromptLookup):
        def begin(self, sequence: Sequence) -> None:
            heard.append(("begin", sequence))

        def fork(self, sequence: Sequence, copy: Sequence) -> None:
            heard.append(("fork", copy))

    either = Either([Notes(), Notes()])
    one, two = (Sequence.start([1, 2], SamplingParams()) for _ in range(2))
    either.begin(one)
    either.fork(one, two)
    assert heard == [("begin", one)] * 2 + [("fork", two)] * 2
