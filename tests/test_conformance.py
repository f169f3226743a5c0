"""Every drafter and every rule that the package finds is held to what an exact method claims.

A new drafter or rule is in these tests by being there. What a drafter needs in order to be built
comes from `NEEDS`, by the name of its field.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from copy import deepcopy
from functools import cache
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakSet

import pytest
import torch

from foretoken import METHODS, SamplingParams
from foretoken.config import build, create_drafter, parse
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.online import Online
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.checks import check_pairing
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.lookup.datastore import build as build_datastore
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Verifier
from foretoken.registry import build_verifier, drafter_class, drafter_names
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.step import prefill, step
from foretoken.testing import (
    ByteTokenizer,
    Oracle,
    Pair,
    Scripted,
    automaton,
    check_distribution,
    check_greedy,
    check_independence,
    check_seeded,
    logits_after,
    native,
    related,
    serve,
    table_pair,
    tiny_pair,
    tiny_transformers,
)
from foretoken.testing.checks import SAMPLED, Wrap, texts
from foretoken.trainable import small_lm as trainable_lm
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from held import held_bytes
from pieces import two_tokenizers

Make = Callable[[Pair], Drafter]


@cache
def some_texts(vocab_size: int) -> TemporaryDirectory[str]:
    """A datastore of this vocabulary, there until the tests end."""
    folder, rng = TemporaryDirectory(), Random(vocab_size)
    build_datastore(
        folder.name,
        {"vocab_size": vocab_size},
        [rng.choices(range(vocab_size), k=60) for _ in range(100)],
    )
    return folder


@cache
def saved(pair: Pair) -> TemporaryDirectory[str]:
    """A small model as a checkpoint."""
    folder = TemporaryDirectory()
    model = pair.transformers or tiny_transformers(pair.target.vocab_size)
    related(model, 0.02).save_pretrained(folder.name)
    return folder


NEEDS: dict[str, Callable[[Pair], Any]] = {
    "model": lambda pair: pair.draft,
    "small_lm.model": lambda pair: pair.draft,  # which may be trained and needn't be
    "drafters": lambda pair: [PromptLookup(3), SmallLM(pair.draft, 1)],
    "tokenizer": lambda pair: two_tokenizers(pair.target.vocab_size)[1],
    "target_tokenizer": lambda pair: two_tokenizers(pair.target.vocab_size)[0],
    # One that is asked before the choice and one after it; both copy, for what a seed writes by
    # drawn drafts depends on the company here (see test_auto).
    "auto.drafters": lambda pair: [PromptLookup(3), PromptLookup(8, 1)],
    "auto.names": lambda pair: ["cheap", "dear"],
    "auto.costs": lambda pair: CostModel(
        {1: 1.0, 64: 1.5}, {"cheap": DraftCost(call=0.01), "dear": DraftCost(level=0.1)}, fixed=True
    ),
    "online.drafters": lambda pair: [SmallLM(saved(pair).name, 4)],
    "datastore": lambda pair: some_texts(pair.target.vocab_size).name,
    "skip": lambda pair: (1, 2),
    "checkpoint": lambda pair: pair.transformers or tiny_transformers(pair.target.vocab_size),
}
"""Field of a drafter, or drafter and field -> what it is given in these tests; see `given`."""

SETTINGS: dict[str, dict[str, Any]] = {
    "num_speculative_tokens": {"distribution": 2},
    # Else drafts follow from others' texts: see test_copying.
    "max_cached_tokens": {"": 0, "memory": 30},
    "max_cached_words": {"memory": 20},
    "every": {"memory": 1},
    "versions": {"memory": 1},
    "widths": {"distribution": (2, 1)},
    "level_sizes": {"distribution": (2, 1)},
    "tree": {"distribution": ((0,), (1,), (0, 0))},
    # Else drafts follow from the machine's speed: see drafters/shared/test_planned_tree.py.
    **{
        f"{name}.tree": {"": "paper"}
        for name in ("medusa", "hydra", "hydra_plus", "mlp_speculator")
    },
    **{
        f"{name}.tree": dict.fromkeys(("", "distribution", "memory"), "paper")
        for name in ("eagle2", "eagle3", "lookahead", "small_tree", "token_recycling")
    },
    "depth": {"distribution": 2},
    "top_k": {"distribution": 2},
    "tree_nodes": {"distribution": 3},
    "small_tree.tree_nodes": {"distribution": None},  # as it has no acceptance here
    # As the tree is given there.
    **{
        f"{name}.tree_nodes": {"distribution": None}
        for name in ("medusa", "hydra", "hydra_plus", "mlp_speculator")
    },
    "context_window": {"": 4},
    "k_matrix": {"": ((4, 2), (0, 3)), "distribution": ((1, 1), (0, 1))},
}
"""Field of a drafter, or drafter and field -> its value where outcomes are enumerated, to keep them
few; under "memory": where its memory is to be full soon; under "": in the other tests."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"hydra_plus": ("hydra", {"prefix": {}})}
"""Further shapes of what is trained, under names of their own in these tests: file name, shape."""

