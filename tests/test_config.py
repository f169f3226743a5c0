"""From a `speculative_config` to a drafter and a rule; what is said of wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from case_names import case_name
from foretoken import LLM, METHODS, ForetokenError, SamplingParams
from foretoken.config import (
    BuiltMethod,
    MethodName,
    auto_parts,
    build,
    needs_of,
    options_of,
    parse,
    unmet_needs,
)
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.length import Confidence, Fixed
from foretoken.methods import Method, Need
from foretoken.models.target import ModelTarget
from foretoken.protocols import BaseDrafter
from foretoken.registry import ALIASES, FIELDS, OPTION_ALIASES, drafter_class, drafter_names
from foretoken.testing import Pair
from foretoken.tree import Kind
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly


def test_no_config_is_plain_decoding() -> None:
    """None, and the method's own name, draft nothing."""
    for config in (None, {"method": "autoregressive"}, {"method": "none"}):
        built = build(config)
        drafter, rule, name = built.drafter, built.verifier, built.name
        assert isinstance(drafter, Nothing) and isinstance(rule, TargetOnly)
        assert name == "autoregressive"


def test_names_of_other_libraries(pair: Pair) -> None:
    """Methods and options go by the names that their users bring."""
    built = build({"method": "ngram", "num_assistant_tokens": 7, "max_matching_ngram_size": 4})
    drafter, name = built.drafter, built.name
    assert isinstance(drafter, PromptLookup) and name == "pld"
    assert (drafter.num_speculative_tokens, drafter.prompt_lookup_max) == (7, 4)
    built = build({"method": "draft_model", "assistant_model": pair.draft})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert isinstance(drafter, SmallLM) and drafter.model is pair.draft and name == "sps"
    assert isinstance(rule, Speculative)


def test_a_model_without_a_method_drafts(pair: Pair) -> None:
    """As in vLLM; with neither it is said what to write."""
    assert isinstance(build({"model": pair.draft}).drafter, SmallLM)
    assert build({"model": "mini-eagle"}).name == "eagle"
    assert build({"model": "mini-draft"}).name == "sps"
    with pytest.raises(ForetokenError, match=r"has \w+ and names no method"):
        build({"num_speculative_tokens": 3})
    with pytest.raises(ForetokenError, match="has nothing and names no method"):
        build({})  # None is who decodes plainly
    assert isinstance(build(None).verifier, TargetOnly)


