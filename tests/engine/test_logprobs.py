"""Log-probabilities are of the raw logits, in float32 at least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import decoders

from engines import PROMPTS
from foretoken import LLM, SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.engine.logprobs import TokenTexts, entries, log_probabilities
from foretoken.engine.outputs import RequestOutput
from foretoken.models.hf.adapter import HFModel
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    ByteTokenizer,
    Oracle,
    Pair,
    Scripted,
    logits_after,
    serve,
)
from foretoken.verify.target_only import TargetOnly


def test_log_probabilities_are_of_the_raw_logits() -> None:
    """In float32 at least, whatever the logits' dtype."""
    logits = torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_probabilities(logits), logits.log_softmax(-1))
    assert log_probabilities(logits.half()).dtype == torch.float32


def test_the_token_itself_is_always_there() -> None:
    """Its rank counts the tokens above it; the likeliest others come first."""
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    [(entry, own)] = entries(logits, [0], 2, str)
    assert [(token, each.rank) for token, each in entry.items()] == [(1, 1), (3, 2), (0, 4)]
    assert entry[0].logprob == own == float(logits.log_softmax(-1)[0, 0])
    assert [each.decoded_token for each in entry.values()] == ["1", "3", "0"]
    [(alone, _)] = entries(logits, [1], 0, str)
    assert list(alone) == [1] and alone[1].rank == 1


def test_texts_of_tokens(pair: Pair) -> None:
    """Of those written and of the prompt's, with the likeliest others; none without a tokenizer, or
    where it knows no such token."""
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    tokenizer = ByteTokenizer(97)
    for given in (tokenizer, None):
        with LLM(pair.target, tokenizer=given, eos_ids=()) as llm:
            assert llm.get_tokenizer() is given
            [output] = llm.generate(PROMPTS[:1], params)
        found = [*(output.outputs[0].logprobs or ()), *(output.prompt_logprobs or ())[1:]]
        assert len(found) == 4 + len(PROMPTS[0]) - 1
        for entry in found:
            for token, each in (entry or {}).items():
                text = None if given is None else tokenizer.decode([token])
                assert each.decoded_token == text
    assert TokenTexts(tokenizer)(500) is None


def test_texts_of_spaces() -> None:
    """A tokenizer that leaves out a text's first space has tokens that begin with one, and one that
    is nothing else, as Llama 2's is before a number; one without a text has none."""
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pieces = ["▁In", "▁", "2", ""]

    def decode(ids: list[int], **options: object) -> str:
        return decoders.Sequence(steps).decode([pieces[i] for i in ids])

    text_of = TokenTexts(SimpleNamespace(decode=decode))
    assert [text_of(i) for i in range(4)] == [" In", " ", "2", ""]


@pytest.mark.parametrize("wanted", [0, 3])
def test_log_probabilities(pair: Pair, wanted: int) -> None:
    """Of the raw logits at each token's place, with rank, also inside accepted drafts."""
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=wanted, logit_bias={7: 2.0})
    [plain] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1], params)
    text = {tuple(PROMPTS[0]): plain.token_ids}
    [output] = serve(pair.target, Oracle(text, 4, 1, cycle=True), TargetOnly(), PROMPTS[:1], params)
    sample, total = output.outputs[0], 0.0
    assert sample.logprobs is not None and len(sample.logprobs) == 12
    for i, (token, entry) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
        distribution = logits_after(pair.target, PROMPTS[0] + sample.token_ids[:i]).log_softmax(-1)
        order = distribution.argsort(descending=True).tolist()
        assert set(entry) == {token, *order[:wanted]}
        for other, found in entry.items():
            assert found.logprob == pytest.approx(float(distribution[other]), abs=1e-9)
            assert found.rank == order.index(other) + 1
        total += float(distribution[token])
    assert sample.cumulative_logprob == pytest.approx(total, abs=1e-8)


