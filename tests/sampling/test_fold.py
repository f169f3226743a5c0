"""From logits to a distribution: against transformers' own warpers, and token by token for the
rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from folding import PATHS, VOCAB, distribution, logits_of, sequence
from foretoken import SamplingParams
from foretoken.sampling.fold import best, fold
from foretoken.sampling.sequence import Sequence
from foretoken.testing import reference_distribution

WARPERS = [
    (dict(temperature=0.3), lambda: [TemperatureLogitsWarper(0.3)]),
    (dict(top_k=7), lambda: [TopKLogitsWarper(7)]),
    (dict(top_k=1), lambda: [TopKLogitsWarper(1)]),
    (dict(top_k=500), lambda: [TopKLogitsWarper(500)]),
    (dict(top_p=0.8), lambda: [TopPLogitsWarper(0.8)]),
    (dict(top_p=0.01), lambda: [TopPLogitsWarper(0.01)]),
    (dict(min_p=0.2), lambda: [MinPLogitsWarper(0.2)]),
    (dict(min_p=1.0), lambda: [MinPLogitsWarper(1.0)]),
    (dict(repetition_penalty=1.7), lambda: [RepetitionPenaltyLogitsProcessor(1.7)]),
    (dict(repetition_penalty=0.6), lambda: [RepetitionPenaltyLogitsProcessor(0.6)]),
    (
        dict(temperature=1.4, min_p=0.02, top_k=20, top_p=0.7, repetition_penalty=1.2),
        lambda: [
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(1.4),
            MinPLogitsWarper(0.02),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.7),
        ],
    ),
]


@pytest.mark.parametrize(("options", "warpers"), WARPERS, ids=[str(w[0]) for w in WARPERS])
@pytest.mark.parametrize("vocab", [VOCAB, 700])
def test_the_distribution_is_transformers_own(
    options: dict[str, Any], warpers: Any, vocab: int
) -> None:
    """Each processor, and all in one row, gives the probabilities that transformers would use."""
    for seed, scale in (
        (0, 2.0),
        (1, 0.05),
    ):  # flat distributions need more candidates than are tried first
        logits = logits_of(seed, vocab=vocab, scale=scale)
        found = distribution(logits, SamplingParams(**options), [7, 7, 9])
        for place, path in enumerate(PATHS):
            scores = logits[0, place : place + 1]
            for warper in warpers():
                scores = warper(torch.tensor([[1, 2, 3, 7, 7, 9, *path]]), scores)
            torch.testing.assert_close(found[place], scores.softmax(-1)[0], atol=1e-12, rtol=0)


EDITS = [
    dict(presence_penalty=0.9),
    dict(frequency_penalty=0.7),
    dict(frequency_penalty=-0.5),
    dict(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, top_k=9),
    dict(logit_bias={0: 4.0, 39: -50.0}),
    dict(allowed_token_ids=[4, 5, 30]),
    dict(bad_token_ids=[3, 5]),
    dict(bad_token_ids=[]),
    dict(allowed_token_ids=[4], top_p=0.3),
    dict(min_tokens=4),
    dict(min_tokens=5, stop_token_ids=(11,)),
    dict(logit_bias={3: 9.0}, allowed_token_ids=[3, 4], bad_token_ids=[3], temperature=0.5),
    dict(temperature=0, frequency_penalty=2.0, logit_bias={5: 3.0}),
]


@pytest.mark.parametrize("options", EDITS, ids=str)
def test_the_distribution_token_by_token(options: dict[str, Any]) -> None:
    """Penalties, lists, biases and the minimum length, at every place with its own draft path."""
    params, ends = SamplingParams(**options), frozenset({2, 11})
    logits = logits_of(5)
    one = sequence(params, [7, 7, 9], end_ids=ends)
    found = fold(logits, [one], lambda: [PATHS]).probs[0]
    for place, path in enumerate(PATHS):
        expected = reference_distribution(logits[0, place], [*one.tokens, *path], 3, params, ends)
        torch.testing.assert_close(found[place].tolist(), expected, atol=1e-12, rtol=0)


@settings(max_examples=80, deadline=None)
@given(
    st.floats(0.05, 3), st.integers(0, 12), st.floats(0.01, 1), st.floats(0, 1), st.integers(0, 99)
)
def test_any_truncation(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    """Temperature, min_p, top_k and top_p together, against the spelled-out distribution."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = logits_of(seed, vocab=12)
    found = distribution(logits, params)
    for place, path in enumerate(PATHS):
        expected = reference_distribution(logits[0, place], [1, 2, 3, *path], 3, params)
        torch.testing.assert_close(found[place].tolist(), expected, atol=1e-9, rtol=0)


