"""What transformers' `generate` hands over, row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from foretoken import ForetokenError
from foretoken.models.hf.generate import Prepared
from foretoken.testing import Pair

PADDED = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 1]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def prepared(pair: Pair, processors: list[Any], *, sample: bool = False, **config: Any) -> Prepared:
    """A batch of two rows, the first one padded, of at most eight tokens each."""
    given = tf.GenerationConfig(do_sample=sample, **config)
    ends = [tf.MaxLengthCriteria(8), tf.EosTokenCriteria(torch.tensor([3]))]
    return Prepared(pair.transformers, PADDED, processors, ends, given, {"attention_mask": MASK})


def test_rows_lose_their_padding(pair: Pair) -> None:
    """Prompts, the room for new tokens, and the ends of text."""
    batch = prepared(pair, [])
    assert [batch.prompt(row) for row in range(2)] == [[5, 6], [7, 8, 9, 1]]
    assert (batch.limit, batch.eos_ids, batch.criteria) == (4, frozenset({3}), [])


def test_the_shortest_length_counts(pair: Pair) -> None:
    """As in a plain `generate`, which ends at the first criterion that is met."""
    lengths = [tf.MaxLengthCriteria(8), tf.MaxLengthCriteria(6)]
    given = tf.GenerationConfig(do_sample=False)
    found = Prepared(pair.transformers, PADDED, [], lengths, given, {"attention_mask": MASK})
    assert found.limit == 2


def test_warpers_become_sampling_parameters(pair: Pair) -> None:
    """In our order they are folded with the rest; what stands before them stays a processor."""
    warpers = [tf.TemperatureLogitsWarper(0.7), tf.TopKLogitsWarper(5), tf.TopPLogitsWarper(0.9)]
    [first, second] = prepared(pair, warpers, sample=True).params()
    assert (first.temperature, first.top_k, first.top_p) == (0.7, 5, 0.9)
    assert not first.logits_processors and first.seed != second.seed
    other_way = prepared(
        pair, [tf.TopKLogitsWarper(5), tf.TemperatureLogitsWarper(0.7)], sample=True
    )
    [params, _] = other_way.params()
    assert (params.temperature, params.top_k, len(params.logits_processors)) == (0.7, 0, 1)


def test_warpers_that_ours_are_not(pair: Pair) -> None:
    """Those that keep more, that leave something of what they cut, and what greedy decoding
    doesn't ask for: it stays greedy."""
    others = [
        tf.TopPLogitsWarper(0.9, min_tokens_to_keep=2),
        tf.TopKLogitsWarper(5, filter_value=-1e4),
        tf.MinPLogitsWarper(0.1, min_tokens_to_keep=2),
        tf.TopPLogitsWarper(0.0),
    ]
    for warper in others:
        [params, _] = prepared(pair, [warper], sample=True).params()
        assert len(params.logits_processors) == 1
        assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    [greedy, _] = prepared(pair, [tf.TemperatureLogitsWarper(0.7)]).params()
    assert greedy.temperature == 0.0 and len(greedy.logits_processors) == 1


@pytest.mark.parametrize(
    ("ignored", "own", "seen"),
    [
        (None, True, [5, 6, 9]),
        ([2, 0], True, [5, 6, 9]),
        ([3, 1], False, [6, 9]),
        ([0, 0], False, [0, 5, 6, 9]),
        (2, False, [5, 6, 9]),
    ],
)
def test_a_penalty_of_all_but_the_padding_is_ours(
    pair: Pair, ignored: Any, own: bool, seen: list[int]
) -> None:
    """One that leaves out more of the prompts, or less, stays what it is."""
    ignored = torch.tensor(ignored) if isinstance(ignored, list) else ignored
    process = tf.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=ignored)
    batch = prepared(pair, [process])
    [params, _] = batch.params()
    assert params.repetition_penalty == (1.5 if own else 1.0)
    assert len(params.logits_processors) == (not own)
    scores = batch.processor(process, 0)(torch.tensor([[5, 6, 9]]), torch.ones(1, 97))
    assert (scores[0] < 1).nonzero().flatten().tolist() == seen


