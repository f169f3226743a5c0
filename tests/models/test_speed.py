"""SPEED: what is on its way, what is thrown away, and that one read of the weights serves all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from cyclic_models import CYCLES, LAYERS, cyclic, shared_pair
from foretoken import SamplingParams
from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.models.speed import CyclicTarget, Pipeline, Speed
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    check_distribution,
    check_greedy,
    check_independence,
    check_seeded,
    native,
)
from foretoken.testing.checks import PROMPTS, greedy_reference, serve
from foretoken.testing.models import Pair
from foretoken.tree import empty
from foretoken.verify.target_only import TargetOnly

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def shared() -> Pair:
    return shared_pair()


@pytest.fixture(scope="module")
def greedy(shared: Pair) -> dict[str, Any]:
    """Prompts, and what the target writes to them greedily, as `check_greedy` takes them."""
    expected = [greedy_reference(shared.target, prompt, 40) for prompt in PROMPTS]
    return {"prompts": PROMPTS, "tokens": 40, "expected": expected}


def served(model: Any, prompt: list[int], params: SamplingParams) -> Pipeline:
    """What the pipeline counted of one request."""
    target = CyclicTarget(ModelTarget(model, 1, 64))
    engine = Engine(target, Nothing(), TargetOnly())
    engine.add(prompt, params)
    while engine.busy:
        engine.step()
    return target.pipeline


def nothing(_: Pair) -> Drafter:
    return Nothing()


def test_text_is_the_targets(shared: Pair, greedy: dict[str, Any]) -> None:
    """Greedy and at a seed, alone and in batches, with the context's end in reach."""
    made: list[CyclicTarget] = []

    def wrap(target: ModelTarget) -> CyclicTarget:
        made.append(Speed()(target))
        return made[-1]

    for slots in (1, 3):
        check_greedy(nothing, TargetOnly(), shared, slots=slots, wrap=wrap, **greedy)
        check_seeded(nothing, TargetOnly(), shared, slots=slots, wrap=wrap)
    check_independence(nothing, TargetOnly(), shared, wrap=wrap)
    counts = made[0].pipeline
    assert counts.stages == CYCLES
    assert counts.matched > 10
    assert counts.passes_per_token < 0.95
    short = cyclic(max_length=24)
    pair = Pair(native(short), native(short), short)
    unbounded = dataclasses.replace(GREEDY, max_tokens=None)
    outputs = [
        serve(pair.target, Nothing(), TargetOnly(), PROMPTS, unbounded, wrap=wrap)
        for wrap in (Speed(), None)
    ]
    assert [o.token_ids for o in outputs[0]] == [o.token_ids for o in outputs[1]]


def test_distribution_is_the_targets() -> None:
    """Of three tokens, every outcome enumerated."""
    model = cyclic(4, width=8)
    pair = Pair(native(model), native(model), model)
    check_distribution(
        nothing, TargetOnly(), pair, SamplingParams(temperature=0.7), 3, rows=1, wrap=Speed()
    )