DEEP = {"dflash", "dflash_tree", "dflash2", "dflash2_tree", "peagle"}
"""Drafters of four layers or five, of which two are enough here."""

WRAPPING = [row.name for row in METHODS.values() if row.target]
"""Methods that wrap the target and draft nothing; they are in these tests like drafters."""

FOR_ENCODER_DECODERS = {"masked_block"}
"""Drafters that no decoder-only target can have; their own files compare texts."""
NAMES = [name for name in drafter_names() if name not in FOR_ENCODER_DECODERS]
NAMES += [*VARIANTS, *WRAPPING]

LEARNS: set[str] = {
    "auto",
    "either",
    "jacobi",
    "lookahead",
    "paced",
    "parallel_prompt",
    "swift",
    "token_recycling",
}
"""Drafters whose drafts depend on more than the text: what they saw before counts."""

SHARES: set[str] = {"auto", "online", "swift", "token_recycling"}
"""Drafters that can't be kept from learning of other requests, or whose drafts depend on the
company: with them, a rule whose draws depend on the draft keeps the distribution, but not the
tokens that a request gets when it is alone."""

PROMPTS = [
    [5, 9, 2, 5, 9, 2, 5],
    [40, 3, 3, 17, 40, 3],
    [11] * 3,
    [60, 61, 62, 63, 60, 61, 62],
    [1, 2],
    [7],
    [20, 21, 22, 20, 21, 22, 20, 21],
    [90, 4, 90, 4, 90],
]
TOKENS = 24


def given(name: str, pair: Pair) -> dict[str, Any]:
    """The options without which a drafter can't be built; what is to be trained is random."""
    cls = class_of(name)
    fields = [field.name for field in dataclasses.fields(cls)]
    own = {field: NEEDS.get(f"{name}.{field}", NEEDS.get(field)) for field in fields}
    options: dict[str, Any] = {field: give(pair) for field, give in own.items() if give}
    if hasattr(cls, "module") and f"{name}.model" not in NEEDS:
        options["model"] = untrained(cls.module, pair, name)
    return options


@cache
def class_of(name: str) -> type[Any]:
    return drafter_class(VARIANTS.get(name, (name, {}))[0])


@cache
def untrained(module: type[Trained], pair: Pair, name: str) -> Trained:
    """A drafter's weights for this target, none of them 0."""
    shape = {"num_layers": 2} if name in DEEP else VARIANTS.get(name, (name, {}))[1]
    made = module(Facts.of(pair.target), **shape).to(pair.target.dtype)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            noise = torch.randn(weight.shape, generator=random, dtype=torch.float64)
            weight.copy_(weight * 0.5 + 0.3 * noise)
    return made.eval().requires_grad_(False)


def make_drafter(name: str, pair: Pair, purpose: str = "") -> Drafter:
    """A new drafter by file name, or a variant, with what it needs; or a method's that wraps the
    target."""
    if name in WRAPPING:
        return build({"method": name}).drafter
    options = {**given(name, pair), **settings(name, purpose)}
    return create_drafter(class_of(name), name, options)


@cache
def settings(name: str, purpose: str) -> Mapping[str, Any]:
    """A drafter's options for a purpose."""
    fields = [field.name for field in dataclasses.fields(class_of(name))]
    own = {f: {**SETTINGS.get(f, {}), **SETTINGS.get(f"{name}.{f}", {})} for f in fields}
    return {f: values[purpose] for f, values in own.items() if purpose in values}


def wrap_of(name: str) -> Wrap | None:
    """What makes the target that the drafter is served with, where it isn't a plain one."""
    return build({"method": name}).wrap_target if name in WRAPPING else None


@cache
def models(kind: str) -> Pair:
    """Target and draft model, both native or both through transformers' own code."""
    model = tiny_transformers()
    if kind == "native":
        return tiny_pair()
    hf = pytest.importorskip("foretoken.models.hf.adapter", reason="the adapter is not there")
    return Pair(hf.HFModel(model), hf.HFModel(related(model, 0.02)), model)


@cache
def plainly(setting: str) -> list[list[int]]:
    """What plain decoding writes after each prompt alone, by the name of the parameters."""
    model, params = models("native").target, PLAINLY[setting]
    return [texts(serve(model, Nothing(), TargetOnly(), [p], params))[0] for p in PROMPTS]


@cache
def generated(prompt: tuple[int, ...], tokens: int = TOKENS) -> list[int]:
    """What transformers' own generate writes greedily."""
    model = models("native").transformers
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


