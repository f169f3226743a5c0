"""What changes logits before the temperature: processors, penalties, ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from folding import PATHS, VOCAB, distribution, logits_of, sequence
from foretoken import SamplingParams
from foretoken.config import build
from foretoken.registry import build_verifier
from foretoken.sampling.fold import fold
from foretoken.testing import Drawn, check_distribution, check_seeded, table_pair, tiny_pair
from foretoken.testing.checks import PROMPTS as CHECKED


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


def test_nobody_is_asked_about_padding() -> None:
    """Beside a longer draft a processor is called for its own places, with the result it has
    alone."""
    seen: list[list[int]] = []

    def spy(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids[0].tolist())
        return scores * 2

    params = SamplingParams(logits_processors=[spy], repetition_penalty=1.2, bad_words=[[3, 7]])
    logits = logits_of(rows=2)
    rows = [sequence(params), sequence(SamplingParams())]
    found = fold(logits, rows, lambda: [[[]], PATHS], [1, len(PATHS)])
    assert seen == [[1, 2, 3]] and not found.bad.any()
    alone = fold(logits[:1, :1], [sequence(params)], lambda: [[[]]])
    assert found.probs[0, 0].equal(alone.probs[0, 0])
    torch.testing.assert_close(found.probs[1], logits[1].softmax(-1))


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


def forbidden(words: list[Any], output: list[int]) -> list[set[int]]:
    """The tokens that each of PATHS may not be followed by, after the prompt 1, 2, 3."""
    found = distribution(logits_of(), SamplingParams(bad_words=words), output)
    return [{token for token in range(VOCAB) if not found[m, token]} for m in range(len(PATHS))]


def test_bad_words_end_at_their_last_token() -> None:
    """Each place's own path decides, with the output before it; the prompt is no part of a word."""
    assert forbidden([[3, 5, 9]], []) == [set(), set(), {9}, set()]
    assert forbidden([[3, 3, 8], [3, 5], [3, 7]], []) == [set(), {5, 7}, set(), {8, 5, 7}]
    assert forbidden([[6, 3, 4], [6, 2]], [6]) == [{2}, {4}, set(), set()]
    assert forbidden([[2, 3, 5], [3, 4]], []) == [set(), {4}, set(), {4}]  # 1, 2, 3: the prompt
    assert forbidden([[4], [30, 31, 32, 33, 34, 35]], [30]) == [{4}] * 4
    assert forbidden([[1, 1, 7]], [1, 1])[0] == {7} and forbidden([[1, 1, 7]], [1])[0] == set()


WORDS = SamplingParams(
    bad_words=[[40], [5, 9], [9, 2, 5], [60, 61, 62], [3, 17], [11, 11]],
    temperature=0.9,
    top_k=12,
    seed=5,
    max_tokens=24,
    ignore_eos=True,
)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "config",
    [{"method": "prompt_lookup"}, {"method": "token_recycling", "tree": "paper"}],
    ids=["chains", "trees"],
)
def test_bad_words_under_speculation(config: dict[str, Any], temperature: float) -> None:
    """Chains and trees write plain decoding's tokens, in which no bad word is."""
    params = replace(WORDS, temperature=temperature)
    built = build(config)
    make, slots = (lambda pair: build(config).drafter), len(CHECKED)
    outputs = check_seeded(make, built.verifier, tiny_pair(), slots=slots, params=params)
    assert sum(output.stats.accepted for output in outputs) > 0
    for output in outputs:
        for word in params.bad_words:
            width = len(word)
            text = output.token_ids
            assert tuple(word) not in {tuple(text[i : i + width]) for i in range(len(text))}


BRANCHED = {"rows": 256, "budget": 4, "steps": 1}
"""One step of a tree has outcomes enough to be followed."""


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("branches", "sizes"), [((1, 1), {}), ((2, 1), BRANCHED)])
def test_the_distribution_with_bad_words(
    branches: tuple[int, ...], sizes: dict[str, int], temperature: float
) -> None:
    """Drawn chains and trees, by enumeration, against the folding that is spelled out."""
    params = SamplingParams(temperature=temperature, bad_words=[[0, 1], [1, 1], [2, 0, 2]])
    make = lambda pair: Drawn(pair.draft, branches)  # noqa: E731
    rule = build_verifier("multi_candidate")
    check_distribution(make, rule, table_pair(), params, **{"rows": 1, **sizes})
