"""Equal tokens, near ties and differences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretoken import LLM, SamplingParams
from foretoken.bench.measure import identity
from foretoken.bench.measure.likelihood import log_likelihood
from foretoken.draws import Purpose, stream_key, uniforms
from foretoken.testing.models import logits_after
from seq2seq_models import SOURCES
from seq2seq_models import tiny as tiny_seq2seq


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_wrong_token_is_no_near_tie(tiny: LLM, temperature: float) -> None:
    """One changed token, and a text that ends early, are differences."""
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=12, ignore_eos=True)
    [out] = tiny.generate([[1, 2, 3]], params)
    right = out.token_ids
    assert identity.compare(tiny, [1, 2, 3], params, right, right) == ("identical", None)
    wrong = [*right[:5], (right[5] + 1) % 90, *right[6:]]
    verdict, margin = identity.compare(tiny, [1, 2, 3], params, right, wrong)
    assert verdict == "different" and margin is not None and margin > 1e-9
    assert identity.compare(tiny, [1, 2, 3], params, right, right[:4])[0] == "different"


def test_margin_is_the_gap(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """At temperature 0 the margin is the gap between the two best log-probabilities."""
    params = SamplingParams(temperature=0, logprobs=2, max_tokens=1)
    [out] = tiny.generate([[4, 9, 2]], params)
    assert out.outputs[0].logprobs is not None
    best, second = sorted((e.logprob for e in out.outputs[0].logprobs[0].values()), reverse=True)
    assert identity.margin_at(tiny, [4, 9, 2], params) == pytest.approx(best - second)
    monkeypatch.setitem(identity.TOLERANCE, torch.float64, 1e9)
    assert identity.compare(tiny, [4, 9, 2], params, [1], [2])[0] == "near_tie"


def test_margin_of_an_encoder_decoder(tmp_path: Path) -> None:
    """The prompt is the source, which the text doesn't go on from; likelihoods are its, too."""
    tiny_seq2seq("t5").save_pretrained(tmp_path)
    params = SamplingParams(temperature=0, logprobs=2, max_tokens=4, ignore_eos=True)
    with LLM(tmp_path, dtype="float64", device="cpu", max_num_seqs=1) as llm:
        [out] = llm.generate([SOURCES[0]], params)
        ids, entries = out.outputs[0].token_ids, out.outputs[0].logprobs
        assert entries is not None
        for place, entry in enumerate(entries):
            best, second = sorted((one.logprob for one in entry.values()), reverse=True)
            margin = identity.margin_at(llm, SOURCES[0], params, ids[:place])
            assert margin == pytest.approx(best - second)
        found = log_likelihood(llm, SOURCES[0], ids)
        assert found == pytest.approx(out.outputs[0].cumulative_logprob)


def test_sampled_margin_is_the_distance_to_an_edge(tiny: LLM) -> None:
    """Of the tokens' intervals, from the number that draws the position's token."""
    prompt, params = [4, 9, 2], SamplingParams(temperature=1.0, seed=5, max_tokens=1)
    edges = logits_after(tiny.model, prompt).softmax(-1).cumsum(-1)
    number = uniforms(torch.tensor(stream_key(5, 0)), torch.tensor(3), Purpose.TOKEN)
    [out] = tiny.generate([prompt], params)
    assert out.token_ids == [int((edges <= number).sum())]
    margin = float((edges[:-1] - number).abs().min())
    assert identity.margin_at(tiny, prompt, params) == pytest.approx(margin)
    assert not tiny.engine.busy


@pytest.mark.parametrize(("temperature", "said"), [(0.0, "near_tie"), (1.0, "different")])
def test_an_edge_moves_by_half_of_a_logits_error(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch, temperature: float, said: str
) -> None:
    """So a margin that explains another greedy token explains no sampled one."""
    margin = 0.75 * identity.TOLERANCE[torch.float64]
    monkeypatch.setattr(identity, "margin_at", lambda *given: margin)
    params = SamplingParams(temperature=temperature, seed=3)
    assert identity.compare(tiny, [4, 9, 2], params, [1], [2]) == (said, margin)