RULES = sorted({row.verifier for row in METHODS.values()})
ALIKE_ON_CHAINS = ("speculative", "multi_candidate", "k_seq")
"""Rules that are one on chains: verify/shared/test_chains.py holds the others to the first. A
drafter without trees has the first of them that takes its drafts."""
EVERY_RULE = "small_lm"
"""Without trees, and yet with all of them: else none here would go through `k_seq`."""


def cells() -> Iterator[Any]:
    """Every drafter with every exact rule of the method table that takes what it makes, and of
    those that are one for it with one.

    All rules, those without a method too, are held to the distribution in test_distribution and
    test_verify_exact."""
    target = ModelTarget(models("native").target, 1, 8)
    for name in NAMES:
        drafter = make_drafter(name, models("native"))
        fitting = [rule for rule in RULES if fits(target, drafter, build_verifier(rule))]
        if not branches(name) and name != EVERY_RULE:
            same = [rule for rule in ALIKE_ON_CHAINS if rule in fitting]
            fitting = [rule for rule in fitting if rule not in same[1:]]
        for rule in fitting:
            yield pytest.param(name, build_verifier(rule), id=f"{name}-{rule}")


def fits(target: ModelTarget, drafter: Drafter, rule: Verifier) -> bool:
    """Whether a rule is exact and takes what a drafter makes."""
    try:
        check_pairing(target, drafter, rule)
    except ForetokenError:
        return False
    return rule.exact


@cache
def branches(name: str) -> bool:
    """Whether a drafter may make trees in these tests."""
    return any(make_drafter(name, models("native"), use).trees for use in ("", "distribution"))


CELLS = list(cells())
WITH_TARGET_ONLY = [cell for cell in CELLS if cell.values[1] == TargetOnly()]
CHAINS = [name for name in NAMES if not branches(name)]


def one_rule(cells: Seq[Any], *names: str) -> list[Any]:
    """Of each drafter's cells the one whose rule comes first in `names`."""
    rules = [build_verifier(name) for name in names]
    first: dict[str, Any] = {}
    for cell in sorted(cells, key=lambda cell: rules.index(cell.values[1])):
        first.setdefault(cell.values[0], cell)
    return list(first.values())


each_cell = pytest.mark.parametrize(("name", "rule"), CELLS)
REPEATABLE = [c for c in CELLS if c.values[0] not in SHARES or c in WITH_TARGET_ONLY]
OF_EACH = one_rule(REPEATABLE, *ALIKE_ON_CHAINS, "target_only")
"""Each drafter with one rule that keeps a seed's tokens."""
WITH_SLOW_RULES = [
    c if c in OF_EACH else pytest.param(*c.values, id=c.id, marks=pytest.mark.slow)
    for c in REPEATABLE
]
"""Rules have no memory of requests: of a drafter's rules all but one are for `make test-all`."""
each_repeatable_cell = pytest.mark.parametrize(("name", "rule"), WITH_SLOW_RULES)
# At temperature 0 every rule looks for the longest match: on chains one of them is enough.
each_greedy_cell = pytest.mark.parametrize(
    ("name", "rule"),
    [c for c in CELLS if c.values[0] not in CHAINS]
    + one_rule([c for c in CELLS if c.values[0] in CHAINS], *ALIKE_ON_CHAINS, "target_only"),
)


def needs_only(name: str, levels: frozenset[str], pair: Pair) -> bool:
    if name in WRAPPING:
        return build({"method": name}).levels <= levels
    return set(make_drafter(name, pair).wants.levels) <= levels


def test_every_drafter_has_a_cell() -> None:
    """No drafter is left without an exact rule, and no exact rule without a drafter."""
    assert {p.values[0] for p in CELLS} == set(NAMES)
    exact = {name for name in RULES if build_verifier(name).exact}
    assert {type(p.values[1]) for p in CELLS} == {type(build_verifier(name)) for name in exact}


@pytest.mark.parametrize("name", [name for name in CHAINS if name not in WRAPPING])
@pytest.mark.parametrize("params", [SAMPLED, dataclasses.replace(SAMPLED, temperature=0)])
def test_a_drafter_without_trees_drafts_chains(name: str, params: SamplingParams) -> None:
    """Ragged or not: so rules that are one on chains are one for it."""
    pair, rule = models("native"), next(p.values[1] for p in CELLS if p.values[0] == name)
    for purpose in ("", "distribution"):
        drafter = make_drafter(name, pair, purpose)
        sequences = [Sequence.start(p, params, seed=i) for i, p in enumerate(PROMPTS[:3])]
        target = _begun(pair, drafter, sequences)
        for budgets in ([6, 2, 0], [1, 6, 6], [6] * 3, [6] * 3):
            assert step(target, drafter, rule, sequences, budgets)[0].tree.is_chain


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WRAPPING])
def test_states_of_inner_layers_are_declared(name: str) -> None:
    """As level d: so a target that lacks them is refused when it is loaded."""
    pair = models("native")
    drafter = make_drafter(name, pair)
    ModelTarget(pair.target, 1, 64).bind(drafter)
    assert set(drafter.wants.hidden) <= {-1} or "d" in drafter.wants.levels


