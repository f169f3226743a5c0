"""`auto` in the loop: exact whatever it takes, plain where nothing pays, and open about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.config import AUTO, auto_parts, build, options_of
from foretoken.control.choice import Choice
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.control.rates import chain
from foretoken.drafters import auto as auto_module
from foretoken.drafters.auto import NONE, Auto
from foretoken.drafters.lookahead import Lookahead
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.suffix import Suffix
from foretoken.drafters.token_recycling import TokenRecycling
from foretoken.draws import GreedyDraws
from foretoken.engine.engine import Engine
from foretoken.models.target import ModelTarget
from foretoken.protocols import BaseDrafter, Drafter, Step
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.testing import (
    Drawn,
    Oracle,
    Pair,
    check_distribution,
    check_greedy,
    check_independence,
    check_seeded,
    serve,
    table_pair,
)
from foretoken.testing.checks import PROMPTS, SAMPLED, texts
from foretoken.tree import DraftTree, Kind, chains, empty
from foretoken.verify.gumbel import Gumbel
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

FLAT = {1: 10.0, 64: 11.0}
STEEP = {1: 10.0, 2: 19.0, 64: 600.0}
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def auto(*parts: Drafter, curve: dict[int, float] | None = None, level: float = 1.0) -> Auto:
    """The parts with costs that don't change: copies nearly free, a level of the others `level`."""
    names = [f"{type(part).__name__}{number}" for number, part in enumerate(parts)]
    drafts = {
        name: DraftCost(level=level) if Kind.CHOSEN not in part.kinds else DraftCost(call=0.01)
        for name, part in zip(names, parts, strict=True)
    }
    return Auto(parts, names=names, costs=CostModel(curve or FLAT, drafts, fixed=True))


@dataclass(eq=False)
class Counting(SmallLM):
    """Notes for how many sequences it is asked."""

    rows: list[int] = field(default_factory=list)

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        self.rows.append(len(sequences))
        return super().draft(sequences, budgets, draws)


@dataclass(eq=False)
class Watched(SmallLM):
    """Notes for how many sequences it observes a step."""

    observed: list[int] = field(default_factory=list)

    def observe(self, sequences: Any, steps: Any) -> None:
        self.observed.append(len(sequences))
        super().observe(sequences, steps)


