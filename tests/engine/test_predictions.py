"""A request's prediction is drafted by whatever is served, and changes nothing but the speed."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest

from engines import engine_of, finish, served, written
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.access import Access
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.shared.wrapper import Wrapper
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.engine import Engine
from foretoken.engine.predictions import Predicting, _Copier
from foretoken.models.seq2seq.target import target_for
from foretoken.protocols import Drafter, Verifier
from foretoken.registry import build_verifier
from foretoken.sampling.sequence import Sequence
from foretoken.testing import ByteTokenizer, Pair, check_distribution, table_pair
from foretoken.testing.checks import SAMPLED
from foretoken.tree import Kind
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from test_conformance import CELLS, PROMPTS, make_drafter, models, wrap_of

GREEDY = SamplingParams(temperature=0, max_tokens=24)
TOKENS = 24


def predictions(text: Seq[int]) -> list[list[int] | None]:
    """The text itself, with some words changed, put in or left out, another text, none, a part."""
    changed = [*text[:5], 3, *text[6:11], 4, 4, *text[11:14], *text[15:], 1, 2]
    return [list(text), changed, [50, 51, 52], None, list(text[9:])]


def texts(engine: Engine, params: SamplingParams, predicted: bool) -> list[list[list[int]]]:
    """Of all prompts together, each with its own kind of prediction of what is written without."""
    plain = engine_of(models("native"), slots=1)
    requests = []
    for number, prompt in enumerate(PROMPTS[:5]):
        [text] = written(served(plain, prompt, params))
        own = replace(params, prediction=predictions(text)[number]) if predicted else params
        requests.append(engine.add(prompt, own))
    finish(engine)
    assert all(request.error is None for request in requests)
    stats = engine.stats
    counted = stats.accepted_prediction_tokens, stats.rejected_prediction_tokens
    assert all(counted) if predicted else not any(counted)
    return [written(request) for request in requests]


def engine_for(name: str, rule: Verifier) -> Engine:
    pair, wrap = models("native"), wrap_of(name)
    target = target_for(pair.target, 4, 256)
    return Engine(target if wrap is None else wrap(target), make_drafter(name, pair), rule)


TAKING = [c for c in CELLS if Kind.CHOSEN in c.values[1].kinds]
ONE_EACH = {c.values[0]: c for c in reversed(TAKING)}.values()
PLAIN_TOKENS = [c for c in CELLS if c.values[1] == TargetOnly()]


@pytest.mark.parametrize(("name", "rule"), ONE_EACH)
def test_greedy_texts(name: str, rule: Verifier) -> None:
    """Every drafter."""
    found, plain = (
        texts(engine_for(name, rule), GREEDY, True),
        texts(engine_for("nothing", TargetOnly()), GREEDY, False),
    )
    assert found == plain


@pytest.mark.parametrize(("name", "rule"), PLAIN_TOKENS)
def test_seeded_texts(name: str, rule: Verifier) -> None:
    """Every drafter of chosen tokens: those of plain decoding with that seed."""
    found, plain = (
        texts(engine_for(name, rule), SAMPLED, True),
        texts(engine_for("nothing", TargetOnly()), SAMPLED, False),
    )
    assert found == plain


class WithPredictions(Wrapper):
    """A drafter as the engine calls it."""

    least = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds = self.kinds | {Kind.CHOSEN}

    def bind(self, access: Access) -> None:
        super().bind(access)
        self._predicting = Predicting(self.drafters[0], access.device)

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
        return self._predicting.draft(sequences, budgets, draws)

    def observe(self, sequences: Any, steps: Any) -> None:
        self._predicting.observe(sequences, steps)


@pytest.mark.parametrize("rule", ["speculative", "multi_candidate", "block", "traversal"])
def test_the_distribution_beside_drawn_drafts(rule: str) -> None:
    """Where tokens are drawn as well, every outcome enumerated: it is the target's."""

    def make(pair: Pair) -> Drafter:
        return WithPredictions([SmallLM(pair.draft, 2)])

    for prediction in ([1, 2, 0, 1], [0, 0, 1]):
        params = SamplingParams(temperature=0.8, prediction=prediction)
        check_distribution(make, build_verifier(rule), table_pair(), params, 3, rows=1)