@each_greedy_cell
@pytest.mark.parametrize(
    ("kind", "batch"), [("native", 1), ("native", 3), ("native", 8), ("adapter", 3)]
)
def test_greedy_is_transformers_generate(name: str, rule: Verifier, kind: str, batch: int) -> None:
    """Greedy tokens are those of transformers' `generate`, whatever the batch and the target."""
    pair = models(kind)
    if not needs_only(name, pair.target.levels, pair):
        pytest.skip("this target can't give what the drafter needs")
    prompts = PROMPTS[: max(2, batch)]
    check_greedy(
        lambda p: make_drafter(name, p),
        rule,
        pair,
        slots=batch,
        prompts=prompts,
        tokens=TOKENS,
        expected=[generated(tuple(prompt)) for prompt in prompts],
        wrap=wrap_of(name),
    )


@pytest.mark.parametrize(("name", "rule"), WITH_TARGET_ONLY)
@pytest.mark.parametrize("batch", [1, 8])
def test_sampled_text_is_plain_decodings(name: str, rule: Verifier, batch: int) -> None:
    """Chosen drafts under target-only sampling: the very tokens of plain decoding at that seed."""
    pair, count = models("native"), max(2, batch)
    outputs = check_seeded(
        lambda p: make_drafter(name, p),
        rule,
        pair,
        slots=batch,
        prompts=PROMPTS[:count],
        expected=plainly("sampled")[:count],
        wrap=wrap_of(name),
    )
    assert name in ("nothing", "grammar", *WRAPPING) or sum(
        output.stats.drafted for output in outputs
    )


FORCED, VOCAB = 7, models("native").target.vocab_size
GRAMMAR = automaton(
    VOCAB,
    {0: dict.fromkeys(range(0, VOCAB, 3), 1), 1: {FORCED: 2}, 2: dict.fromkeys(range(VOCAB), 0)},
    whole=(),
)
"""A multiple of three, one token that is forced, and any token, again and again."""
CONSTRAINED = SamplingParams(seed=3, max_tokens=TOKENS, structured_outputs=GRAMMAR)
PLAINLY = {
    "sampled": SAMPLED,
    "constrained 0": dataclasses.replace(CONSTRAINED, temperature=0),
    "constrained 1": CONSTRAINED,
}


