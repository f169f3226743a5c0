"""What changes logits before the temperature: processors, penalties, ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from folding import PATHS, VOCAB, distribution, logits_of, sequence
from foretoken import ForetokenError, SamplingParams
from foretoken.sampling.fold import fold


def test_a_processor_sees_the_accepted_prefix_along_each_path() -> None:
    """A user's processor gets prompt, output and the draft tokens before its place, [1, n]."""
    seen: list[list[int]] = []

    def spy(ids: Tensor, scores: Tensor) -> Tensor:
        assert ids.shape[0] == 1 and scores.shape == (1, VOCAB)
        seen.append(ids[0].tolist())
        scores[:, 0] = 100.0
        return scores

    logits = logits_of(rows=2)
    plain = sequence(SamplingParams())
    spied = sequence(SamplingParams(logits_processors=[spy]), [8])
    found = fold(logits, [plain, spied], lambda: [PATHS, PATHS]).probs
    assert seen == [[1, 2, 3, 8, *path] for path in PATHS]
    assert found[1, :, 0].min() > 0.999
    torch.testing.assert_close(found[0], logits[0].softmax(-1))


def test_a_processor_may_give_back_new_scores() -> None:
    """As transformers' own do; several are applied in their order."""
    params = SamplingParams(
        logits_processors=[lambda i, s: s * 0, lambda i, s: s + torch.arange(40)]
    )
    expected = torch.arange(VOCAB, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(distribution(logits_of(), params)[2], expected)


@pytest.mark.parametrize(
    ("given_back", "words"),
    [
        (lambda s: None, "None; it must be a tensor"),
        (lambda s: [0.0], "a value of type list; it must be a tensor"),
        (lambda s: s[0], "torch.float64 [40]; it must be a tensor of scores, [1, 40]"),
        (lambda s: s.expand(3, -1), "torch.float64 [3, 40]; it must be"),
        (lambda s: s[:, :1], "torch.float64 [1, 1]; it must be"),
        (lambda s: s * 1j, "torch.complex128 [1, 40]; it must be"),
    ],
)
def test_what_is_no_scores(given_back: Any, words: str) -> None:
    """A processor's mistake is named; what would be broadcast or cut to fit is one too."""
    params = SamplingParams(logits_processors=[lambda ids, scores: given_back(scores)])
    folded = fold(logits_of(vocab=40), [sequence(params)], lambda: [PATHS])
    assert folded.bad.all()
    assert f"A logits processor gave back {words}" in str(folded.errors[0, 0])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6))
def test_running_counts_are_recounts(blocks: list[list[int]]) -> None:
    """Penalties counted as the text grows are those counted anew."""
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    grown, logits = sequence(params), logits_of(9, vocab=10)
    for block in blocks:
        grown.tokens += block
        found = fold(logits, [grown], lambda: [PATHS]).probs
    if blocks:
        anew = fold(logits, [sequence(params, grown.output)], lambda: [PATHS]).probs
        assert found.equal(anew)


def test_ids_outside_the_vocabulary() -> None:
    """Biases and lists with ids that the target doesn't have are refused."""
    for options in (
        dict(logit_bias={40: 1.0}),
        dict(bad_token_ids=[-1]),
        dict(allowed_token_ids=[99]),
    ):
        with pytest.raises(ForetokenError, match="vocabulary of 40"):
            distribution(logits_of(), SamplingParams(**options))  # type: ignore[arg-type]