def test_right_predictions_are_fast_and_both_counts_add_up(pair: Pair) -> None:
    """A text with few words changed: several tokens a pass. Both counts add up to what was
    drafted, also where a text ends within a draft."""
    engine = engine_of(pair)
    prompt, params = [5, 9, 2, 5, 9, 2, 5], replace(GREEDY, max_tokens=200)
    [text] = written(served(engine, prompt, params))
    changed = [token if i % 50 else 96 - token for i, token in enumerate(text, 1)]
    for limit, stop in ((200, ()), (187, ()), (200, (text[150],))):
        own = replace(params, prediction=changed, max_tokens=limit, stop_token_ids=stop)
        stats = served(engine, prompt, own).stats
        assert stats.accepted_prediction_tokens == stats.accepted
        assert stats.accepted + stats.rejected_prediction_tokens == stats.drafted
    whole = served(engine, prompt, replace(params, prediction=changed)).stats
    assert whole.mean_acceptance_length > 5
    right = served(engine, prompt, replace(params, prediction=text)).stats
    assert right.rejected_prediction_tokens == 0
    assert right.accepted_prediction_tokens == 200 - right.passes


def test_a_wrong_prediction_costs_little(pair: Pair) -> None:
    """A token a pass, once it is known to be wrong."""
    engine, params = engine_of(pair), replace(GREEDY, max_tokens=100)
    prompt = [5, 9, 2, 5, 9, 2, 5]
    [text] = written(served(engine, prompt, params))
    others = [token for token in range(97) if token not in text]
    stats = served(engine, prompt, replace(params, prediction=others * 9)).stats
    assert stats.accepted == 0 and stats.drafted < stats.passes + 15


def test_where_the_output_goes_on() -> None:
    """After what was written: as it follows the prediction, after a token that was replaced, after
    words that were left out, at the nearest of places that look alike, at its end."""
    text = [1, 2, 3, 4, 5, 6, 7, 2, 3, 9, 8]
    for output, following in (
        ([], 0),
        ([1, 2, 3], 3),
        ([1, 2, 50], 3),
        ([1, 2, 50, 4], 4),
        ([1, 2, 5], 3),
        ([1, 2, 5, 6], 6),
        ([1, 2, 3, 4, 5, 6, 7, 9, 8], 11),
        ([1, 50, 3], 3),
        ([1, 2, 3, 4, 5, 6, 50, 3], 9),
        ([1, 2, 3, 4, 5, 6, 7, 60, 61, 2, 3], 9),
        ([5, 6, 7, 2, 3], 9),
        (text, 11),
    ):
        sequence = Sequence.start([60, *output], GREEDY)
        sequence.prompt_length = 1
        draft = _Copier(text).draft(sequence, 99)
        assert draft == text[following:][: len(draft)], output
        assert draft or following == len(text), output


def test_how_many_places_are_looked_at() -> None:
    """The nearest ones: at most 64 for a token, however often it is predicted."""

    class Counting(_Copier):
        compared = 0

        def _alike(self, output: Seq[int], place: int) -> int:
            self.compared += 1
            return super()._alike(output, place)

    text = [1, 2, 3] * 10_000
    copier, sequence = Counting(text), Sequence.start([60], GREEDY)
    sequence.tokens += [*text[:300], *[9] * 8, 2]
    assert copier.draft(sequence, 99) == [3, 1, 2]
    assert copier._next == 308
    assert copier.compared <= 64 + 3 * 9


def test_how_long_drafts_are() -> None:
    """As long as three times what was followed; short after a change; a token where nothing was
    accepted again and again; as before once something was."""
    text, copier = list(range(200)), _Copier(list(range(200)))
    sequence = Sequence.start([60], GREEDY)

    def length(*more: int) -> int:
        sequence.tokens.extend(more)
        return len(copier.draft(sequence, 99))

    assert length() == 9
    assert length(*text[:5]) == 24
    assert length(*text[5:30]) == 64
    assert length(500) == 2  # nothing says where it goes on
    assert length(*text[31:33]) == 6
    for _ in range(4):
        copier.note(0)
    assert length() == 1
    copier.note(1)
    assert length(*text[33:40]) == 27