@pytest.mark.parametrize(("name", "rule"), WITH_TARGET_ONLY)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("temperature", [0, 1])
def test_constrained_text_is_plain_decodings(
    name: str, rule: Verifier, batch: int, temperature: int
) -> None:
    """Chosen drafts under a grammar: the very tokens of plain constrained decoding."""
    setting, count = f"constrained {temperature}", max(2, batch)
    outputs = check_seeded(
        lambda p: make_drafter(name, p),
        rule,
        models("native"),
        slots=batch,
        params=PLAINLY[setting],
        prompts=PROMPTS[:count],
        expected=plainly(setting)[:count],
        wrap=wrap_of(name),
    )
    for output in outputs:
        assert output.outputs[0].token_ids[1::3] == [FORCED] * (TOKENS // 3)


@each_cell
def test_distribution_is_the_targets(
    name: str, rule: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The joint distribution of three tokens, every outcome enumerated, at a sampler's settings. A
    third step drafts nothing: it is taken only where the target is wrapped."""
    # A drafter is made for each of hundreds of outcomes: files are read once.
    read = cache(trainable_lm._loaded)
    monkeypatch.setattr(trainable_lm, "_loaded", lambda model: deepcopy(read(model)))
    small, rows = table_pair(3), 1
    if not needs_only(name, small.target.levels, models("native")):
        small = tiny_pair(3, width=8, noise=0.1)
        rows = 1 if name in LEARNS | SHARES else 64
    for params in (SamplingParams(temperature=0.7), SamplingParams(top_k=2, presence_penalty=0.6)):
        check_distribution(
            lambda p: make_drafter(name, p, "distribution"),
            rule,
            small,
            params,
            3,
            rows=rows,
            steps=None if name in WRAPPING else 2,
            wrap=wrap_of(name),
        )


@pytest.mark.parametrize(("name", "rule"), OF_EACH)
def test_company_and_chunks_change_nothing(name: str, rule: Verifier) -> None:
    """A seeded request's tokens are the same alone, among others, and however its prompt is cut."""
    short = dataclasses.replace(SAMPLED, max_tokens=12)
    check_independence(
        lambda p: make_drafter(name, p), rule, models("native"), short, wrap=wrap_of(name)
    )


def states_hold(make: Make, rule: Verifier, pair: Pair, wrap: Wrap | None = None) -> None:
    """Requests of unlike settings join, leave and move slots; each is served as if alone."""
    settings = [
        dict(temperature=0.7, top_p=0.9, max_tokens=3),
        dict(temperature=0, max_tokens=30),
        dict(top_k=5, max_tokens=9),
        dict(temperature=1.3, min_p=0.1, max_tokens=14),
        dict(frequency_penalty=0.5, repetition_penalty=1.2, max_tokens=30),
        dict(max_tokens=1),
        dict(temperature=0, presence_penalty=1.0, max_tokens=20),
        dict(bad_token_ids=[3, 9]),
    ]
    params = [SamplingParams(seed=i, **own) for i, own in enumerate(settings)]  # type: ignore[arg-type]
    alone = [
        serve(pair.target, make(pair), rule, [prompt], own, wrap=wrap)[0].token_ids
        for prompt, own in zip(PROMPTS, params, strict=True)
    ]
    mixed = serve(pair.target, make(pair), rule, PROMPTS, params, slots=3, chunk=4, wrap=wrap)
    assert [output.token_ids for output in mixed] == alone


def stops_hold(make: Make, rule: Verifier, pair: Pair, wrap: Wrap | None = None) -> None:
    """End of text, stop ids, stop strings and the limit, each at several places of one text; those
    that end alike are served together."""
    tokenizer, prompt = ByteTokenizer(97), PROMPTS[0]
    text = generated(tuple(prompt))
    words = tokenizer.decode(text)
    asked: dict[frozenset[int], list[tuple[dict[str, Any], int, str]]] = {}
    for at in range(0, TOKENS, 5):
        first, stop = text.index(text[at]) + 1, words[at : at + 2]
        after = words.index(stop) + len(stop)
        asked.setdefault(frozenset(), []).extend(
            [
                (dict(max_tokens=at + 1), at + 1, "length"),
                (dict(stop_token_ids=[text[at]]), first, "stop"),
                (dict(stop=stop), after, "stop" if after <= TOKENS else "length"),
            ]
        )
        asked.setdefault(frozenset({text[at]}), []).extend(
            [(dict(), first, "stop"), (dict(ignore_eos=True), TOKENS, "length")]
        )
    for end, requests in asked.items():
        params = [
            SamplingParams(temperature=0, **{"max_tokens": TOKENS, **own})  # type: ignore[arg-type]
            for own, _, _ in requests
        ]
        outputs = serve(
            pair.target,
            make(pair),
            rule,
            [prompt] * len(requests),
            params,
            tokenizer=tokenizer,
            eos_ids=end,
            wrap=wrap,
        )
        for output, (_, length, reason) in zip(outputs, requests, strict=True):
            assert output.token_ids == text[:length]
            assert output.outputs[0].finish_reason == reason
            assert output.stats.tokens == length
            assert output.stats.accepted <= length


def samples_hold(make: Make, rule: Verifier, pair: Pair, wrap: Wrap | None = None) -> None:
    """Sample i of a request is the same for any n and any room, and samples differ."""
    wide, narrow = (
        serve(
            pair.target,
            make(pair),
            rule,
            PROMPTS[:2],
            dataclasses.replace(SAMPLED, n=n, max_tokens=12),
            slots=slots,
            chunk=3,
            wrap=wrap,
        )
        for n, slots in ((3, 8), (2, 1))
    )
    for full, part in zip(wide, narrow, strict=True):
        texts = [sample.token_ids for sample in full.outputs]
        assert texts[:2] == [sample.token_ids for sample in part.outputs]
        assert len({tuple(text) for text in texts}) > 1


def drafts_follow(make: Make, rule: Verifier, pair: Pair) -> None:
    """After any steps the next draft is the one that a new drafter makes of the same text."""
    old = make(pair)
    sequences = [Sequence.start(prompt, SAMPLED, seed=i) for i, prompt in enumerate(PROMPTS[:3])]
    target = _begun(pair, old, sequences)
    for _ in range(6):
        copies = [Sequence.start(s.tokens, SAMPLED) for s in sequences]
        for copy, sequence in zip(copies, sequences, strict=True):
            copy.key, copy.prompt_length = sequence.key, sequence.prompt_length
        new = make(pair)
        fresh = _begun(pair, new, copies)
        mine = step(target, old, rule, sequences, [6] * 3)[0].tree
        theirs = step(fresh, new, rule, copies, [6] * 3)[0].tree
        assert (mine.counts, mine.tokens.tolist()) == (theirs.counts, theirs.tokens.tolist())
        if mine.proposals is not None:
            torch.testing.assert_close(mine.proposals, theirs.proposals, atol=1e-9, rtol=0)


def _begun(pair: Pair, drafter: Drafter, sequences: list[Sequence]) -> ModelTarget:
    target = ModelTarget(pair.target, len(sequences), 128)
    target.bind(drafter)
    for sequence in sequences:
        target.begin(sequence)
        drafter.begin(sequence)
    while late := [s for s in sequences if target.pending(s)]:
        prefill(target, drafter, late, 64)
    return target


@each_repeatable_cell
def test_states_do_not_mix(name: str, rule: Verifier) -> None:
    """A request is served alike when others join, leave, or move its cache slot."""
    states_hold(lambda p: make_drafter(name, p), rule, models("native"), wrap_of(name))


@each_greedy_cell
def test_stops_are_where_plain_decoding_stops(name: str, rule: Verifier) -> None:
    """Every kind of end falls at the reference's place, and nothing after it is counted."""
    stops_hold(lambda p: make_drafter(name, p), rule, models("native"), wrap_of(name))


def test_stops_in_the_middle_of_an_accepted_draft() -> None:
    """The same where the whole draft is the target's own text, so that every end falls inside."""
    text = {tuple(prompt): generated(tuple(prompt)) for prompt in PROMPTS[:1]}
    for length in (3, 8, 40):
        stops_hold(lambda p, n=length: Oracle(text, n), TargetOnly(), models("native"))  # type: ignore[misc]


@each_greedy_cell
def test_cancelling_leaves_the_others_alone(name: str, rule: Verifier) -> None:
    """A request cancelled while it decodes keeps what it wrote; its neighbours don't notice."""
    pair = models("native")
    target, wrap = ModelTarget(pair.target, 3, 256), wrap_of(name)
    engine = Engine(target if wrap is None else wrap(target), make_drafter(name, pair), rule)
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    requests = [engine.add(prompt, params) for prompt in PROMPTS[:4]]
    for _ in range(3):
        engine.step()
    engine.cancel(requests[0].id)
    while engine.busy:
        engine.step()
    written = [request.samples[0].output for request in requests]
    assert written[0].finish_reason == "cancelled"
    assert written[0].token_ids == generated(tuple(PROMPTS[0]))[: len(written[0].token_ids)]
    for prompt, output in zip(PROMPTS[1:4], written[1:], strict=True):
        assert output.token_ids == generated(tuple(prompt))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WRAPPING])