def test_rows_keep_their_own_settings() -> None:
    """A batch of unlike requests: every row is what it is alone."""
    each = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.4),
        SamplingParams(min_p=0.3),
        SamplingParams(frequency_penalty=1),
        SamplingParams(top_k=30, top_p=0.99),
        SamplingParams(temperature=2.0, bad_token_ids=[1]),
    ]
    logits = logits_of(2, rows=len(each), vocab=600, scale=0.3)
    sequences = [sequence(params, [4]) for params in each]
    found = fold(logits, sequences, lambda: [PATHS] * len(each)).probs
    for row, params in enumerate(each):
        alone = distribution(logits[row : row + 1], params, [4])
        torch.testing.assert_close(found[row], alone, atol=1e-14, rtol=0)


@pytest.mark.parametrize("likeliest", [0, 5])
@pytest.mark.parametrize("top_k", [1, 3])
def test_top_k_keeps_so_many_however_sure_the_model_is(likeliest: int, top_k: int) -> None:
    """Whose first token's probability is 1 in float32, and the others' aren't 0."""
    logits = -torch.arange(8, dtype=torch.float32).repeat(1, len(PATHS), 1) / 8
    logits[..., likeliest] = 20
    found = fold(logits, [sequence(SamplingParams(top_k=top_k))], lambda: [PATHS]).probs
    assert found[..., likeliest].eq(1).all() and found.count_nonzero(-1).eq(top_k).all()


def test_a_row_without_a_cut_keeps_its_bits_beside_one_with_a_cut() -> None:
    """Or its draws could depend on who else is served."""
    plain, cut = SamplingParams(), SamplingParams(top_p=0.9)
    logits = logits_of(5, rows=2, vocab=600, scale=0.3).float()
    both = fold(logits, [sequence(plain, [4]), sequence(cut, [4])], lambda: [PATHS] * 2).probs
    alone = fold(logits[:1], [sequence(plain, [4])], lambda: [PATHS]).probs
    assert torch.equal(both[0], alone[0])


def test_greedy_is_a_one_hot_and_best_agrees() -> None:
    """Temperature 0 puts all mass on the first of the largest; `best` names it."""
    logits = logits_of(1, rows=2)
    logits[0, 0, [5, 9]] = 50.0
    params = SamplingParams(temperature=0, frequency_penalty=0.5)
    sequences = [sequence(params, [5]), sequence(params)]
    probs = fold(logits, sequences, lambda: [PATHS] * 2).probs
    assert probs.sum(-1).eq(1).all() and probs.max(-1).values.eq(1).all()
    assert probs[0, 0, 9] == 1  # 5 was written before and is penalised
    sequences = [sequence(params, [5]), sequence(params)]
    assert best(logits, sequences, lambda: [PATHS] * 2).equal(probs.argmax(-1))
    tie = fold(logits, [sequence(SamplingParams(temperature=0))] * 2, lambda: [PATHS] * 2)
    assert tie.probs[0, 0].argmax() == 5


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.7, min_p=0.05),
        SamplingParams(temperature=1, top_k=3, top_p=0.8),
    ],
    ids=["greedy", "sampled", "min_p", "truncated"],
)
def test_padding_is_not_read(params: SamplingParams) -> None:
    """Its logits may be anything, and it becomes a point mass; those of a real place may not."""
    logits = logits_of(3, rows=3)
    counts, sequences = [1, 4, 3], [sequence(params) for _ in range(3)]
    whole = fold(logits.clone(), sequences, lambda: [PATHS] * 3)
    logits[0, 1:], logits[2, 3:] = torch.nan, torch.inf
    folded = fold(logits, sequences, lambda: [PATHS] * 3, counts)
    assert not folded.bad.any() and (folded.certain is not None) == params.greedy
    for row, count in enumerate(counts):
        assert torch.equal(folded.probs[row, :count], whole.probs[row, :count])
        assert folded.probs[row, count:, 0].eq(1).all()
        assert not folded.probs[row, count:, 1:].any()
    logits[1, 2] = torch.nan  # a real place
    folded = fold(logits, sequences, lambda: [PATHS] * 3, counts)
    assert folded.bad.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("params", [SamplingParams(top_k=1), SamplingParams(top_p=0.9)])