def test_one_read_serves_all_on_their_way(shared: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every tick each layer of the cycle multiplies once, by all tokens on their way."""
    target: Any = native(shared.transformers)
    widths: list[int] = []
    run = target.stack[0].gate_up

    def noted(x: Any) -> Any:
        widths.append(len(x))
        return run(x)

    for layer in target.stack[::LAYERS]:
        layer.gate_up = noted
    counts = served(target, PROMPTS[0][:1], GREEDY)
    assert len(widths) == counts.ticks == counts.reads
    assert sum(widths) == counts.runs
    assert max(widths) == CYCLES


def test_a_sure_guess_costs_one_cycle() -> None:
    """Where later cycles change nothing every guess is right: after the first token each costs a
    tick, and nothing is run in vain but what the end cuts off."""
    model = cyclic(calm=0.0)
    counts = served(native(model), PROMPTS[0], GREEDY)
    assert (counts.tokens, counts.tried, counts.matched) == (40, 39, 39)
    assert counts.ticks == CYCLES + 39
    assert counts.runs == CYCLES * 40 + CYCLES  # 2 + 1 stages of the two that came too late
    assert counts.match_rate == 1
    assert counts.passes_per_token == (CYCLES + 39) / (CYCLES * 40)


def test_counts() -> None:
    """Rates of what was counted, and of nothing."""
    counts = Pipeline(4, passes=10, ticks=25, reads=25, runs=70, tokens=10, tried=8, matched=6)
    assert (counts.match_rate, counts.passes_per_token) == (0.75, 25 / 40)
    assert counts.extra_compute == 0.75
    none = Pipeline(4)
    assert (none.match_rate, none.passes_per_token, none.extra_compute) == (0, 1, 0)


def test_guessing_later(shared: Pair, greedy: dict[str, Any]) -> None:
    """After two cycles guesses are better and save less; after all of them there is nothing to
    save."""
    found: list[Pipeline] = []
    for at in (1, 2, 3):

        def wrap(target: ModelTarget, at: int = at) -> CyclicTarget:
            wrapped = Speed(exit_stage=at)(target)
            found.append(wrapped.pipeline)
            return wrapped

        check_greedy(nothing, TargetOnly(), shared, wrap=wrap, **greedy)
    rates = [counts.match_rate for counts in found]
    assert rates == sorted(rates) and rates[2] == 1
    assert found[2].passes_per_token == 1
    assert found[2].extra_compute < 0.1


def test_what_is_on_its_way_stays_when_a_slot_moves(shared: Pair) -> None:
    """Requests that end early let others move; the text stays plain decoding's."""
    params = [dataclasses.replace(GREEDY, max_tokens=n) for n in (3, 20, 9, 25)]
    alone = [
        serve(shared.target, Nothing(), TargetOnly(), [prompt], own, wrap=Speed())[0].token_ids
        for prompt, own in zip(PROMPTS, params, strict=True)
    ]
    mixed = serve(shared.target, Nothing(), TargetOnly(), PROMPTS, params, slots=4, wrap=Speed())
    assert [output.token_ids for output in mixed] == alone


@pytest.mark.parametrize("method", ["pld", "early_exit"])
def test_together_with_a_drafter(shared: Pair, greedy: dict[str, Any], method: str) -> None:
    """A drafter's passes and nodes between two of the pipeline's don't end up in its text."""
    rule = build({"method": method}).verifier
    for slots in (1, 3):
        check_greedy(
            lambda _: build({"method": method}).drafter,
            rule,
            shared,
            slots=slots,
            wrap=Speed(),
            **greedy,
        )


def test_settings_that_cannot_be(shared: Pair) -> None:
    """Stages that don't divide the layers, and exits that aren't there, are refused."""
    target = ModelTarget(shared.target, 1, 8)
    for wrap, part in (
        (Speed(4), "divide"),
        (Speed(0), "divide"),
        (Speed(-2), "divide"),
        (Speed(2, 4), "exit_stage"),
        (Speed(2, 0), "exit_stage"),
    ):
        with pytest.raises(ForetokenError, match=part):
            wrap(target)


@torch.inference_mode()
def test_what_a_draft_pass_wrote_over_is_not_used(shared: Pair) -> None:
    """Between two passes a drafter runs a part of the target where the keys and values of tokens on
    their way stand: the next pass gives what plain decoding's does."""
    target, plain = (
        CyclicTarget(ModelTarget(shared.target, 1, 64)),
        ModelTarget(shared.target, 1, 64),
    )
    none, both = empty(1, target.device), []
    for one, access in ((target, target.target), (plain, plain)):
        sequence = Sequence.start([5, 9, 2, 7], GREEDY)
        one.begin(sequence)
        one.prefill([sequence], 64)
        logits = one.score([sequence], none).logits
        assert logits is not None
        one.commit([sequence], [[]])
        sequence.tokens.append(int(logits[0, 0].argmax()))
        access.draft_states([sequence], torch.tensor([[40]]), 0, range(2 * LAYERS))
        both.append(one.score([sequence], none).logits)
    assert target.pipeline.tried == 0
    assert both[0] is not None and both[1] is not None
    assert torch.allclose(both[0], both[1], atol=1e-12)


def test_a_stage_is_a_layer_where_none_are_shared(pair: Pair) -> None:
    assert Speed()(ModelTarget(pair.target, 1, 8)).pipeline.stages == pair.target.layers