def test_no_copied_token_is_the_served_drafters(pair: Pair) -> None:
    """It may draft nothing beside one, and is told what was written, and that it drafted nothing
    itself."""
    told: list[int] = []
    left: list[int] = []

    class Told(SmallLM):
        def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
            left.extend(budgets)
            return super().draft(sequences, budgets, draws)

        def observe(self, sequences: Any, steps: Any) -> None:
            told.extend(step.drafted for step in steps if step.tokens)
            super().observe(sequences, steps)

    engine = engine_of(pair, Told(pair.draft, 3), rule=Speculative())
    request = served(engine, [5, 9, 2], replace(GREEDY, prediction=[1, 2, 3] * 30))
    assert request.stats.drafted > 0 == sum(told) == sum(left)
    assert len(left) == request.stats.passes


def test_others_are_drafted_for_as_before(pair: Pair) -> None:
    """A request without a prediction, beside one with one: its drafts and counts are the same."""
    alone, beside = (engine_of(pair, SmallLM(pair.draft, 3), rule=Speculative()) for _ in "ab")
    prompts, params = PROMPTS[:2], replace(SAMPLED, max_tokens=40)
    expected = served(alone, prompts[0], params)
    request = beside.add(prompts[0], params)
    other = beside.add(prompts[1], replace(params, prediction=[1, 2, 3] * 9))
    finish(beside)
    assert written(request) == written(expected)
    assert (request.stats.drafted, request.stats.accepted_at) == (
        expected.stats.drafted,
        expected.stats.accepted_at,
    )
    assert request.stats.rejected_prediction_tokens == 0 < other.stats.drafted


def test_rules_that_a_prediction_would_change(pair: Pair) -> None:
    """They are refused, by one sentence; without a prediction they serve."""
    for rule, why in (("k_seq", "takes drawn tokens only"), ("typical", "approximately")):
        engine = engine_of(pair, SmallLM(pair.draft, 2), rule=build_verifier(rule))
        with pytest.raises(ForetokenError, match=f"{why}, so a prediction would change"):
            engine.add([1, 2], replace(GREEDY, prediction=[3]))
        served(engine, [1, 2], GREEDY)


def test_what_is_given(pair: Pair) -> None:
    """A text, or ids of the vocabulary; the engine takes ids."""
    with LLM(pair.target, eos_ids=(), tokenizer=ByteTokenizer(97)) as llm:
        [plain] = llm.generate("hello hello", GREEDY)
        [out] = llm.generate("hello hello", replace(GREEDY, prediction=plain.text))
        assert out.token_ids == plain.token_ids
        assert out.stats.accepted_prediction_tokens > 10
        for empty in ("", []):
            [out] = llm.generate("hello hello", replace(GREEDY, prediction=empty))
            assert out.stats.drafted == 0
        with pytest.raises(ForetokenError, match="Token id 97 of prediction"):
            llm.generate("hello", replace(GREEDY, prediction=[97]))
    with pytest.raises(ForetokenError, match="prediction"):
        SamplingParams(prediction=3)  # type: ignore[arg-type]
    with pytest.raises(ForetokenError, match="takes a prediction as token ids"):
        engine_of(pair, Nothing()).add([1], replace(GREEDY, prediction="a"))


def test_a_prediction_is_nobodys_choice() -> None:
    """The passes that it drafted for are not counted as the drafter's."""
    llm = LLM("mini", speculative_config={"method": "auto", "model": "mini-draft"})
    params = SamplingParams(temperature=0, max_tokens=20)
    [plain] = llm.generate("Tell me", params)
    assert sum(plain.stats.chosen.values()) == plain.stats.passes
    params = replace(params, prediction=plain.outputs[0].text)
    [output] = llm.generate("Tell me", params)
    assert output.stats.accepted_prediction_tokens > 10 and not output.stats.chosen
