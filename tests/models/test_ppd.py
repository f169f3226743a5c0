"""PPD: guesses are used where they are right, void where they are not, and counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from foretoken import SamplingParams
from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.models.native.transformer import Transformer
from foretoken.models.ppd import PPD, PipelinedTarget, Pipelining
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import check_greedy, check_independence, check_seeded, native
from foretoken.testing.checks import PROMPTS, SAMPLED, greedy_reference, serve
from foretoken.testing.models import Pair, tiny_pair, tiny_transformers
from foretoken.tree import empty
from foretoken.verify.target_only import TargetOnly

LAYERS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def deep() -> Pair:
    """A target of four layers whose upper ones change little, so that guesses are right now and
    then."""
    model = tiny_transformers(layers=LAYERS)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 0.2
            layer.mlp.down_proj.weight *= 0.2
    return Pair(native(model), native(model), model)


@pytest.fixture(scope="module")
def greedy(deep: Pair) -> dict[str, Any]:
    """Prompts, and what the target writes to them greedily, as `check_greedy` takes them."""
    expected = [greedy_reference(deep.target, prompt, 30) for prompt in PROMPTS]
    return {"prompts": PROMPTS, "tokens": 30, "expected": expected}


def begun(target: ModelTarget | PipelinedTarget, text: list[int]) -> Sequence:
    sequence = Sequence.start(text, GREEDY)
    target.begin(sequence)
    while target.pending(sequence):
        target.prefill([sequence], 64)
    return sequence


def nothing(_: Pair) -> Nothing:
    return Nothing()


def test_text_is_the_targets(deep: Pair, greedy: dict[str, Any]) -> None:
    """In batches, greedy and sampled, on four layers."""
    for slots in (1, 3):
        check_greedy(nothing, TargetOnly(), deep, slots=slots, wrap=PPD(), **greedy)
    check_independence(nothing, TargetOnly(), deep, wrap=PPD())
    check_seeded(nothing, TargetOnly(), deep, slots=3, wrap=PPD())


def test_settings_that_cannot_be(deep: Pair) -> None:
    """Layers that aren't there and guesses that are none are refused."""
    with pytest.raises(ForetokenError, match="guess_lay"):
        PPD(3, 4)(ModelTarget(deep.target, 1, 8))
    with pytest.raises(ForetokenError, match="num_guesses is 0"):
        PPD(0)
    with pytest.raises(ForetokenError, match="num_guesses is 33"):
        PPD(33)


def test_pipelining_counts(deep: Pair) -> None:
    """Guesses of all tokens always match; latency and extra compute are by the layers saved."""
    target = ModelTarget(deep.target, 1, 64)
    every = PPD(32, 3)(target)
    engine = Engine(every, Nothing(), TargetOnly())
    engine.add(PROMPTS[0], dataclasses.replace(GREEDY, max_tokens=21))
    while engine.busy:
        engine.step()
    counts = every.pipelining
    assert (counts.tokens, counts.tried) == (21, 20)
    assert counts.matched > 10  # the upper layer changes little
    fixed = Pipelining(4, 3, 5, tokens=20, tried=19, matched=10)
    assert fixed.match_rate == 10 / 19
    assert fixed.extra_compute == (5 * 20 - 10) * 3 / (4 * 20)
    assert fixed.predicted_latency == 1 - 0.25 * 10 / 20
    assert Pipelining(4, 1, 5, tokens=20, matched=10).predicted_latency == 1 - 0.25 * 10 / 20
    none = Pipelining(4, 3, 5)
    assert (none.match_rate, none.extra_compute, none.predicted_latency) == (0, 0, 1)


def test_guesses_are_used(deep: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A match saves the lower layers' run: with all tokens guessed, which are no more than there
    are, they run for the first alone."""
    tiny = tiny_pair(20, layers=LAYERS)
    target = PPD(32, 2)(ModelTarget(tiny.target, 1, 64))
    widths: list[tuple[int, int]] = []
    run = Transformer.run

    def noted(self: Transformer, states: Any, feed: Any, cache: Any, sublayers: Any) -> Any:
        widths.append((states.shape[1], min(sublayers)))
        return run(self, states, feed, cache, sublayers)

    monkeypatch.setattr(Transformer, "run", noted)
    engine = Engine(target, Nothing(), TargetOnly())
    engine.add([5, 9, 2], dataclasses.replace(GREEDY, max_tokens=10))
    while engine.busy:
        engine.step()
    assert widths.count((1, 0)) == 1
    assert widths.count((20, 0)) == widths.count((1, 4)) == 10
    assert target.pipelining.match_rate == 1


@pytest.mark.parametrize("method", ["pld", "swift", "early_exit"])
def test_together_with_a_drafter(deep: Pair, greedy: dict[str, Any], method: str) -> None:
    """A drafter's passes and nodes between two of the pipeline's don't end up in its text."""
    options: dict[str, Any] = {"method": method}
    if method == "swift":
        options["context_window"] = 3
    rule = build(options).verifier
    for slots in (1, 3):
        check_greedy(
            lambda _: build(options).drafter,
            rule,
            deep,
            slots=slots,
            wrap=PPD(),
            **greedy,
        )


@torch.inference_mode()
def test_guesses_written_over_are_not_used(deep: Pair) -> None:
    """Between two passes another drafter runs a part of the target where the guesses' keys and
    values stand: the next pass gives what plain decoding's does."""
    target, plain = PPD(32, 3)(ModelTarget(deep.target, 1, 64)), ModelTarget(deep.target, 1, 64)
    none = empty(1, target.device)
    logits_of_both = []
    for one, access in ((target, target.target), (plain, plain)):
        sequence = begun(one, [5, 9, 2, 7])
        logits = one.score([sequence], none).logits
        assert logits is not None
        one.commit([sequence], [[]])
        sequence.tokens.append(int(logits[0, 0].argmax()))
        access.draft_states([sequence], torch.arange(40, 72)[None], 0, range(6))
        logits_of_both.append(one.score([sequence], none).logits)
    assert target.pipelining.tried == 0
    mine, plains = logits_of_both
    assert mine is not None and plains is not None
    assert torch.allclose(mine, plains, atol=1e-12)


def test_guesses_are_void_when_a_slot_moves(deep: Pair) -> None:
    """Requests that end early let others move; the text stays plain decoding's."""
    params = [dataclasses.replace(SAMPLED, max_tokens=n, seed=n) for n in (3, 20, 9, 25)]
    alone = [
        serve(deep.target, Nothing(), TargetOnly(), [prompt], own, wrap=PPD(30))[0].token_ids
        for prompt, own in zip(PROMPTS, params, strict=True)
    ]
    mixed = serve(deep.target, Nothing(), TargetOnly(), PROMPTS, params, slots=4, wrap=PPD(30))
    assert [output.token_ids for output in mixed] == alone
