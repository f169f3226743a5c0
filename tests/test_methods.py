"""From a `speculative_config` to a drafter and a rule; what is said of wrong ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import METHODS, ForetokenError, SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.length import Fixed, Heuristic, schedule
from foretoken.methods import ALIASES, OPTION_ALIASES, build
from foretoken.protocols import BaseDrafter
from foretoken.registry import drafter_class, drafter_names, verifier_class, verifier_names
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.tree import Kind
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly


def test_no_config_is_plain_decoding() -> None:
    """None, and the method's own name, draft nothing."""
    for config in (None, {"method": "autoregressive"}, {"method": "none"}):
        drafter, rule, name = build(config)
        assert isinstance(drafter, Nothing) and isinstance(rule, TargetOnly)
        assert name == "autoregressive"


def test_names_of_other_libraries(pair: Pair) -> None:
    """Methods and options go by the names that their users bring."""
    drafter, _, name = build(
        {"method": "ngram", "num_assistant_tokens": 7, "max_matching_ngram_size": 4}
    )
    assert isinstance(drafter, PromptLookup) and name == "pld"
    assert (drafter.num_speculative_tokens, drafter.prompt_lookup_max) == (7, 4)
    drafter, rule, name = build({"method": "draft_model", "assistant_model": pair.draft})
    assert isinstance(drafter, SmallLM) and drafter.model is pair.draft and name == "sps"
    assert isinstance(rule, Speculative)


def test_a_model_without_a_method_drafts(pair: Pair) -> None:
    """As in vLLM; with neither it is said what to write."""
    assert isinstance(build({"model": pair.draft})[0], SmallLM)
    with pytest.raises(ForetokenError, match="names no method"):
        build({"num_speculative_tokens": 3})


def test_aliases_lead_somewhere() -> None:
    """Every alias is of a method or of some drafter's option, and hides none."""
    assert set(ALIASES.values()) <= set(METHODS) and not set(ALIASES) & set(METHODS)
    options = {f for name in drafter_names() for f in drafter_class(name).__dataclass_fields__}
    assert set(OPTION_ALIASES.values()) <= options


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "pldd"}, "Unknown method 'pldd'. Did you mean 'pld'"),
        ({"method": "autoregresive"}, "Did you mean 'autoregressive'"),
        ({"method": "pld", "prompt_lookup_maxx": 3}, "Did you mean 'prompt_lookup_max'"),
        ({"method": "pld", "model": "x"}, "Unknown option of method 'pld' 'model'"),
        ({"method": "autoregressive", "num_speculative_tokens": 3}, "it has none"),
        ({"method": "pld", "verifier": "targetonly"}, "Did you mean 'target_only'"),
        ({"method": "pld", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "pld", "prompt_lookup_min": 4}, "1 <= min <= max"),
        ({"method": "sps"}, "name it"),
        ({"method": "sps", "model": "folder", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "sps", "model": "folder", "num_assistant_tokens_schedule": "x"}, "heuristic"),
        ({"method": "no_such_module:Thing"}, "package.module:Class"),
        ({"method": "foretoken.tree:Nothing"}, "package.module:Class"),
        ({"method": Nothing(), "num_speculative_tokens": 3}, "would be ignored"),
    ],
    ids=str,
)
def test_wrong_configs(config: dict[str, Any], said: str) -> None:
    """One sentence that names what was given and the nearest thing that exists."""
    with pytest.raises(ForetokenError) as error:
        build(config)
    assert said in str(error.value)


@dataclass(eq=False)
class Outsider(BaseDrafter):
    """A drafter of somebody else's."""

    speed: int = 1
    kinds = frozenset({Kind.INDEPENDENT})


def test_drafters_from_elsewhere() -> None:
    """An object, or a class by its import path; the rule follows from the kinds it makes."""
    own = Outsider(speed=3)
    assert build({"method": own})[0] is own
    drafter, rule, name = build({"method": f"{__name__}:Outsider", "speed": 2})
    assert type(drafter).__name__ == "Outsider" and drafter.speed == 2  # type: ignore[attr-defined]
    assert isinstance(rule, Speculative) and name == f"{__name__}:Outsider"
    assert isinstance(build({"method": own, "verifier": "target_only"})[1], TargetOnly)


def test_a_drafters_file_name_is_its_name() -> None:
    """Each drafter can be built by its file's name, with or without a row in the table."""
    for name in drafter_names():
        assert drafter_class(name).__module__ == f"foretoken.drafters.{name}"
    assert isinstance(build({"method": "prompt_lookup"})[0], PromptLookup)
    assert isinstance(build({"method": "nothing"})[0], Nothing)


def test_rules_are_complete() -> None:
    """Each rule is built by its file's name and says all that a rule has to say of itself."""
    for name in verifier_names():
        rule = verifier_class(name)
        assert rule.__module__ == f"foretoken.verify.{name}" and rule() == rule()
        assert all(type(getattr(rule, claim)) is bool for claim in ("exact", "trees", "sampling"))
        assert rule.kinds and rule.kinds <= set(Kind) - {Kind.PADDING}
        assert re.search(r"\d{4}|TensorRT", rule.source), name


def test_rows_are_complete() -> None:
    """Each row names what exists and says where it comes from."""
    for name, row in METHODS.items():
        assert row.name == name and row.drafter in drafter_names()
        assert row.verifier in verifier_names()
        assert row.length and row.tree and row.paper


def test_a_model_of_another_vocabulary_is_refused(pair: Pair) -> None:
    """Both sizes are named."""
    drafter = SmallLM(pair.draft)
    access = SimpleNamespace(vocab_size=98, max_length=10, slots=1, backend="plain")
    with pytest.raises(ForetokenError, match="97 tokens and the target's 98"):
        drafter.bind(access)  # type: ignore[arg-type]


def test_length_rules() -> None:
    """Fixed stays; the heuristic adds two after whole acceptance, else takes one, down to one."""
    one, other = (Sequence.start([1], SamplingParams()) for _ in range(2))
    fixed, heuristic = Fixed(4), schedule("heuristic", 2)
    fixed.observe(one, 4, 4)
    assert fixed.limit(one) == 4 and isinstance(heuristic, Heuristic)
    wanted = []
    for drafted, accepted in ((2, 2), (4, 3), (3, 0), (0, 0), (2, 0), (1, 0), (1, 1)):
        heuristic.observe(one, drafted, accepted)
        wanted.append(heuristic.limit(one))
    assert wanted == [4, 3, 2, 2, 1, 1, 3]
    assert heuristic.limit(other) == 2


def test_prompt_lookup_takes_the_longest_then_the_latest() -> None:
    """The longest n-gram wins, then its most recent occurrence; short continuations count."""
    drafter = PromptLookup(num_speculative_tokens=3)
    drafter.bind(SimpleNamespace(device="cpu"))  # type: ignore[arg-type]

    def draft(tokens: list[int], limit: int = 3) -> list[int]:
        sequence = Sequence.start(tokens, SamplingParams())
        tree = drafter.draft([sequence], [limit], None)  # type: ignore[arg-type]
        return tree.tokens[0, : tree.counts[0]].tolist()

    assert draft([1, 2, 3, 9, 8, 2, 3, 7, 7, 1, 2, 3]) == [9, 8, 2]  # three beat two
    assert draft([2, 3, 9, 5, 2, 3, 7, 6, 2, 3]) == [7, 6, 2]  # the later one
    assert draft([4, 4]) == [4]  # one token is a draft
    assert draft([1, 2, 3]) == [] and draft([1]) == [] and draft([4, 4], 0) == []