MIXED: dict[str, tuple[Callable[[Pair], Auto], Any]] = {
    "copy and draw": (lambda p: auto(PromptLookup(4), SmallLM(p.draft, 6)), Speculative()),
    "draw only": (lambda p: auto(SmallLM(p.draft, 6)), Speculative()),
    "two that draw": (
        lambda p: auto(SmallLM(p.draft, 6), Drawn(p.draft, (2,))),
        MultiCandidate(),
    ),
    "dear": (lambda p: auto(PromptLookup(4), SmallLM(p.draft, 6), level=6.0), Speculative()),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("slots", [1, 4])
def test_greedy(name: str, slots: int, pair: Pair) -> None:
    """The tokens of plain decoding, alone and in a batch whose rows take different drafts."""
    make, rule = MIXED[name]
    outputs = check_greedy(make, rule, pair, slots=slots, prompts=PROMPTS, tokens=40)
    assert any(output.stats.drafted for output in outputs)


@pytest.mark.parametrize("name", MIXED)
def test_distribution(name: str) -> None:
    """Which part is taken depends on no token that was drawn: the joint distribution is the
    target's."""
    make, rule = MIXED[name]
    for params in (SamplingParams(temperature=0.7), SamplingParams(top_k=2, presence_penalty=0.6)):
        if name == "two that draw" and not params.top_k:
            continue  # too many outcomes
        check_distribution(make, rule, table_pair(3), params, 2, rows=1, budget=2)


def test_a_seeds_text_by_coupled_sampling(pair: Pair) -> None:
    """With the rule "gumbel" it depends neither on the company nor on what is chosen."""
    check_independence(MIXED["copy and draw"][0], Gumbel(), pair)
    cheap, dear = (MIXED[name][0](pair) for name in ("copy and draw", "dear"))
    params = SamplingParams(seed=3, max_tokens=30)
    assert texts(serve(pair.target, cheap, Gumbel(), PROMPTS, params)) == texts(
        serve(pair.target, dear, Gumbel(), PROMPTS, params)
    )


def test_chosen_parts_keep_the_seeds_text(pair: Pair) -> None:
    """By target-only sampling it is plain decoding's."""
    check_seeded(lambda p: auto(PromptLookup(3), PromptLookup(8, 1)), TargetOnly(), pair, slots=3)


def test_plain_steps_in_a_run_are_timed_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each run: if only drafts were timed, the machine would seem as slow as they are."""
    timed: list[tuple[int, int]] = []

    class Noting(CostModel):
        def record_pass_time(self, tokens: int, ms: float, cells: int = 0) -> None:
            assert 0 < ms < 10_000
            timed.append((tokens, cells))

    monkeypatch.setattr(auto_module, "_TIMED_EVERY", 10**6)
    drafter = auto(SmallLM(pair.draft), curve=STEEP)
    assert drafter.costs is not None
    drafter.costs = Noting(STEEP, drafter.costs.drafts, fixed=True)
    [output] = serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert output.stats.drafted == 0 and 1 <= len(timed) <= 4
    assert {tokens for tokens, _ in timed} == {1}
    assert [cells for _, cells in timed] == sorted(cells for _, cells in timed)


def test_a_draft_that_reads_what_was_missed_tells_no_cost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes isn't what a draft takes, also where another part has drafted just before."""
    timed: set[int] = set()
    takers: list[int] = []

    class Noting(CostModel):
        def record_draft_time(self, name: str, sequences: int, levels: int, ms: float) -> None:
            assert name == f"SmallLM{takers[-1]}"
            timed.add(len(takers) - 1)

    monkeypatch.setattr(auto_module, "_TIMED_EVERY", 1)
    monkeypatch.setattr(auto_module, "_LATER", 1)
    drafter = auto(SmallLM(pair.draft), SmallLM(pair.target))
    assert drafter.costs is not None
    drafter.costs = Noting(FLAT, drafter.costs.drafts, fixed=True)
    choose = drafter.control.choose

    def forced(rows: Any) -> Any:
        takers.append(len(takers) // 3 % 2)
        nodes = min(2, rows[0].room)
        return replace(choose(rows), takers=[takers[-1] if nodes else None], nodes=[nodes])

    monkeypatch.setattr(drafter.control, "choose", forced)
    monkeypatch.setattr(drafter.control, "idle_steps", lambda count: 0)
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    late = {step for step in range(1, len(takers)) if takers[step] != takers[step - 1]}
    assert len(late) > 3 and not timed & late
    assert timed >= {*range(1, len(takers) - 1)} - late


def test_nothing_to_gain_is_plain_decoding(pair: Pair) -> None:
    """No draft, not even now and then, where the next token costs what this one does."""
    drafter = auto(SmallLM(pair.draft), curve=STEEP)
    [output] = serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert output.stats.drafted == 0 and output.stats.chosen == {NONE: 60}


def test_what_is_always_wrong_is_left(pair: Pair) -> None:
    """A few drafts, then none; `chosen` counts how often each was used."""
    prompt = PROMPTS[0]
    drafter = auto(Oracle({tuple(prompt): [1] * 200}, 8), curve={1: 10.0, 8: 14.0, 64: 40.0})
    [output] = serve(pair.target, drafter, TargetOnly(), [prompt], GREEDY)
    assert 0 < output.stats.drafts < 15
    assert output.stats.chosen["Oracle0"] == output.stats.drafts
    assert sum(output.stats.chosen.values()) == output.stats.passes


def test_the_right_one_is_found(pair: Pair) -> None:
    """Among a part that is right, one that is wrong and a small model."""
    prompt = tuple(PROMPTS[0])
    [right] = texts(serve(pair.target, PromptLookup(), TargetOnly(), [prompt], GREEDY))
    parts = Oracle({prompt: [1] * 200}, 8), Oracle({prompt: right}, 8), SmallLM(pair.draft)
    [output] = serve(pair.target, auto(*parts), Speculative(), [prompt], GREEDY)
    assert output.token_ids == right
    assert output.stats.chosen["Oracle1"] > 0.6 * output.stats.passes
    assert output.stats.mean_acceptance_length > 3


def test_only_those_who_take_it_wait_for_the_small_model(pair: Pair) -> None:
    """A row with a good copy is not drafted for by anyone else."""
    prompts = [list(prompt) for prompt in PROMPTS[:2]]
    known = texts(serve(pair.target, PromptLookup(), TargetOnly(), prompts, GREEDY))
    small = Counting(pair.target)
    copy = Oracle({tuple(prompts[0]): known[0], tuple(prompts[1]): []}, 8)
    outputs = serve(pair.target, auto(copy, small), Speculative(), prompts, GREEDY, slots=2)
    assert texts(outputs) == known and 1 in small.rows
    assert outputs[0].stats.chosen["Oracle0"] > outputs[1].stats.chosen["Oracle0"] == 0


def test_who_cannot_pay_reads_no_prompt(pair: Pair) -> None:
    """Where drafts can't pay, the small model makes no pass over any prompt."""
    drafter = auto(Watched(pair.draft), curve=STEEP)
    engine = Engine(ModelTarget(pair.target, 1, 512), drafter, Speculative())
    read = []
    for prompt in PROMPTS[:2]:
        engine.add(prompt, GREEDY)
        while engine.busy:
            engine.step()
        read.append(len(drafter.drafters[0].observed))
    assert read == [0, 0]


def test_who_pays_reads_prompts_with_the_target(pair: Pair, monkeypatch: Any) -> None:
    """So that its first draft costs what every draft costs; after a draft nothing is unread."""
    drafter = auto(SmallLM(pair.target), level=0.1)
    choose, unread = drafter.control.choose, []

    def watched(rows: Any) -> Any:
        choice = choose(rows)
        unread.append((rows[0].unread[0], choice.takers[0]))
        return choice

    monkeypatch.setattr(drafter.control, "choose", watched)
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    lengths, takers = zip(*unread, strict=True)
    assert len(PROMPTS[0]) > 2 >= lengths[0] and takers[0] == 0
    assert max(lengths) < 24  # a draft's length, not the text's


def test_a_lookup_that_another_covers_is_not_asked(pair: Pair) -> None:
    """Plain `auto` looks up by suffixes alone, and by n-grams where the target takes no trees."""
    for levels, names in (("ab", ["suffix"]), ("a", ["pld"])):
        target = ModelTarget(pair.target, 1, 128)
        target.levels = frozenset(levels)
        drafter = build({"method": "auto"}).drafter
        assert isinstance(drafter, Auto)
        drafter.costs = CostModel(FLAT, {}, fixed=True)
        drafter.bind(target)
        assert drafter.names == names


def test_a_trees_shape_is_learned(pair: Pair) -> None:
    """The first tree is drawn whole, so that it is known what a smaller one would be."""
    drafter = auto(Drawn(pair.target, (2, 2)), level=0.1)
    [output] = serve(pair.target, drafter, MultiCandidate(), PROMPTS[:1], SAMPLED)
    shape = drafter.control.shapes[0]
    assert shape.parents == (0, 0, 1, 1, 2, 2) and output.stats.drafted


def written(engine: Engine, prompt: list[int], params: SamplingParams) -> None:
    engine.add(prompt, params)
    while engine.busy:
        engine.step()


def test_a_first_draft_of_nothing_is_no_shape(pair: Pair) -> None:
    """Token Recycling knows no token's successors before the first pass."""
    drafter = auto(TokenRecycling())
    [output] = serve(pair.target, drafter, TargetOnly(), PROMPTS[:1], GREEDY)
    assert output.stats.drafted > 0 and len(drafter.control.shapes[0]) > 1


@pytest.mark.parametrize("window", [2, 7])
def test_a_window_that_is_cut_is_not_read(window: int, pair: Pair) -> None:
    """Lookahead's auxiliary nodes are of use as a whole only, so it drafts what was chosen."""
    [plain] = texts(serve(pair.target, PromptLookup(), TargetOnly(), PROMPTS[:1], GREEDY))
    for curve in ({1: 1.0, 2: 1.05, 3: 3.0, 64: 200.0}, {1: 1.0, 64: 1.1}):
        drafter = auto(Lookahead(window=window, ngram_size=3), curve=curve)
        [output] = serve(pair.target, drafter, TargetOnly(), PROMPTS[:1], GREEDY)
        assert output.error is None and output.token_ids == plain


def test_predicted_tokens_are_no_cheap_pass(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a request's prediction counts as one over as many tokens, and what is accepted of
    it isn't a part's."""
    timed: list[int] = []
    told: list[int] = []

    class Noting(CostModel):
        def record_pass_time(self, tokens: int, ms: float, cells: int = 0) -> None:
            timed.append(tokens)

    monkeypatch.setattr(auto_module, "_TIMED_EVERY", 1)
    monkeypatch.setattr(auto_module, "_LATER", 1)
    prompt = PROMPTS[0]
    [known] = texts(serve(pair.target, PromptLookup(), TargetOnly(), [prompt], GREEDY))
    drafter = auto(SmallLM(pair.draft), curve=STEEP)
    assert drafter.costs is not None
    drafter.costs = Noting(STEEP, drafter.costs.drafts, fixed=True)
    record = drafter.control.record_step

    def noted(choice: Any, queried: Any, accepted: Any, *rest: Any) -> None:
        told.extend(accepted)
        record(choice, queried, accepted, *rest)

    monkeypatch.setattr(drafter.control, "record_step", noted)
    params = replace(GREEDY, prediction=known)
    [output] = serve(pair.target, drafter, Speculative(), [prompt], params)
    assert output.token_ids == known and output.stats.passes < 10
    assert timed and min(timed) > 8 and told and not any(told)


def test_a_shape_is_learned_from_a_tree_that_nothing_cut(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from a short answer's, and again once all is forgotten."""
    monkeypatch.setattr(auto_module, "perf_counter", lambda: 0.0)  # what it takes is not asked here
    costs = CostModel({1: 1.0, 64: 1.01}, {"mcsd": DraftCost(level=0.001)}, fixed=True)
    config = {"method": "auto:mcsd", "model": pair.draft, "costs": costs, "remember": False}
    drafter: Any = build(config).drafter
    engine = Engine(ModelTarget(pair.target, 2, 256), drafter, MultiCandidate())
    short, long = (SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 60))
    for again in range(2):
        written(engine, PROMPTS[0], short)
        assert drafter.control.shapes[0].is_chain, again
        written(engine, PROMPTS[0], long)
        shape = drafter.control.shapes[0]
        assert len(shape) == 16 and not shape.is_chain, again
        drafter.shared.reset()


def test_a_tree_that_teaches_nothing_is_as_large_as_chosen(pair: Pair) -> None:
    """Where a request may not draft a whole one, as no shape is learned from it."""
    asked: list[int] = []

    class Noting(Drawn):
        def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
            asked.extend(budgets)
            return super().draft(sequences, budgets, draws)

    drafter = auto(Noting(pair.target, (2, 2)), curve={1: 1.0, 2: 1.01, 3: 9.0, 64: 999.0}, level=0)
    params = replace(GREEDY, max_draft_tokens=5)
    serve(pair.target, drafter, MultiCandidate(), PROMPTS[:1], params)
    assert asked and set(asked) == {1} and drafter.control.shapes[0].is_chain


def test_a_forked_sample_has_read_the_prompt(pair: Pair) -> None:
    """As far as the small model's cache was copied."""
    costs = CostModel({1: 1.0, 8: 1.2, 64: 8.0}, {"sps": DraftCost(level=0.05)}, fixed=True)
    config = {"method": "auto:sps", "model": pair.draft, "costs": costs, "remember": False}
    drafter: Any = build(config).drafter
    engine = Engine(ModelTarget(pair.target, 2, 256), drafter, Speculative())
    prompt = [i % 90 for i in range(100)]
    params = SamplingParams(seed=1, n=2, max_tokens=40, ignore_eos=True)
    request = engine.add(prompt, params)
    while not all(sample.output.token_ids for sample in request.samples):
        engine.step()
    for sample in request.samples:
        [history] = sample.sequence.state[drafter]
        assert history.reads and history.read >= len(prompt) - 1
    while engine.busy:
        engine.step()


def test_forgetting_between_answers(pair: Pair) -> None:
    """`shared.reset` takes what was counted, and what the parts keep; costs stay."""
    drafter = auto(SmallLM(pair.draft))
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert drafter.shared is not None and any(map(any, drafter.control.rates[0].tested))
    costs = drafter.control.costs
    drafter.shared.reset()
    assert not any(map(any, drafter.control.rates[0].tested)) and drafter.control.costs is costs


@dataclass(eq=False)
class Deep(BaseDrafter):
    """Wants what few targets give."""

    wants = Wants("ae")


def test_what_the_target_cannot_serve(pair: Pair) -> None:
    """Left out of plain `auto`; an error where it was named."""
    target = ModelTarget(pair.target, 1, 128)
    target.levels = frozenset("a")
    drafter = Auto([PromptLookup(), Deep()], lenient=True)
    Engine(target, drafter, TargetOnly())
    assert drafter.names == ["PromptLookup"] and len(drafter.drafters) == 1
    with pytest.raises(ForetokenError, match=r"Deep|Auto"):
        Engine(target, Auto([PromptLookup(), Deep()]), TargetOnly())


def test_real_steps_correct_the_costs(pair: Pair, tmp_path: Path, monkeypatch: Any) -> None:
    """Costs are measured by the engine, and go on being measured by use."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    drafter = Auto([PromptLookup(), SmallLM(pair.draft)])
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert drafter.costs is not None and set(drafter.costs.drafts) == {"PromptLookup", "SmallLM"}
    before = drafter.costs.passes(1, 4)
    serve_again = Engine(ModelTarget(pair.target, 1, 512), drafter, Speculative())
    serve_again.add(PROMPTS[0], SamplingParams(temperature=0, max_tokens=200))
    while serve_again.busy:
        serve_again.step()
    assert drafter.costs.passes(1, 4) != before


def test_names_make_parts(pair: Pair) -> None:
    """A list names them; plain `auto` takes what copies, and what the options name models for."""
    built = build({"method": "auto:pld,sps", "model": pair.draft})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert isinstance(drafter, Auto) and isinstance(rule, Speculative) and name == "auto:pld,sps"
    assert drafter.names == ["pld", "sps"] and not drafter.lenient
    assert isinstance(drafter.drafters[1], SmallLM)
    built = build({"method": "auto"})
    drafter, rule, name = built.drafter, built.verifier, built.name
    assert isinstance(drafter, Auto) and isinstance(rule, TargetOnly) and name == "auto"
    assert "pld" in drafter.names and "sps" not in drafter.names and drafter.lenient
    built = build({"method": "auto", "draft_model": pair.draft})
    drafter, rule = built.drafter, built.verifier
    assert isinstance(drafter, Auto) and {"sps", "pld"} <= {*drafter.names}
    assert {"rest", "pld"} <= {*auto_parts("auto", ["datastore"])} >= {*auto_parts("auto", [])}
    assert auto_parts("auto:pld+sps", []) == ["pld", "sps"]


def test_options_find_their_part(pair: Pair) -> None:
    """Parts may draft as much as the whole, unless an option gives another number."""
    built = build(
        {
            "method": "auto:pld,sps",
            "model": pair.draft,
            "prompt_lookup_max": 5,
            "exploration": 0.02,
            "sps": {"num_speculative_tokens": 3},
        }
    )
    drafter = built.drafter
    assert isinstance(drafter, Auto) and drafter.exploration == 0.02
    lookup, small = drafter.drafters
    assert isinstance(lookup, PromptLookup) and isinstance(small, SmallLM)
    assert (lookup.num_speculative_tokens, lookup.prompt_lookup_max) == (16, 5)
    assert small.num_speculative_tokens == 3
    assert {"model", "num_speculative_tokens", "exploration"} <= options_of(AUTO)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "auto:pldd"}, "Did you mean 'pld'"),
        ({"method": "auto:"}, "Unknown method ''"),
        ({"method": "auto:pld,pld"}, "names a part twice"),
        ({"method": "auto:sps"}, "name it"),
        ({"method": "auto:pld", "prompt_lookup_maxx": 3}, "'prompt_lookup_max'"),
        ({"method": "auto:pld", "exploration": 1}, "below 1"),
        ({"method": "auto", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "auto", "drafters": []}, "Name at least"),
        ({"method": "auto", "drafters": [PromptLookup(), PromptLookup()]}, "different names"),
    ],
    ids=str,
)
def test_wrong_configs(config: dict[str, Any], message: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError) as error:
        build(config)
    assert message in str(error.value)


def test_front_door(pair: Pair, tmp_path: Path, monkeypatch: Any) -> None:
    """LLM with `auto`: the texts of plain decoding, and who drafted."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    plain = LLM(pair.target).generate(PROMPTS, GREEDY)
    llm = LLM(pair.target, speculative_config={"method": "auto", "model": pair.draft})
    outputs = llm.generate(PROMPTS, GREEDY)
    assert texts(outputs) == texts(plain) and llm.method == "auto"
    assert sum(llm.stats.chosen.values()) == llm.stats.passes
    assert set(llm.stats.chosen) <= {"suffix", "sps", NONE}


def test_sequences_keep_their_own_counts(pair: Pair) -> None:
    """State goes away with the sequence."""
    drafter = auto(PromptLookup(3))
    sequence = Sequence.start(PROMPTS[0], GREEDY)
    target = ModelTarget(pair.target, 1, 64)
    drafter.bind(target)
    assert drafter._histories(sequence) is drafter._histories(sequence)
    assert drafter._histories(sequence) is not drafter._histories(
        Sequence.start(PROMPTS[0], GREEDY)
    )


def test_a_step_that_failed_leaves_nothing(pair: Pair, monkeypatch: Any) -> None:
    """After an error in mid-step each sequence starts again alone, and the draft of the batch that
    failed is nobody's any more."""
    drafter = auto(PromptLookup(3), PromptLookup(8, 1))
    engine = Engine(ModelTarget(pair.target, 3, 128), drafter, TargetOnly())
    inner, calls = engine.target.score, 0

    def score(sequences: Any, trees: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return inner(sequences, trees)

    monkeypatch.setattr(engine.target, "score", score)
    params = SamplingParams(temperature=0, max_tokens=12)
    requests = [engine.add(prompt, params) for prompt in PROMPTS[:3]]
    while engine.busy:
        engine.step()
    assert [request.error for request in requests] == [None] * 3


def test_plain_steps_were_decided_for_one_batch(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another number of sequences it is decided anew, and after all was forgotten."""
    drafter, asked = auto(SmallLM(pair.draft), curve=STEEP), list[int]()
    drafter.bind(ModelTarget(pair.target, 2, 64))
    monkeypatch.setattr(drafter.control, "idle_steps", lambda count: (asked.append(count), 5)[1])
    one, two = (Sequence.start(prompt, GREEDY) for prompt in PROMPTS[:2])
    for together in ([one], [one], [one, two], [one, two]):
        assert drafter.draft(together, [9] * len(together), GreedyDraws()).nodes == 0
    assert asked == [1, 2]
    assert drafter.shared is not None
    drafter.shared.reset()
    drafter.draft([one, two], [9, 9], GreedyDraws())
    assert asked == [1, 2, 2]


def test_a_prompt_is_read_for_those_that_run(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that pays is asked for as many sequences as decode, though it comes alone."""
    drafter, asked = auto(SmallLM(pair.draft)), list[int]()
    drafter.bind(ModelTarget(pair.target, 4, 64))
    monkeypatch.setattr(drafter.control, "idle_steps", lambda count: 1)
    monkeypatch.setattr(
        drafter.control, "reads", lambda part, count, *rest: bool(asked.append(count))
    )
    running = [Sequence.start(prompt, GREEDY) for prompt in PROMPTS[:3]]
    drafter.draft(running, [9] * 3, GreedyDraws())
    none: Any = None
    drafter.observe([Sequence.start([5, 9], GREEDY)], [Step([], [], 0, 0, none, none, read=1)])
    assert asked == [3]


def test_a_copy_has_read_no_more_than_its_prompt() -> None:
    """Though what it is copied from has been read on."""
    drafter = auto(PromptLookup(3), PromptLookup(8, 1))
    one, copy = (Sequence.start([5] * 10, GREEDY) for _ in range(2))
    for history in drafter._histories(one):
        history.reads, history.read = True, 30
    drafter.fork(one, copy)
    assert [(each.reads, each.read) for each in drafter._histories(copy)] == [(True, 9)] * 2


@dataclass(eq=False)
class Told(SmallLM):
    """Counts the nodes that it drafts, and those that it is told to have drafted."""

    made: int = 0
    told: int = 0

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        self.made += sum(tree.counts)
        return tree

    def observe(self, sequences: Any, steps: Any) -> None:
        self.told += sum(step.drafted for step in steps)
        super().observe(sequences, steps)


def test_parts_are_told_of_their_own_drafts(pair: Pair) -> None:
    """And of no other part's, also where both have drafted in a step."""
    prompts = [list(prompt) for prompt in PROMPTS[:2]]
    known = texts(serve(pair.target, PromptLookup(), TargetOnly(), prompts, GREEDY))
    copy, small = Oracle({tuple(prompts[0]): known[0], tuple(prompts[1]): []}, 8), Told(pair.target)
    outputs = serve(pair.target, auto(copy, small), Speculative(), prompts, GREEDY, slots=2)
    assert outputs[0].stats.chosen["Oracle0"] and small.made == small.told > 0


def test_a_trials_time_is_learned(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """However seldom other steps are timed."""
    timed, steps = list[int](), count()

    class Noting(CostModel):
        def record_pass_time(self, tokens: int, ms: float, cells: int = 0) -> None:
            timed.append(tokens)

    monkeypatch.setattr(auto_module, "_TIMED_EVERY", 10**6)
    drafter = auto(SmallLM(pair.draft))
    assert drafter.costs is not None
    drafter.costs = Noting(FLAT, drafter.costs.drafts, fixed=True)
    choose = drafter.control.choose

    def tried(rows: Any) -> Any:
        return replace(choose(rows), trial=0.5 * (next(steps) == 3))

    monkeypatch.setattr(drafter.control, "choose", tried)
    monkeypatch.setattr(drafter.control, "idle_steps", lambda sequences: 0)
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert next(steps) > 4 and len(timed) == 1


def test_measuring_teaches_the_parts_nothing(pair: Pair) -> None:
    drafter: Any = Auto([Suffix()], names=["suffix"], remember=False)
    drafter.bind(ModelTarget(pair.target, 1, 64))

    def measure(parts: Any) -> CostModel:
        parts["suffix"].shared.add([1, 2, 3])
        return CostModel(FLAT, {"suffix": DraftCost(call=0.01)}, fixed=True)

    drafter.price(measure)
    assert drafter.drafters[0].shared.tokens == 0


@pytest.mark.parametrize(("call", "computing"), [(0.2, []), (0.3, [0])])
def test_a_copier_that_takes_long_is_asked_as_what_computes(
    call: float, computing: list[int]
) -> None:
    """From a quarter of a pass on: it isn't queried before the choice."""
    costs = CostModel({1: 1.0, 64: 1.1}, {"pld": DraftCost(call=call)}, fixed=True)
    assert Auto([PromptLookup()], names=["pld"], costs=costs).control.computing == computing


def test_sampled_texts_are_counted_apart() -> None:
    drafter = auto(PromptLookup(3))
    params = [SamplingParams(temperature=heat) for heat in (0.0, 0.7)]
    [[greedy], [warm]] = [drafter._histories(Sequence.start([1], own)) for own in params]
    assert warm.sampled and not greedy.sampled


@dataclass(eq=False)
class Reading(Watched):
    """Has to see each step."""

    follows = False


def test_plain_steps_are_seen_by_who_has_to(pair: Pair) -> None:
    """Also those that are made without a decision."""
    part = Reading(pair.draft)
    drafter = auto(part, curve=STEEP)
    [output] = serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert output.stats.drafted == 0 and len(part.observed) > output.stats.passes == 60


def test_auxiliary_nodes_teach_no_shape(pair: Pair) -> None:
    """Since they say nothing once they are cut, no more are made than were chosen."""
    asked: list[int] = []

    class Noting(Lookahead):
        def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
            asked.extend(budgets)
            return super().draft(sequences, budgets, draws)

    curve = {1: 1.0, 2: 1.01, 3: 9.0, 64: 999.0}
    drafter = auto(Noting(window=2, ngram_size=3), curve=curve)
    serve(pair.target, drafter, TargetOnly(), PROMPTS[:1], GREEDY)
    assert max(asked) == 1 and len(drafter.control.shapes[0]) == 16


CPU = torch.device("cpu")


def test_a_query_took_as_long_for_all_rows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two sequences' copies took isn't learned as what one's takes."""
    rows: list[int] = []

    class Noting(CostModel):
        def record_draft_time(self, name: str, sequences: int, levels: int, ms: float) -> None:
            rows.append(sequences)

    monkeypatch.setattr(auto_module, "_TIMED_EVERY", 1)
    monkeypatch.setattr(auto_module, "_LATER", 1)
    drafter = auto(PromptLookup(4))
    assert drafter.costs is not None
    drafter.costs = Noting(FLAT, drafter.costs.drafts, fixed=True)
    serve(pair.target, drafter, TargetOnly(), PROMPTS[:2], GREEDY, slots=2)
    assert 2 in rows


def test_a_decision_is_paid_for_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a copier was queried it is a part of that query."""
    drafter = auto(PromptLookup(4), SmallLM(pair.draft))
    queried, charged = list[bool](), list[int]()
    record = drafter.control.record_step

    def noted(choice: Any, copiers: Any, *rest: Any) -> None:
        queried.append(bool(copiers))
        record(choice, copiers, *rest)

    monkeypatch.setattr(drafter.control, "record_step", noted)
    monkeypatch.setattr(drafter.control, "charge", lambda *given: charged.append(len(queried)))
    monkeypatch.setattr(drafter.control, "idle_steps", lambda count: 0)
    monkeypatch.setattr(drafter.control, "copiers_to_query", lambda count: [0] * (len(queried) % 2))
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert charged == [n for n, asked in enumerate(queried, 1) if not asked]
    assert {*queried} == {True, False}


def test_one_row_with_room_is_enough_to_learn_a_shape(pair: Pair) -> None:
    drafter = auto(Drawn(pair.target, (2, 2)), level=0.1)
    params = [replace(SAMPLED, max_draft_tokens=2), SAMPLED]
    serve(pair.target, drafter, MultiCandidate(), PROMPTS[:2], params, slots=2)
    assert len(drafter.control.shapes[0]) == 6


def test_each_row_takes_its_own_copy(pair: Pair) -> None:
    """Where all of a batch copy, and not from the same part."""
    prompts = [tuple(prompt) for prompt in PROMPTS[:2]]
    known = texts(serve(pair.target, PromptLookup(), TargetOnly(), prompts, GREEDY))
    parts = [Oracle({prompts[i]: known[i], prompts[1 - i]: []}, 8) for i in (0, 1)]
    outputs = serve(pair.target, auto(*parts), TargetOnly(), prompts, GREEDY, slots=2)
    assert texts(outputs) == known
    for number, output in enumerate(outputs):
        assert output.stats.drafts == output.stats.chosen[f"Oracle{number}"] > 5


def test_copies_are_compared_until_they_are_judged(pair: Pair) -> None:
    """One that goes on isn't left for another that is over, nor for a query that finds nothing."""
    drafter = auto(Oracle({}))
    drafter.bind(ModelTarget(pair.target, 2, 64))
    rows = [Sequence.start([1], GREEDY) for _ in range(2)]
    for row, copy in zip(rows, ([7, 8, 9], [7]), strict=True):
        drafter._histories(row)[0].remember(copy, chain(len(copy)), 1, False)
        row.tokens.append(7)
    drafter._follow(rows)
    assert drafter._comparing
    drafter._choose(rows, [4, 4], {0: empty(2, CPU)})
    assert drafter._comparing


@pytest.mark.parametrize("taken", [True, False])
def test_a_copy_that_is_taken_is_compared(taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of an earlier one that isn't judged yet."""
    drafter, sequence = auto(Oracle({})), Sequence.start([1], GREEDY)
    [history] = drafter._histories(sequence)
    history.remember([7, 8, 9], chain(3), 1, False)
    before = history.pending
    choice = Choice([0 if taken else None], [2 * taken], 1.0)
    monkeypatch.setattr(drafter.control, "choose", lambda rows: choice)
    drafter._choose([sequence], [2], {0: chains([[8, 9]], CPU)})
    assert (history.pending is not before) is taken


def test_a_draft_before_anothers_was_not_the_last(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it was right says nothing any more."""
    drafter = auto(SmallLM(pair.target), SmallLM(pair.target))
    choose, right = drafter.control.choose, list[list[bool]]()

    def by_turns(rows: Any) -> Any:
        right.append([history.last_right for history in rows[0].histories])
        nodes = min(2, rows[0].room)
        return replace(choose(rows), takers=[len(right) % 2 if nodes else None], nodes=[nodes])

    monkeypatch.setattr(drafter.control, "choose", by_turns)
    monkeypatch.setattr(drafter.control, "idle_steps", lambda count: 0)
    serve(pair.target, drafter, Speculative(), PROMPTS[:1], GREEDY)
    assert [True, False] in right and [False, True] in right and [True, True] not in right


def test_a_drafts_levels_are_those_of_its_longest_row(pair: Pair) -> None:
    """Rows that end earlier wait for it."""
    drafter, none = auto(SmallLM(pair.draft)), empty(2, CPU)
    now: Any = SimpleNamespace(choice=Choice([0, 0], [3, 3], 1.0), decided=0.0, drafted=1.0)
    steps: Any = [SimpleNamespace(drafted=count, tree=none) for count in (1, 3)]
    assert [*drafter._drafts(now, steps)] == [("SmallLM0", 2, 3, 1000.0)]


@torch.inference_mode()
def test_a_row_draws_by_its_own_numbers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one that copies."""
    target = ModelTarget(pair.target, 2, 64)
    rows = [Sequence.start(p, SamplingParams(), seed=i) for i, p in enumerate(PROMPTS[:2])]
    copy = Oracle({tuple(PROMPTS[0]): [1] * 9, tuple(PROMPTS[1]): []})
    drafter = auto(copy, SmallLM(pair.draft, 4))
    drafter.bind(target)
    for row in rows:
        drafter.begin(row)
    monkeypatch.setattr(drafter.control, "choose", lambda rows: Choice([0, 1], [4, 4], 1.0))
    monkeypatch.setattr(drafter.control, "copiers_to_query", lambda count: [0])
    tree = drafter.draft(rows, [9, 9], draws_for(rows, CPU))
    alone = SmallLM(pair.draft, 4)
    alone.bind(target)
    alone.begin(rows[1])
    drawn = alone.draft(rows[1:], [4], draws_for(rows[1:], CPU))
    assert tree.counts == [4, 4] and tree.tokens[1].tolist() == drawn.tokens[0].tolist()
