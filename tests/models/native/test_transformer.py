"""The native decoder: its parts run one by one, together, and in cycles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cyclic_models import CYCLES, LAYERS, shared_pair
from foretoken.models.feed import chain_feed, scratch_feed
from foretoken.models.native.transformer import Transformer, unsupported
from foretoken.testing import native
from foretoken.testing.checks import PROMPTS
from foretoken.testing.models import Pair, tiny_transformers
from stored_models import original


@pytest.fixture(scope="module")
def shared() -> Pair:
    return shared_pair()


def test_a_cycle_is_held_once(shared: Pair) -> None:
    """Layers that repeat share their weights, and what the model says is what it said."""
    target: Any = shared.target
    assert isinstance(target, Transformer)
    assert (target.cycle, target.layers) == (LAYERS, LAYERS * CYCLES)
    assert target.stack[2].qkv is target.stack[0].qkv
    assert target.stack[5].down is target.stack[1].down
    whole = native(tiny_transformers(layers=LAYERS * CYCLES))
    assert whole.cycle == whole.layers
    assert target.parameters < whole.parameters
    assert target.bytes_read == whole.bytes_read  # a pass reads them as often
    ids = torch.tensor(PROMPTS[:1])
    with torch.no_grad():
        expected = shared.transformers(ids).logits[0, -1]
    from foretoken.testing import logits_after

    torch.testing.assert_close(logits_after(target, PROMPTS[0]), expected, atol=1e-10, rtol=0)


@torch.inference_mode()
def test_rows_at_different_layers_run_together(shared: Pair) -> None:
    """Each gives what it gives alone, whether or not their layers share weights."""
    model: Any = shared.target
    cache = model.new_cache(2, 16)
    slots = [cache.acquire(i) for i in range(2)]
    model.forward(chain_feed(cache, slots, [[1, 2, 3], [4, 5]], logits=False), cache)
    cache.lengths[:] = [3, 2]
    firsts, tokens = [0, LAYERS + 1], torch.tensor([[7], [8]])
    states = torch.randn(2, 1, model.width, dtype=model.dtype)
    feeds = [scratch_feed(cache, [slot], tokens[slot : slot + 1], 0) for slot in slots]
    together = model.run_together(states, feeds, firsts, 2, cache)
    for row, (feed, first) in enumerate(zip(feeds, firsts, strict=True)):
        alone = model.run(states[row : row + 1], feed, cache, range(2 * first, 2 * first + 4))
        torch.testing.assert_close(together[row : row + 1], alone)


@torch.inference_mode()
def test_a_pass_cut_anywhere_is_the_pass(shared: Pair) -> None:
    """Any prefix of the sub-layers and then the rest give the states of all."""
    model: Any = shared.target
    cache = model.new_cache(1, 16)
    feed = chain_feed(cache, [cache.acquire(0)], [[5, 9, 2]])
    start, last = model.embed(feed.tokens), 2 * model.layers
    whole = model.run(start, feed, cache, range(last))
    for cut in range(1, last):
        first = model.run(start, feed, cache, range(cut))
        assert torch.equal(model.run(first, feed, cache, range(cut, last)), whole)
    out = model.forward(feed, cache, (model.layers,))
    assert torch.equal(out.hidden[model.layers], whole)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2"}, "its family 'gpt2'"),
        ({"quantization_config": {"bits": 4}}, "its weights are quantised"),
        ({"is_heterogeneous": True}, "its layers differ in their numbers"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "depends on the length"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "part of each head",
        ),
        ({"hidden_act": "gelu"}, "its activation is 'gelu'"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "type 'chunked_attention'"),
        ({"use_bidirectional_attention": True}, "see those after them"),
        ({"is_causal": False}, "see those after them"),
        ({"text_config": {}}, "its configuration holds another one"),
        (
            {
                "model_type": "gemma3_text",
                "hidden_activation": "silu",
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default"},
                    "full_attention": {"rope_type": "dynamic"},
                },
            },
            "depends on the length",
        ),
        ({}, None),
    ],
    ids=str,
)
def test_what_is_not_served_and_why(change: dict[str, Any], reason: str | None) -> None:
    """The first reason in words, or none."""
    given = {
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default"},
    }
    answer = unsupported(SimpleNamespace(**{**given, **change}))
    assert answer is None if reason is None else answer is not None and reason in answer


def test_code_that_comes_with_a_checkpoint() -> None:
    """It runs in place of the native model where it is trusted, and nowhere else."""
    given = {"model_type": "llama", "hidden_act": "silu", "auto_map": {"AutoModelForCausalLM": "x"}}
    config = SimpleNamespace(**given, rope_parameters={"rope_type": "default"})
    assert unsupported(config) is None
    assert unsupported(config, True) == "it runs by code that comes with it"


@torch.inference_mode()
def test_another_head_has_no_cap() -> None:
    """Its logits are what it makes; the model's own stay within the cap."""
    model: Any = native(original("gemma2", final_logit_softcapping=2.0).double())
    states = 50 * torch.randn(1, 3, 64, dtype=torch.float64)
    other = model.with_head(model._lm_head)
    assert float(model.head(states).abs().max()) <= 2 < float(other.head(states).abs().max())
    assert torch.equal(other.head(states), model._lm_head(states))


@torch.inference_mode()
def test_states_beside_the_logits_of_the_last_token() -> None:
    """Who asks for the final states gets all of them, and the logits of each row's last token."""
    model = native(tiny_transformers())
    cache = model.new_cache(2, 16)
    slots = [cache.acquire(i) for i in range(2)]
    feed = chain_feed(cache, slots, [[1, 2, 3], [4, 5]])
    wanted, found = model.forward(feed, cache), model.forward(feed, cache, (-1,))
    assert wanted.logits is not None and found.logits is not None
    assert found.logits.shape == (2, 1, model.vocab_size)
    assert torch.equal(found.logits, wanted.logits) and found.hidden[-1].shape[:2] == (2, 3)


@torch.inference_mode()
def test_a_runner_gives_no_states_between_layers() -> None:
    """A pass that returns them goes through the layers, as one without a runner."""
    model: Any = native(tiny_transformers())
    cache = model.new_cache(1, 16)
    feed = chain_feed(cache, [cache.acquire(1)], [[5, 9, 2]])
    wanted = model.forward(feed, cache, (1,)).hidden
    model.run_by(lambda model: lambda states, feed, cache: 0 * states, "zeros")
    found = model.forward(feed, cache, (1,))
    assert found.hidden.keys() == {1} and torch.equal(found.hidden[1], wanted[1])
    assert not model.forward(feed, cache).logits.any()