class Stumbling(Nothing):
    """Raises at the second look at several prompts, once."""

    def __init__(self) -> None:
        self._looks = 0

    def observe(self, sequences: Any, steps: Any) -> None:
        self._looks += len(sequences) > 1 and steps[0].read > 0
        if self._looks == 2:
            self._looks += 1
            raise RuntimeError("once")


def check_prompt(pair: Pair, output: RequestOutput, wanted: int) -> None:
    """None for the first token, then the target's own log-probabilities and ranks."""
    prompt, found = output.prompt_token_ids, output.prompt_logprobs
    assert output.error is None and found is not None
    assert len(found) == len(prompt) and found[0] is None
    for place in range(1, len(prompt)):
        distribution = logits_after(pair.target, prompt[:place]).log_softmax(-1)
        order, entry = distribution.argsort(descending=True).tolist(), found[place]
        assert entry is not None and set(entry) == {prompt[place], *order[:wanted]}
        for token, each in entry.items():
            assert each.logprob == pytest.approx(float(distribution[token]), abs=1e-9)
            assert each.rank == order.index(token) + 1


@pytest.mark.parametrize(
    ("make", "chunk"), [(Nothing, 512), (Nothing, 3), (Stumbling, 3), (PromptLookup, 5)]
)
def test_log_probabilities_of_prompts(pair: Pair, make: Any, chunk: int) -> None:
    """In chunks, beside others that don't ask, for several samples, and where a pass fails and
    prompts are read again; a prompt of one token has nothing to predict."""
    asked = [2, None, 0, 1, 3]
    each = [
        SamplingParams(seed=1, max_tokens=4, n=1 + (wanted == 3), prompt_logprobs=wanted)
        for wanted in asked
    ]
    outputs = serve(pair.target, make(), TargetOnly(), PROMPTS, each, slots=4, chunk=chunk)
    for output, wanted in zip(outputs, asked, strict=True):
        if wanted is None:
            assert output.prompt_logprobs is None
        else:
            check_prompt(pair, output, wanted)


def test_log_probabilities_of_a_long_prompt(pair: Pair) -> None:
    """Longer than the rows that are looked at together."""
    prompt = [(7 * place) % 90 for place in range(150)]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    [output] = serve(pair.target, Nothing(), TargetOnly(), [prompt], params, chunk=140)
    check_prompt(pair, output, 0)
    copy = output.copy()
    assert copy.prompt_logprobs == output.prompt_logprobs is not copy.prompt_logprobs


def test_log_probabilities_of_prompts_through_transformers(pair: Pair) -> None:
    """Whose pass gives logits in another way."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    adapted = HFModel(pair.transformers)
    for output in serve(adapted, Nothing(), TargetOnly(), PROMPTS, params, chunk=8):
        check_prompt(pair, output, 1)


def test_log_probabilities_on_a_branch(pair: Pair) -> None:
    """Where the accepted nodes aren't a tree's first ones, they are those at the path's slots."""
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=1)
    [plain] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1], params)
    text = plain.token_ids

    def paths(sequence: Sequence, budget: int) -> list[list[int]]:
        rest = text[len(sequence.output) :][:2]
        return [[(token + 1) % 97 for token in rest], rest]

    [output] = serve(pair.target, Scripted(paths), TargetOnly(), PROMPTS[:1], params)
    assert output.token_ids == text and output.stats.passes < len(text)
    ours, theirs = output.outputs[0].logprobs, plain.outputs[0].logprobs
    assert ours is not None and theirs is not None
    for mine, own, token in zip(ours, theirs, text, strict=True):
        assert mine[token].logprob == pytest.approx(own[token].logprob, abs=1e-9)


def test_the_rank_of_one_of_several_alike() -> None:
    """One more than those that are likelier."""
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0], [2.0, 2.0, 0.0, 0.0]])
    (one, _), (two, _) = entries(logits, [2, 1], 0, lambda token: None)
    assert (one[2].rank, two[1].rank) == (2, 1)