def test_memory_is_bounded(name: str) -> None:
    """Once its settings' bound is reached, a drafter holds no more after 27 requests than after 9:
    what it keeps across requests is bounded, and of a request nothing is left."""
    pair, rng = models("native"), Random(0)
    drafter = make_drafter(name, pair, "memory")
    rule = next(p.values[1] for p in CELLS if p.values[0] == name)
    engine = Engine(ModelTarget(pair.target, 3, 256), drafter, rule)
    held = []
    for _ in range(3):
        for _ in range(9):
            prompt = rng.choices(range(97), k=rng.randint(2, 9))
            engine.add(prompt, SamplingParams(temperature=0, max_tokens=8))
        while engine.busy:
            engine.step()
        if isinstance(drafter, Online):
            drafter.learner.settle()
        held.append(held_bytes(drafter))
    assert held[2] < 1.02 * held[0] + 6000, held


@pytest.mark.parametrize(("name", "rule"), OF_EACH)
def test_caches_come_out_of_one_budget(
    name: str, rule: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter's own caches too: with memory for two texts no more is filled at any step than
    requests have reserved, nothing is left of them, and the texts are the same."""
    made, make = WeakSet[KVCache](), KVCache.__init__

    def noted(cache: KVCache, *given: Any, **options: Any) -> None:
        make(cache, *given, **options)
        made.add(cache)

    monkeypatch.setattr(KVCache, "__init__", noted)
    pair, wrap = models("native"), wrap_of(name)
    target = ModelTarget(pair.target, 4, 128)
    drafter = make_drafter(name, pair)
    engine = Engine(target if wrap is None else wrap(target), drafter, rule)
    gc.collect()  # those that costs were measured with
    budget = target.budget
    assert {id(cache) for cache in made} == {id(cache) for cache in counted(budget)}
    budget.limit = 2 * budget.needs(34)
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    requests = [engine.add(prompt, params) for prompt in PROMPTS[:5]]
    while engine.busy:
        engine.step()
        assert budget.written <= budget.reserved <= budget.limit
    assert (budget.reserved, budget.written) == (0, 0)
    for request, prompt in zip(requests, PROMPTS, strict=False):
        assert request.samples[0].output.token_ids == generated(tuple(prompt))


def counted(budget: CacheBudget) -> Iterator[Any]:
    """The caches of a budget, and of those that joined it."""
    for each in budget._caches:
        if isinstance(each, CacheBudget):
            yield from counted(each)
        else:
            yield each


@each_repeatable_cell
def test_samples_of_one_request(name: str, rule: Verifier) -> None:
    """n samples share the prompt; sample i's text is the same for any n and any room."""
    samples_hold(lambda p: make_drafter(name, p), rule, models("native"), wrap_of(name))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in LEARNS])
