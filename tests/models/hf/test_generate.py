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