def test_aliases_lead_somewhere() -> None:
    """Every alias is of a method or of some drafter's option, and hides none."""
    assert set(ALIASES.values()) <= set(METHODS) and not set(ALIASES) & set(METHODS)
    options = {f for name in drafter_names() for f in drafter_class(name).__dataclass_fields__}
    assert set(OPTION_ALIASES.values()) <= options
    assert {field for fields in FIELDS.values() for field in fields} <= options


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "pldd"}, "Unknown method 'pldd'. Did you mean 'pld'"),
        ({"method": "autoregresive"}, "Did you mean 'autoregressive'"),
        ({"method": "non"}, "Unknown method 'non'. Choose one of: auto,"),
        ({"method": "auto", "lenien": True}, "'lenien'. Choose one of: auto, exploration,"),
        ({"method": "pld+suffix", "drafter": 1}, "prompt_lookup_max"),
        ({"method": "pld", "prompt_lookup_maxx": 3}, "Did you mean 'prompt_lookup_max'"),
        ({"method": "pld", "model": "x"}, "Method 'pld' drafts without a model, so 'model' would"),
        ({"method": "none", "draft_model": "x"}, "Method 'none' drafts without a model"),
        ({"method": "pld+suffix", "model": "x"}, "Method 'pld+suffix' drafts without a model"),
        ({"method": "none", "depth": 1}, "Method 'none' has no options; leave 'depth' out."),
        ({"method": "autoregressive", "num_speculative_tokens": 3}, "it has none"),
        ({"method": "pld", "verifier": "targetonly"}, "Did you mean 'target_only'"),
        ({"method": "pld", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "pld", "prompt_lookup_min": 4}, "1 <= min <= max"),
        ({"method": "sps"}, "name it"),
        ({"method": "sps", "model": "folder", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "sps", "model": "folder", "num_assistant_tokens_schedule": "x"}, "heuristic"),
        ({"method": "no_such_module:Thing"}, "package.module:Class"),
        ({"method": "foretoken.tree:Nothing"}, "package.module:Class"),
        ({"method": "sys:exit"}, "Drafter 'sys:exit' is no class; give package.module:Class."),
        ({"method": "builtins:int"}, "Method 'builtins:int' makes 0; give a name"),
        ({"method": ":"}, "Drafter ':' can't be imported"),
        ({"method": torch.zeros(2)}, "The method is a value of type Tensor; give a name"),
        ({"method": ""}, "Unknown method ''."),
        ({"method": "pld", "verifier": torch.zeros(2)}, "Verifier Tensor doesn't declare"),
        ({"method": "pld", "verifier": ":"}, "Verifier ':' can't be imported"),
        ({"method": "pld", "verifier": "sys:exit"}, "Verifier 'sys:exit' is no class"),
        ({"method": "pld", 1.5: 3}, "speculative_config has the key 1.5; the names of options"),
        ({"method": "pld+suffix", "pld": {1: 2}}, "pld of speculative_config has the key 1;"),
        ({"tuned": {1: 2}}, "tuned is {1: 2}; give a file's path, or its name."),
        ({"method": "auto:pld,suffix", "names": ["a"]}, "so option names would be ignored"),
        ({"method": "auto", "lenient": True}, "so option lenient would be ignored"),
        ({"method": "pld+sps", "drafters": []}, "so option drafters would be ignored"),
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
    trees = False
    kinds = frozenset({Kind.INDEPENDENT})


def test_drafters_from_elsewhere() -> None:
    """An object, or a class by its import path; the rule follows from the kinds it makes."""
    own = Outsider(speed=3)
    assert build({"method": own}).drafter is own
    built = build({"method": f"{__name__}:Outsider", "speed": 2})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert type(drafter).__name__ == "Outsider" and drafter.speed == 2  # type: ignore[attr-defined]
    assert isinstance(rule, Speculative) and name == f"{__name__}:Outsider"
    assert isinstance(build({"method": own, "verifier": "target_only"}).verifier, TargetOnly)
    own.trees = True
    assert isinstance(build({"method": own}).verifier, MultiCandidate)


class Bare:
    """A rule that derives from nothing and declares a part only."""

    exact = trees = sampling = True
    kinds = frozenset({Kind.CHOSEN})
    source = "nowhere"


def test_rules_from_elsewhere() -> None:
    """An object is taken as it is; one that lacks a declaration is told which, and what to do."""
    rule = TargetOnly()
    assert build({"method": "pld", "verifier": rule}).verifier is rule
    with pytest.raises(
        ForetokenError,
        match="Bare doesn't declare draws, reads_logits, compares, largest_vocab; derive",
    ):
        build({"method": "pld", "verifier": f"{__name__}:Bare"})


def test_a_drafters_file_name_is_its_name() -> None:
    """A drafter can be built by its file's name, with or without a row in the table."""
    assert isinstance(build({"method": "prompt_lookup"}).drafter, PromptLookup)
    assert isinstance(build({"method": "nothing"}).drafter, Nothing)


class Wrapped(ModelTarget):
    """A target that counts how often it scores."""

    def __init__(self, target: ModelTarget, every: int) -> None:
        super().__init__(target.model, target.slots, target.max_length)
        self.every, self.scored = every, 0

    def score(self, *arguments: Any) -> Any:
        self.scored += self.every
        return super().score(*arguments)


@dataclass
class Wrapper:
    """What wraps it."""

    every: int = 1

    levels: ClassVar[str] = "a"

    def __call__(self, target: ModelTarget) -> ModelTarget:
        return Wrapped(target, self.every)