def test_what_rounds_to_certainty_is_cut_too(params: SamplingParams) -> None:
    """The first token's probability is 1 in float32, and the others' are not yet 0."""
    logits = torch.full((2, 3, VOCAB), -30.0)
    logits[..., 0] = 0
    assert logits.softmax(-1)[0, 0, :2].tolist()[0] == 1 and logits.softmax(-1)[0, 0, 1] > 0
    for counts in (None, [3, 2]):
        folded = fold(logits, [sequence(params)] * 2, lambda: [PATHS] * 2, counts)
        assert folded.probs[..., 0].eq(1).all() and not folded.probs[..., 1:].any()


def test_logits_are_left_alone() -> None:
    """Folding edits a copy."""
    logits = logits_of()
    before = logits.clone()
    distribution(
        logits, SamplingParams(logit_bias={1: 3}, repetition_penalty=2, min_p=0.1, top_k=2)
    )
    assert logits.equal(before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_places_without_a_distribution(temperature: float) -> None:
    """NaN, an infinite peak, or all forbidden: marked bad, given some distribution, others
    untouched."""
    logits = logits_of(rows=2)
    logits[0, 1, 4] = torch.nan
    logits[0, 2] = -torch.inf
    logits[0, 3, 4] = torch.inf
    params = SamplingParams(temperature=temperature)
    folded = fold(logits, [sequence(params)] * 2, lambda: [PATHS] * 2)
    assert folded.bad.tolist() == [[False, True, True, True], [False] * 4]
    assert folded.probs.isfinite().all()
    torch.testing.assert_close(folded.probs.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(folded.probs[1], distribution(logits[1:], params))


def test_small_temperatures_do_not_overflow() -> None:
    """Large logits over a tiny temperature are a one-hot, not a NaN."""
    logits = logits_of(scale=1e6)
    found = distribution(logits, SamplingParams(temperature=1e-6))
    assert found.isfinite().all() and found.max(-1).values.min() > 1 - 1e-9


def test_half_precision_is_folded_in_float32() -> None:
    """bfloat16 logits give float32 probabilities that sum to one."""
    found = distribution(logits_of().to(torch.bfloat16), SamplingParams(top_p=0.9))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(len(PATHS)))


def test_top_p_ends_where_it_is_reached() -> None:
    """A token after which nothing is missing is the last: 1/2 of the mass is one token of 1/2."""
    logits = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64).log()
    for top_p, kept in ((0.5, 1), (0.5 + 1e-9, 3)):
        start = Sequence.start([0], SamplingParams(top_p=top_p))
        probs = fold(logits[None, None], [start], lambda: [[[0]]]).probs[0, 0]
        assert int((probs > 0).sum()) == kept


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-3, 0.7])
@pytest.mark.parametrize("highest", [1e3, 1e12, 3e38])
def test_no_temperature_overflows(temperature: float, highest: float) -> None:
    """However large a logit is, of a bias or of a processor: the quotient isn't made before the
    highest logit is taken off."""
    logits = torch.zeros(1, 1, 6)
    logits[0, 0, :3] = torch.tensor([-highest, highest, highest / 2])
    for options in ({}, {"min_p": 0.1}, {"top_k": 2}):
        params = SamplingParams(temperature=temperature, **options)  # type: ignore[arg-type]
        folded = fold(logits, [Sequence.start([1], params)], lambda: [[[]]])
        assert folded.probs[0, 0].tolist() == [0, 1, 0, 0, 0, 0] and not folded.bad.any()
