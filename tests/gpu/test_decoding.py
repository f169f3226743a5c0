"""Decoding on the GPU writes what it writes on the CPU: every method, and all that edits logits.

In float64, where rounding hardly ever turns one token into another.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch

from foretoken import METHODS, SamplingParams
from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.outputs import RequestOutput
from foretoken.testing import ByteTokenizer, Pair, automaton, serve
from foretoken.testing.checks import texts
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from on_device import DEVICE, MARKS, NEAR, moved, needs_gpu, pair_there
from test_conformance import SHARES, given, models, settings

pytestmark = MARKS

PROMPTS = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3, 40, 3, 3], [11]]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, seed=7, max_tokens=24, ignore_eos=True)


def pair_here() -> Pair:
    return models("native")


@cache
def plain() -> list[list[int]]:
    """The greedy texts of plain decoding on the CPU."""
    return texts(serve(pair_here().target, Nothing(), TargetOnly(), PROMPTS, GREEDY, slots=3))


def written(method: str, pair: Pair, params: SamplingParams) -> list[list[int]]:
    """What a method writes in one batch, with random weights of its own where it needs any."""
    built = build({"method": method, **options_of(METHODS[method].drafter, pair)})
    if not (params.greedy or built.verifier.sampling):
        pytest.skip("its rule serves greedy decoding only")
    outputs = serve(
        pair.target,
        built.drafter,
        built.verifier,
        PROMPTS,
        params,
        slots=3,
        wrap=built.wrap_target,
    )
    for output in outputs:
        assert output.error is None
    return texts(outputs)


def options_of(drafter: str, pair: Pair) -> dict[str, Any]:
    """What it can't be built without; trained weights are the same on both devices."""
    options = given(drafter, pair) | settings(drafter, "")
    if pair is pair_here():
        return options
    weights = given(drafter, pair_here())
    return options | moved({k: v for k, v in weights.items() if isinstance(v, torch.nn.Module)})


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_the_cpus(method: str) -> None:
    """Plain decoding's where the method is exact, else the method's own."""
    exact = METHODS[method].lossless
    expected = plain() if exact else written(method, pair_here(), GREEDY)
    assert written(method, pair_there(), GREEDY) == expected


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_repeats_its_text(method: str) -> None:
    """Twice on the GPU, and once on the CPU, with drafters made anew."""
    first = written(method, pair_there(), SAMPLED)
    assert all(len(text) == 24 for text in first)
    drawn = METHODS[method].verifier != "target_only"
    if drawn and METHODS[method].drafter in SHARES:
        return  # its drafts, and with them the draws, depend on when a learner is ready
    assert written(method, pair_there(), SAMPLED) == first
    assert written(method, pair_here(), SAMPLED) == first


LETTERS = ByteTokenizer(97)
GRAMMAR = automaton(
    97, {0: dict.fromkeys(range(0, 97, 3), 1), 1: {7: 2}, 2: dict.fromkeys(range(97), 0)}, whole=()
)
EDITS: dict[str, dict[str, Any]] = {
    "grammar": {"structured_outputs": GRAMMAR},
    "logprobs": {"logprobs": 5, "prompt_logprobs": 3},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.6},
    "bias": {"logit_bias": {3: 4.0, 9: -50.0}},
    "banned": {"bad_token_ids": [3, 9, 40]},
    "allowed": {"allowed_token_ids": list(range(0, 97, 2))},
    "stop": {"stop": ["a", "b"]},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": list(range(0, 97, 4))},
    "top": {"top_k": 7, "top_p": 0.8, "min_p": 0.02},
    "samples": {"n": 3, "top_k": 20},
}


def edited(pair: Pair, name: str, temperature: float) -> list[RequestOutput]:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=20, **EDITS[name])
    drafter = SmallLM(pair.draft, 3)
    outputs = serve(
        pair.target, drafter, Speculative(), PROMPTS, params, slots=3, tokenizer=LETTERS
    )
    for output in outputs:
        assert output.error is None
    return outputs


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", EDITS)
def test_edited_text_is_the_cpus(name: str, temperature: float) -> None:
    """Tokens, texts, ends and log-probabilities, with a small model that drafts."""
    if name == "samples" and not temperature:
        pytest.skip("greedy samples are all the same")
    pairs = zip(
        edited(pair_there(), name, temperature), edited(pair_here(), name, temperature), strict=True
    )
    for there, here in pairs:
        check_alike(there, here)


def check_alike(there: RequestOutput, here: RequestOutput) -> None:
    for mine, theirs in zip(there.outputs, here.outputs, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert (mine.text, mine.finish_reason) == (theirs.text, theirs.finish_reason)
        check_logprobs(mine.logprobs, theirs.logprobs)
    check_logprobs(there.prompt_logprobs, here.prompt_logprobs)


def check_logprobs(there: Any, here: Any) -> None:
    assert (there is None) == (here is None)
    for mine, theirs in zip(there or (), here or (), strict=True):
        assert (mine is None) == (theirs is None)
        for token, known in (theirs or {}).items():
            assert mine[token].logprob == pytest.approx(known.logprob, abs=NEAR)


def test_the_models_are_there() -> None:
    """What is compared above doesn't run on the CPU twice."""
    assert pair_there().target.device.type == DEVICE.type


@needs_gpu
def test_a_device_that_fails_for_good() -> None:
    """In a process of its own, as it has no device from then on: an index outside of a tensor."""
    code = """
import torch
from foretoken import LLM, ForetokenError, SamplingParams

def outside(ids, scores):
    return scores[:, torch.tensor([10**9], device=scores.device)]

llm = LLM("mini", device="cuda")
[output] = llm.generate(["Once"], SamplingParams(logits_processors=[outside]))
assert output.error is not None
try:
    llm.generate("Once", SamplingParams(max_tokens=1))
except ForetokenError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("This LLM has stopped: The device cuda"), done.stderr