@pytest.fixture
def wrapping(monkeypatch: pytest.MonkeyPatch) -> str:
    """A method that wraps the target."""
    row = Method(name="own", drafter="nothing", paper="–", target=f"{__name__}:Wrapper")
    monkeypatch.setitem(METHODS, "own", row)
    return row.name


def test_a_method_that_wraps_the_target(wrapping: str, pair: Pair) -> None:
    """Its options are the wrapper's; the engine scores with the wrapped target; text is plain's."""
    built = build({"method": wrapping, "every": 2})
    assert isinstance(built.drafter, Nothing) and isinstance(built.verifier, TargetOnly)
    assert built.wrap_target == Wrapper(2) and built.name == wrapping
    assert options_of(wrapping) == {"every"}
    with pytest.raises(ForetokenError, match="Did you mean 'every'"):
        build({"method": wrapping, "evry": 2})
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    llm = LLM(pair.target, speculative_config={"method": wrapping, "every": 2})
    [own], [plain] = (each.generate([[1, 2, 3]], params) for each in (llm, LLM(pair.target)))
    assert own.outputs[0].token_ids == plain.outputs[0].token_ids
    assert isinstance(llm.engine.target, Wrapped) and llm.engine.target.scored == 2 * 5


@pytest.mark.parametrize(
    ("method", "others"),
    [
        ("own+pld", "'pld'"),
        ("pld|own", "'pld'"),
        ("pld+own+sam", "'pld', 'sam'"),
        ("auto:own", "'auto'"),
        ("auto:pld,own", "'pld'"),
        ("online:own", "'online'"),
    ],
)
def test_what_wraps_the_target_stands_alone(wrapping: str, method: str, others: str) -> None:
    """One sentence names the method, what it was joined with, and the remedy."""
    with pytest.raises(ForetokenError) as error:
        build({"method": method})
    assert str(error.value) == (
        "Method 'own' wraps the target and drafts nothing, so it can't be joined with "
        f"{others}; use it alone."
    )


def test_names_are_taken_apart() -> None:
    """The drafter that is made of the parts', and the parts; a colon may be an import path's."""
    assert parse("pld") == MethodName(None, ("pld",))
    assert parse("pld + sps") == MethodName("either", ("pld", "sps"))
    assert parse("pld|sps|sam") == MethodName("merged", ("pld", "sps", "sam"))
    assert parse("auto") == MethodName("auto", ())
    assert parse("auto:pld,sps") == parse("auto:pld+sps") == MethodName("auto", ("pld", "sps"))
    assert parse("online") == parse("online:sps") == MethodName("online", ("sps",))
    assert parse("package.module:Class") == MethodName(None, ("package.module:Class",))


def test_needs_of_joined_methods() -> None:
    """All that any part needs; `auto` takes only what can be built, so it needs nothing."""
    assert needs_of("pld+sps") is needs_of("small_lm") is needs_of("online") is Need.DRAFT_MODEL
    assert needs_of("auto:medusa+rest") == Need.WEIGHTS | Need.DATASTORE
    assert needs_of("auto") is needs_of("pld|sam") is Need.NOTHING


def test_options_meet_needs_by_any_of_their_names() -> None:
    """Also where an option is given to one part alone."""
    assert unmet_needs({"method": "sps"}) is Need.DRAFT_MODEL
    assert unmet_needs({"method": "rest", "model": "x"}) is Need.DATASTORE
    for option in ("model", "draft_model", "assistant_model", "models"):
        assert unmet_needs({"method": "pld+cs_drafting", option: "x"}) is Need.NOTHING
    assert unmet_needs({"method": "pld+sps", "sps": {"model": "x"}}) is Need.NOTHING


# --- hostile values ---