def test_drafts_follow_from_the_text(name: str) -> None:
    """No rejected token, stale state or wrong position is left in a drafter's memory."""
    rule = next(p.values[1] for p in CELLS if p.values[0] == name)
    drafts_follow(lambda p: make_drafter(name, p), rule, models("native"))


@torch.inference_mode()
@pytest.mark.parametrize("name", [n for n in NAMES if n not in {*WRAPPING, "auto"}])
def test_a_row_without_room_changes_no_other(name: str) -> None:
    """Beside a text that may draft nothing, a sampled one has the draft that it has alone."""
    pair, rule = models("native"), next(p.values[1] for p in CELLS if p.values[0] == name)
    drafts = []
    for rows in ([0, 1], [1]):
        drafter = make_drafter(name, pair)
        both = [Sequence.start(prompt, SAMPLED, seed=i) for i, prompt in enumerate(PROMPTS[:2])]
        target = _begun(pair, drafter, both)
        step(target, drafter, rule, both, [6] * 2)
        drafting, budgets = [both[row] for row in rows], [9 * row for row in rows]
        tree = drafter.draft(drafting, budgets, draws_for(drafting, target.device))
        drafts.append(tree.take([len(rows) - 1]).trim([9]))
    mine, theirs = drafts
    assert (mine.counts, mine.tokens.tolist()) == (theirs.counts, theirs.tokens.tolist())
    assert mine.parent_slots.tolist() == theirs.parent_slots.tolist()


@torch.inference_mode()
@pytest.mark.parametrize("name", [n for n in NAMES if n not in {*WRAPPING, "auto"}])
def test_a_copy_drafts_what_its_original_would(name: str) -> None:
    """It has all that was read of their prompt."""
    pair = models("native")
    drafter, target = make_drafter(name, pair), ModelTarget(pair.target, 2, 128)
    target.bind(drafter)
    one, copy = (Sequence.start(PROMPTS[0], SAMPLED, seed=1) for _ in range(2))
    for sequence in (one, copy):
        target.begin(sequence)
        drafter.begin(sequence)
    while target.pending(one):
        prefill(target, drafter, [one], 64)
    target.fork(one, copy)
    drafter.fork(one, copy)
    tree = drafter.draft([one, copy], [9, 9], draws_for([one, copy], target.device)).trim([9, 9])
    assert tree.counts[0] == tree.counts[1] and len({*map(tuple, tree.tokens.tolist())}) <= 1