def test_a_processor_of_ones_own_sees_what_generate_shows_it(pair: Pair) -> None:
    """The whole batch with its padding, also where its class is made of a built-in one's."""
    seen: list[list[int]] = []

    class Own(tf.NoRepeatNGramLogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            seen.extend(input_ids.tolist())
            return scores + torch.arange(len(scores))[:, None]

    process = Own(2)
    scores = prepared(pair, [process]).processor(process, 1)(PADDED[1:], torch.zeros(1, 97))
    assert seen == [[7, 8, 9, 1]] * 2 and (scores == 1).all() and scores.shape == (1, 97)
    seen.clear()
    prepared(pair, [process]).processor(process, 0)(PADDED[:1, 2:], torch.zeros(1, 97))
    assert seen == [[0, 0, 5, 6]] * 2


def test_a_criterion_that_answers_for_all(pair: Pair) -> None:
    """By one truth value, as old ones do; one for each row counts there alone."""
    each = torch.tensor([False, True])
    for answer, met in ((True, [True, True]), (False, [False, False]), (each, [False, True])):
        ends = [tf.MaxLengthCriteria(8), lambda ids, scores, answer=answer: answer]
        given = tf.GenerationConfig(do_sample=False, pad_token_id=0)
        batch = Prepared(pair.transformers, PADDED, [], ends, given, {"attention_mask": MASK})
        asked = [batch.criterion(row) for row in range(2)]
        assert [ask is not None and ask([9]) for ask in asked] == met
    assert prepared(pair, []).criterion(0) is None


@torch.no_grad()
def test_logits_are_those_of_each_row_alone() -> None:
    """By a model whose learned positions count a row's own tokens."""
    torch.manual_seed(0)
    numbers = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = tf.GPT2LMHeadModel(tf.GPT2Config(**numbers, bos_token_id=1, eos_token_id=3)).eval()
    model.transformer.wpe.weight *= 30
    given = tf.GenerationConfig(do_sample=False, output_logits=True)
    ends, inputs = [tf.MaxLengthCriteria(8)], {"attention_mask": MASK}
    written = torch.cat((PADDED, torch.tensor([[3, 4], [5, 6]])), 1)
    found = Prepared(model, PADDED, [], ends, given, inputs).traced(written)
    assert len(found["logits"]) == 2 and "scores" not in found
    for row, start in enumerate((2, 0)):
        alone = model(written[row : row + 1, start:]).logits[0, -3:-1]
        torch.testing.assert_close(torch.stack(found["logits"])[:, row], alone)


def test_what_fills_short_rows(pair: Pair) -> None:
    """Without a padding token it is the first that ends a text."""
    assert prepared(pair, [], pad_token_id=7, eos_token_id=[4, 9]).pad == 7
    assert prepared(pair, [], eos_token_id=[4, 9]).pad == 4
    assert prepared(pair, [], eos_token_id=9).pad == 9
    assert prepared(pair, []).pad == 0


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("force_words_ids", {"force_words_ids": [[5]]}),
        ("DoLa", {"dola_layers": "high"}),
        ("use_mtp", {"use_mtp": True}),
        ("assistant_early_exit", {"assistant_early_exit": 1}),
    ],
)
def test_other_ways_to_search_are_refused(pair: Pair, name: str, given: dict[str, Any]) -> None:
    config = tf.GenerationConfig(do_sample=False)
    for field, value in given.items():
        setattr(config, field, value)
    ends = [tf.MaxLengthCriteria(8)]
    with pytest.raises(ForetokenError, match=f"does not support .*{name}"):
        Prepared(pair.transformers, PADDED, [], ends, config, {"attention_mask": MASK})


def test_a_watermark_that_keeps_a_state_is_refused(pair: Pair) -> None:
    keeping = tf.SynthIDTextWatermarkLogitsProcessor(5, [1, 2], 16, 0, 8, torch.device("cpu"))
    with pytest.raises(ForetokenError, match=r"SynthID.* keeps a state"):
        prepared(pair, [keeping])


@pytest.mark.parametrize(
    ("name", "given", "fits"),
    [
        ("position_ids", torch.tensor([[0, 0, 0, 1], [0, 1, 2, 3]]), True),
        ("position_ids", torch.tensor([[1, 1, 0, 1], [0, 1, 2, 3]]), True),
        ("position_ids", torch.tensor([[0, 1, 2, 3]]), False),
        ("position_ids", torch.arange(4).expand(3, 2, 4), False),
        ("attention_mask", MASK.bool(), True),
        ("attention_mask", 1 - MASK, False),
        ("attention_mask", torch.ones(2, 5), False),
        ("attention_mask", torch.ones(2, 1, 4, 4), False),
        ("attention_mask", {"full_attention": MASK}, False),
    ],
)
def test_masks_and_positions(pair: Pair, name: str, given: Any, fits: bool) -> None:
    """Of rows that are padded on their left, in whatever way padding is counted."""
    inputs = {"attention_mask": MASK, name: given}
    config, ends = tf.GenerationConfig(do_sample=False), [tf.MaxLengthCriteria(8)]
    if fits:
        assert Prepared(pair.transformers, PADDED, [], ends, config, inputs).starts == [2, 0]
        return
    with pytest.raises(ForetokenError, match=f"{name} must"):
        Prepared(pair.transformers, PADDED, [], ends, config, inputs)


def test_greedy_rows_draw_nothing(pair: Pair) -> None:
    """No seed is taken from torch's generator, so a user's random numbers stay as they were."""
    before = torch.get_rng_state()
    assert [params.temperature for params in prepared(pair, []).params()] == [0.0, 0.0]
    assert torch.equal(before, torch.get_rng_state())


def test_a_criterion_needs_a_token_to_fill_with(pair: Pair) -> None:
    """Rows of different lengths can't be handed back without one."""
    stop = [tf.MaxLengthCriteria(8), lambda ids, scores: torch.zeros(2, dtype=torch.bool)]
    given = tf.GenerationConfig(do_sample=False)
    with pytest.raises(ForetokenError, match="pad_token_id"):
        Prepared(pair.transformers, PADDED, [], stop, given, {"attention_mask": MASK})