WRONG_TYPES = ["four", 1.5, None, True, [], {}, float("nan"), float("inf"), b"x", object(), int]
HUGE = [-1, -0.5, 0, 10**9, 10**30, 1e300, [-1], [[]], [[-1]], [10**9], [[10**9]]]
OF_ANY_TYPE = {"model", "models", "checkpoint", "tokenizer", "target_tokenizer"}
OF_ANY_TYPE |= {"drafters", "names", "lenient"}  # set by the name of a joined method
NEEDY = Need.WEIGHTS | Need.DATASTORE


@pytest.mark.parametrize("name", [m for m in METHODS if not needs_of(m) & NEEDY])
def test_hostile_values_of_options(pair: Pair, name: str) -> None:
    """Each option of each method: what is built has the declared type, the rest is one sentence
    that names the option."""
    base = {"method": name} | ({"model": pair.draft} if needs_of(name) else {})
    for option in options_of(name) - OF_ANY_TYPE:
        for value in [*WRONG_TYPES, *HUGE]:
            try:
                built = build({**base, option: value})
            except ForetokenError as error:
                assert "\n" not in str(error) and "can't be built" not in str(error)
                continue
            assert not isinstance(value, type)
            made = built.wrap_target or built.drafter
            kept = getattr(made, option, value)
            assert type(kept) in (int, float, str, bool, tuple, type(None), type(value))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "pld", "num_speculative_tokens": 10**9}, "from 1 to 4096"),
        ({"method": "pld", "prompt_lookup_max": 10**9}, "from 1 to 4096"),
        ({"method": "pld", "max_cached_tokens": -1}, "max_cached_tokens is -1"),
        ({"method": "llma", "num_speculative_tokens": 10**30}, "from 1 to 4096"),
        ({"method": "sps", "model": "m", "num_speculative_tokens": -1}, "at least 1"),
        ({"method": "sps", "model": "m", "num_speculative_tokens": 10**9}, "from 1 to 4096"),
        ({"method": "bild", "model": "m", "assistant_confidence_threshold": 1.5}, "from 0 to 1"),
        ({"method": "specinfer", "model": "m", "widths": [4, -1]}, "widths is -1"),
        ({"method": "specinfer", "model": "m", "widths": [10**5]}, "widths is 100000"),
        ({"method": "specinfer", "model": "m", "widths": [100, 100]}, "nodes_of_widths is 10100"),
        ({"method": "sequoia", "model": "m", "tree_nodes": 10**9}, "tree_nodes is 10000000"),
        ({"method": "sequoia", "model": "m", "tree_depth": -1}, "tree_depth is -1"),
        ({"method": "sequoia", "model": "m", "acceptance": [2.0]}, "acceptance is 2.0"),
        ({"method": "cs_drafting", "model": "m", "k_matrix": [[5000, 0], [0, 5]]}, "k_matrix"),
        ({"method": "suffix", "max_children": -1}, "max_children is -1"),
        ({"method": "suffix", "max_tree_depth": 10**9}, "from 2 to 4096"),
        ({"method": "suffix", "min_token_prob": 7}, "from 0 to 1"),
        ({"method": "sam", "num_speculative_tokens": 10**9}, "from 1 to 4096"),
        ({"method": "swift", "max_score": -1}, "max_score is -1"),
        ({"method": "swift", "max_opt_iter": -1}, "max_opt_iter is -1"),
        ({"method": "lookahead", "window": 10**9}, r"\(window \+ guesses\)"),
        ({"method": "jacobi", "num_speculative_tokens": 10**9}, "from 1 to 4096"),
        ({"method": "gauss_seidel", "block_size": 10**9}, "block_size is 1000000000"),
        ({"method": "token_recycling", "num_candidates": 10**9}, "from 1 to 256"),
        ({"method": "token_recycling", "level_sizes": [10**9]}, "level_sizes is 1000000000"),
        ({"method": "pld+sps", "model": "m", "rate": 2}, "rate is 2.0"),
        ({"method": "pld+sps", "model": "m", "level_cost": -1}, "level_cost is -1.0"),
        ({"method": "auto:pld", "num_speculative_tokens": 10**9}, "from 1 to 4096"),
        ({"method": "medusa", "model": "mini-medusa", "tree_nodes": 0}, "tree_nodes is 0"),
        ({"method": "eagle", "model": "mini-eagle", "tree": [[]]}, r"tree is \[\(\)\]"),
        ({"method": "eagle", "model": "mini-eagle", "tree": [[-1]]}, "none of them empty"),
        ({"method": "eagle2", "model": "mini-eagle", "depth": 0}, "depth is 0"),
        ({"method": "eagle2", "model": "mini-eagle", "top_k": 10**9}, "top_k is 1000000000"),
        ({"method": "eagle3", "model": "mini-eagle3", "tree_nodes": -1}, "tree_nodes is -1"),
        ({"method": "mtp", "model": "mini-mtp", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "dflash", "model": "mini-dflash", "num_speculative_tokens": 0}, "from 1"),
        ({"method": "dflash_tree", "model": "mini-dflash", "top_k": -1}, "top_k is -1"),
        ({"method": "ppd", "num_guesses": 10**9}, "it must be 1 to 32"),
        (
            {"method": "sps", "model": "m", "num_assistant_tokens_schedule": Speculative},
            "LengthRule",
        ),
    ],
    ids=str,
)
def test_options_out_of_range(config: dict[str, Any], said: str) -> None:
    """One sentence with the option, the value and the range, before anything is loaded."""
    with pytest.raises(ForetokenError, match=said):
        build(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("pld", "speculative_config is 'pld'; give a mapping"),
        (5, "speculative_config is 5"),
        ([{"method": "pld"}], "speculative_config is"),
        ({"method": PromptLookup}, "The method is the class PromptLookup; give a name"),
        ({"method": 5}, "The method is 5"),
        ({"method": ["pld"]}, r"The method is \['pld'\]"),
        ({"method": "pld", "verifier": TargetOnly}, "TargetOnly is a class; make an object"),
        ({"method": "pld", "verifier": 5}, "Verifier int doesn't declare"),
    ],
    ids=str,
)
def test_what_is_no_config(config: Any, said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        build(config)


@pytest.mark.parametrize("tokenizer", [5, [], object(), int, 1.5], ids=case_name)
def test_what_is_no_tokenizer(pair: Pair, tokenizer: Any) -> None:
    """Neither for the target nor for a draft model."""
    with pytest.raises(ForetokenError, match=r"^tokenizer is .*; give a loaded tokenizer"):
        LLM(pair.target, tokenizer=tokenizer)
    config = {"method": "tli", "model": pair.draft, "tokenizer": tokenizer}
    with pytest.raises(ForetokenError, match=r"^tokenizer is .*; give a loaded tokenizer"):
        LLM(pair.target, speculative_config=config)


def test_sps_ends_early_in_auto() -> None:
    """Where it is unsure, unless the config says when; alone it drafts as many as asked for."""

    def rule(**given: object) -> object:
        built = build({"model": "mini-draft", **given}).drafter
        return (built if isinstance(built, SmallLM) else built.drafters[-1]).length  # type: ignore[attr-defined]

    assert rule(method="auto:pld,sps") == Confidence(16, assistant_confidence_threshold=0.7)
    assert rule(method="auto:pld,sps", sps={"assistant_confidence_threshold": 0.5,
        "num_assistant_tokens_schedule": "confidence"}) == Confidence(16, 0.5)  # fmt: skip
    assert rule(method="auto:pld,sps", num_assistant_tokens_schedule="constant") == Fixed(16)
    assert rule(method="sps") == Fixed(4)
    own = Fixed(2)  # has a length, which takes the place of a row's; `auto` bounds all drafts
    assert rule(method="bild", num_assistant_tokens_schedule=own) is own
    bounded = {"num_speculative_tokens": 4, "num_assistant_tokens_schedule": own}
    assert rule(method="auto:pld,sps", **bounded) is own


def test_options_of_parts_that_are_called_like_options(pair: Pair) -> None:
    """`draft_model` is a method by vLLM's name and an option by another; a part's length is its
    own."""
    for more in ({"draft_model": pair.draft}, {"model": pair.draft}):
        built: Any = build({"method": "ngram+draft_model", **more}).drafter
        assert built.drafters[1].model is pair.draft
    own = {"draft_model": {"num_speculative_tokens": 3}}
    built = build({"method": "ngram+draft_model", "model": pair.draft, **own}).drafter
    assert built.drafters[1].model is pair.draft and built.drafters[1].nodes == 3
    for method in ("pld+sps", "auto:pld,sps"):
        config = {"method": method, "model": pair.draft, "prompt_lookup_num_tokens": 10}
        lookup, small = (build(config).drafter).drafters  # type: ignore[attr-defined]
        assert lookup.num_speculative_tokens == 10
        assert small.nodes == (4 if method == "pld+sps" else 16)


def test_auto_takes_what_the_options_meet() -> None:
    """By any of their names."""
    assert auto_parts("auto", ()) == ["pld", "suffix"]
    assert auto_parts("auto", ["assistant_model"]) == ["sps", "pld", "suffix"]
    assert auto_parts("auto:pld+sam", ()) == ["pld", "sam"]


def test_auto_leaves_a_length_to_a_checkpoint_that_has_one() -> None:
    built: Any = build({"method": "auto:pld,dflash", "model": "mini-dflash"}).drafter
    assert [part.num_speculative_tokens for part in built.drafters] == [16, None]


def test_a_drafter_that_is_there_learns(pair: Pair) -> None:
    """Plain `online` takes one, where a method that names its parts doesn't."""
    own = SmallLM(model=pair.draft)
    built: Any = build({"method": "online", "drafters": [own]}).drafter
    assert list(built.drafters) == [own]


def test_auto_leaves_a_trees_depth_alone() -> None:
    """But where it is given for the tree itself."""
    config: dict[str, Any] = {"method": "auto:suffix,eagle3", "model": "mini-eagle3"}
    depths = [
        build({**config, **more}).drafter.drafters[1].depth  # type: ignore[attr-defined]
        for more in (
            {},
            {"num_speculative_tokens": 8},
            {"depth": 4},
            {"eagle3": {"num_speculative_tokens": 5}},
        )
    ]
    assert depths == [6, 6, 4, 5]


RULE = {"num_assistant_tokens_schedule": Fixed(2)}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "mcsd", "num_speculative_nodes": 4}, "tree_nodes is 4 and needs acceptance"),
        ({"method": "mcsd", "tree_depth": 2}, "tree_depth is 2 and needs acceptance"),
        ({"method": "sequoia", "widths": [2], "acceptance": [0.5]}, "give one of them"),
        ({"method": "sequoia", "widths": [2], "tree_nodes": 4}, "tree_nodes is 4 and needs"),
        ({"num_speculative_tokens": 8, **RULE}, "num_speculative_tokens is 8 and would be ignored"),
        ({"method": "pld+sps", "num_assistant_tokens": 8, **RULE}, "is 8 and would be ignored"),
        ({"method": "pld+sps", "sps": {"num_speculative_tokens": 8}, **RULE}, "would be ignored"),
        ({"method": "pld+sps", "weight": 0}, "weight is 0"),
        ({"method": "sps", "prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens"),
    ],
)
def test_options_without_a_meaning(config: dict[str, Any], said: str, pair: Pair) -> None:
    """Are refused, not left out."""
    with pytest.raises(ForetokenError, match=said):
        build({"model": pair.draft, **config})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"method": "pld", "num_speculative_tokens": 5, "prompt_lookup_num_tokens": 3},
            "num_speculative_tokens and prompt_lookup_num_tokens are two names of one option of "
            "method 'pld'; give it once, as num_speculative_tokens.",
        ),
        (
            {"method": "sps", "draft_model": "a", "model": "b"},
            "draft_model and model are two names of one option of method 'sps'; give it once, as "
            "model.",
        ),
        (
            {"method": "sps", "assistant_model": "a", "draft_model": "b"},
            "assistant_model and draft_model are two names of one option of method 'sps'; give it "
            "once, as model.",
        ),
        (
            {"method": "eagle3", "model": "m", "num_speculative_tokens": 5, "depth": 4},
            "num_speculative_tokens and depth are two names of one option of method 'eagle3'; "
            "give it once, as depth.",
        ),
        (
            {"method": "pld+suffix", "num_speculative_tokens": 5, "num_assistant_tokens": 3},
            "num_speculative_tokens and num_assistant_tokens are two names of one option of "
            "method 'pld'; give it once, as num_speculative_tokens.",
        ),
        (
            {"method": "pld+sps", "model": "m", "sps": {"model": "a", "assistant_model": "b"}},
            "model and assistant_model are two names of one option of method 'sps'; give it once, "
            "as model.",
        ),
    ],
    ids=str,
)
def test_two_names_of_one_option(config: dict[str, Any], said: str) -> None:
    """Are refused in either order, where the last one won."""
    for given in (config, dict(reversed(config.items()))):
        with pytest.raises(ForetokenError, match="two names of one option") as error:
            build(given)
    with pytest.raises(ForetokenError) as error:
        build(config)
    assert str(error.value) == said