@pytest.mark.parametrize("wrong_at", range(5))
def test_a_rejection_at_every_place(wrong_at: int) -> None:
    """Drafts that go wrong at each depth in turn: the text is the same and the counts add up."""
    pair, prompts = models("native"), PROMPTS[:3]
    text = {tuple(prompt): generated(tuple(prompt)) for prompt in prompts}
    for rule in (TargetOnly(), Speculative()):
        outputs = check_greedy(
            lambda p: Oracle(text, 4, wrong_at),
            rule,
            pair,
            slots=3,
            prompts=prompts,
            expected=list(text.values()),
            tokens=TOKENS,
        )
        for output in outputs:
            stats = output.stats
            assert stats.mean_acceptance_length == TOKENS / -(-TOKENS // (wrong_at + 1))
            assert (stats.accepted_at[:wrong_at] and not any(stats.accepted_at[wrong_at:4])) or (
                wrong_at in (0, 4)
            )
        check_greedy(
            lambda p: Oracle(text, 4, wrong_at, cycle=True),
            rule,
            pair,
            slots=2,
            prompts=prompts,
            expected=list(text.values()),
            tokens=TOKENS,
        )


@pytest.mark.parametrize("kind", ["native", "adapter"])
def test_trees_of_the_targets_text(kind: str) -> None:
    """Trees with the right path among wrong ones, at any place, greedy and sampled."""
    pair = models(kind)
    for params in (dataclasses.replace(SAMPLED, temperature=0), SAMPLED):
        plain = [
            texts(serve(pair.target, Nothing(), TargetOnly(), [p], params)) for p in PROMPTS[:3]
        ]
        known = {tuple(p): t for p, [t] in zip(PROMPTS, plain, strict=False)}

        def paths(sequence: Sequence, budget: int, known: Any = known) -> list[list[int]]:
            done = len(sequence.output)
            right = known[tuple(sequence.tokens[: sequence.prompt_length])][done : done + 3]
            wrong = [[(token + 1) % 97 for token in right[:-1]], [50, *right[1:]]]
            return [*wrong[: done % 3], [*right[:2], 51], right, *wrong]

        outputs = serve(pair.target, Scripted(paths), TargetOnly(), PROMPTS[:3], params, slots=3)
        assert texts(outputs) == [text for [text] in plain]
        assert all(output.stats.mean_acceptance_length > 2.5 for output in outputs)


def test_drafts_beyond_the_budget_are_cut() -> None:
    """A draft longer than what may still be written changes neither text nor counts."""
    text = {tuple(PROMPTS[0]): generated(tuple(PROMPTS[0])) + [1] * 40}
    for limit in (1, 2, 7):
        [output] = check_greedy(
            lambda p: Oracle(text, 40, ignore_budget=True),
            TargetOnly(),
            models("native"),
            prompts=PROMPTS[:1],
            tokens=limit,
            expected=[text[tuple(PROMPTS[0])][:limit]],
        )
        assert (output.stats.drafted, output.stats.tokens) == (limit - 1, limit)


def test_empty_drafts_are_plain_steps() -> None:
    """A drafter that has nothing to say, always or now and then, changes nothing."""
    text = {tuple(prompt): generated(tuple(prompt)) for prompt in PROMPTS[:3]}
    silent = {prompt: [] for prompt in text}
    half = {prompt: t[: 10 + i] for i, (prompt, t) in enumerate(text.items())}
    for known in (silent, half):
        for rule in (TargetOnly(), Speculative()):
            check_greedy(
                lambda p, known=known: Oracle(known),
                rule,
                models("native"),
                slots=3,  # type: ignore[misc]
                prompts=PROMPTS[:3],
                expected=list(text.values()),
            )


@pytest.mark.parametrize("row", METHODS.values(), ids=list(METHODS))
def test_the_table_tells_the_truth(row: Any) -> None:
    """A method is built from its row, drafter and rule fit, and lossless means an exact rule."""
    pair = models("native")
    options = given(row.drafter, pair)
    built = build({"method": row.name, **options})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert (name, type(drafter)) == (row.name, drafter_class(row.drafter))
    assert row.lossless == rule.exact
    check_pairing(ModelTarget(pair.target, 1, 8), drafter, rule)


def test_native_and_adapter_agree() -> None:
    """The native model is transformers' own arithmetic, up to the last bits."""
    hf = pytest.importorskip("foretoken.models.hf.adapter", reason="the adapter is not there")
    model = tiny_transformers()
    ids = torch.tensor(PROMPTS[3:4])
    with torch.no_grad():
        expected = model(ids).logits[0, -1]
    for ours in (native(model), hf.HFModel(model)):
        torch.testing.assert_close(logits_after(ours, PROMPTS[3]), expected, atol=1e-10, rtol=0)


JOINABLE = [
    row.name for row in METHODS.values() if row.target is None and row.name != "autoregressive"
]


def joined(name: str, parts: Seq[str], pair: Pair) -> dict[str, Any]:
    """A config of this method, its parts with what they need."""
    options = {part: given(METHODS[part].drafter, pair) for part in parts}
    return {"method": name, **options}


@pytest.mark.parametrize("first", JOINABLE)
def test_the_rule_takes_what_the_parts_make(first: str) -> None:
    """Every pair that may be joined gets an exact rule that takes its drafts."""
    pair = models("native")
    target = ModelTarget(pair.target, 1, 32)
    for second in JOINABLE:
        if second == first or {first, second} & {"auto", "online"}:
            continue
        for mark in ("+", "|"):
            try:
                built = build(joined(f"{first}{mark}{second}", (first, second), pair))
            except ForetokenError as error:
                assert mark == "|" and ("share a tree" in str(error) or "leave out" in str(error))
                continue
            check_pairing(target, built.drafter, built.verifier)
            assert built.verifier.exact and built.verifier.sampling
        built = build(joined(f"auto:{first},{second}", (first, second), pair))
        check_pairing(target, built.drafter, built.verifier)


@pytest.mark.parametrize("name", ["mtp+pld", "auto:mtp,pld", "mcsd+pld"])
def test_chains_without_replacement_can_be_joined(name: str) -> None:
    """Exact at every temperature, by the rule that the pairing picks."""
    parts = parse(name).parts
    mcsd = {"mcsd": {"widths": (1, 1), "model": models("native").draft}}

    def make(pair: Pair) -> Drafter:
        options = joined(name, parts, pair) | (mcsd if "mcsd" in parts else {})
        return build(options).drafter

    rule = build(joined(name, parts, models("native")) | (mcsd if "mcsd" in parts else {})).verifier
    check_greedy(make, rule, models("native"), prompts=PROMPTS[:2], tokens=12)


def test_online_takes_a_chain_without_replacement() -> None:
    """A trained layer that learns while it serves is verified by a rule for its draws."""
    pair = models("native")
    built = build({"method": "online:mtp", **given("mtp", pair)})
    check_pairing(ModelTarget(pair.target, 1, 32), built.drafter, built.verifier)