def test_two_names_of_one_value(pair: Pair) -> None:
    """Say the same."""
    built = build({"method": "pld", "num_speculative_tokens": 3, "prompt_lookup_num_tokens": 3})
    assert built.drafter.nodes == 3
    config = {"method": "sps", "model": pair.draft, "assistant_model": pair.draft}
    assert build(config).drafter.model is pair.draft  # type: ignore[attr-defined]


def test_a_parts_own_option_wins_by_any_name(pair: Pair) -> None:
    """Over what all parts are given, and over what a method's row sets; and an option that a part
    has by its name over one that stands for it elsewhere."""
    config: dict[str, Any] = {"method": "auto:pld,sps", "model": pair.draft}
    config |= {"num_assistant_tokens": 6, "sps": {"num_speculative_tokens": 3}}
    lookup, small = build(config).drafter.drafters  # type: ignore[attr-defined]
    assert (lookup.nodes, small.nodes) == (6, 3)
    config = {"method": "llma+suffix", "num_assistant_tokens": 6, "llma": {}}
    assert build(config).drafter.drafters[0].nodes == 6  # type: ignore[attr-defined]
    own = {**config, "llma": {"num_speculative_tokens": 3}}
    assert build(own).drafter.drafters[0].nodes == 3  # type: ignore[attr-defined]
    sizes = {"num_speculative_tokens": 4, "num_speculative_nodes": 30}
    for given in (sizes, dict(reversed(sizes.items()))):
        small_tree = {"method": "pld+sequoia", "model": pair.draft, **given}
        lookup, tree = build(small_tree).drafter.drafters  # type: ignore[attr-defined]
        assert (lookup.nodes, tree.tree_nodes) == (4, 30)


def test_levels_of_a_drafter_and_of_what_wraps_the_target() -> None:
    """Both are needed."""
    drafter: Any = SimpleNamespace(wants=SimpleNamespace(levels="ac"))
    wrapper: Any = SimpleNamespace(levels="ae")
    assert BuiltMethod(drafter, TargetOnly(), "it").levels == {*"ac"}
    assert BuiltMethod(drafter, TargetOnly(), "it", wrapper).levels == {*"ace"}


def test_a_target_that_lacks_what_its_wrapper_needs() -> None:
    drafter: Any = SimpleNamespace(wants=SimpleNamespace(levels="a"))
    wrapper: Any = SimpleNamespace(levels="ae")
    target: Any = SimpleNamespace(levels=frozenset("ab"))
    with pytest.raises(ForetokenError, match=r"^Method it needs \(e\) running any subset"):
        BuiltMethod(drafter, TargetOnly(), "it", wrapper).wrapped(target)
