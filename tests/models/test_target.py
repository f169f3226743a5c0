"""The levels of access to a target: a drafter is given what the model itself computes."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from foretoken.access import Wants
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import check_pairing
from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache
from foretoken.models.hf.adapter import HFModel
from foretoken.models.native.build import build_native
from foretoken.models.target import ModelTarget
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing import logits_after, native
from foretoken.tree import chains, empty
from foretoken.verify.target_only import TargetOnly

CPU = torch.device("cpu")
LAYERS = 3


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(params=["native", "adapter"])
def target(request: pytest.FixtureRequest, reference: LlamaForCausalLM) -> ModelTarget:
    if request.param == "adapter":
        return ModelTarget(HFModel(reference), 2, 64)
    weights = reference.state_dict().__getitem__
    native = build_native(reference.config, weights, torch.float64, CPU, "plain")
    return ModelTarget(native, 2, 64)


def begun(target: ModelTarget, tokens: list[int]) -> Sequence:
    sequence = Sequence.start(tokens, SamplingParams(temperature=0))
    target.begin(sequence)
    while target.pending(sequence):
        target.prefill([sequence], 3)
    return sequence


@torch.inference_mode()
def test_hidden_states_embedding_and_head(target: ModelTarget, reference: LlamaForCausalLM) -> None:
    """Levels c and d: asked-for layers equal transformers' own, and the head turns the last into
    the logits."""
    target = ModelTarget(target.model, 2, 64, hidden=(0, 1, LAYERS - 1, -1))
    sequence = begun(target, [3, 1, 4, 1, 5])
    out = target.score([sequence], chains([[9, 2]], CPU))
    own = reference(torch.tensor([[3, 1, 4, 1, 5, 9, 2]]), output_hidden_states=True)
    for layer in (0, 1, LAYERS - 1, -1):
        assert torch.allclose(out.hidden[layer], own.hidden_states[layer][:, -3:], atol=1e-10)
    assert torch.allclose(target.head(out.hidden[-1]), own.logits[:, -3:], atol=1e-10)
    assert torch.equal(target.embed(torch.tensor([[9, 2]])), out.hidden[0][:, 1:])


@torch.inference_mode()
def test_the_cache_can_be_read(target: ModelTarget, reference: LlamaForCausalLM) -> None:
    """Level f: committed keys and values are those of transformers' own cache."""
    sequence = begun(target, [3, 1, 4, 1, 5])
    own = reference(torch.tensor([[3, 1, 4, 1]])).past_key_values
    for layer in range(LAYERS):
        keys, values = target.kv(sequence, layer)
        assert torch.allclose(keys, own.layers[layer].keys[0], atol=1e-10)
        assert torch.allclose(values, own.layers[layer].values[0], atol=1e-10)


@torch.inference_mode()
def test_part_of_the_model_can_run_and_be_continued(reference: LlamaForCausalLM) -> None:
    """Level e: a prefix, then the rest, is the whole pass; scoring overwrites draft passes."""
    weights = reference.state_dict().__getitem__
    native = build_native(reference.config, weights, torch.float64, CPU, "plain")
    target = ModelTarget(native, 2, 64)
    sequence = begun(target, [3, 1, 4, 1, 5])
    expected = target.score([sequence], empty(1, CPU)).logits
    root = torch.tensor([[5]])
    states = target.draft_states([sequence], root, 0, range(2 * LAYERS))
    assert torch.equal(target.head(target.norm(states)), expected)
    half = target.draft_states([sequence], root, 0, range(2))
    tree = replace(empty(1, CPU), resume=target.resume_point(1, root, half))
    assert torch.equal(target.score([sequence], tree).logits, expected)
    target.draft_states([sequence], root, 0, [0, 3, 4])
    assert torch.equal(target.score([sequence], empty(1, CPU)).logits, expected)


@torch.inference_mode()
def test_skipping_a_layer_equals_the_model_without_it(reference: LlamaForCausalLM) -> None:
    """Level e: leaving out both sub-layers of the last layer is the shorter model."""
    weights = reference.state_dict()
    whole = build_native(reference.config, weights.__getitem__, torch.float64, CPU, "plain")
    config = LlamaConfig(**{**reference.config.to_dict(), "num_hidden_layers": LAYERS - 1})
    short = build_native(config, weights.__getitem__, torch.float64, CPU, "plain")
    target, other = ModelTarget(whole, 1, 64), ModelTarget(short, 1, 64)
    sequence, same = begun(target, [3, 1, 4, 1, 5]), begun(other, [3, 1, 4, 1, 5])
    states = target.draft_states([sequence], torch.tensor([[5]]), 0, range(2 * (LAYERS - 1)))
    expected = other.score([same], empty(1, CPU)).logits
    assert torch.equal(target.head(target.norm(states)), expected)


def test_a_target_that_cannot_give_a_level_is_refused(reference: LlamaForCausalLM) -> None:
    """A drafter that runs sub-layers is refused on the adapter, with the remedy."""
    drafter = Nothing()
    drafter.wants = Wants("ae")
    target = ModelTarget(HFModel(reference), 1, 64)
    with pytest.raises(ForetokenError, match="model_impl='native'"):
        check_pairing(target, drafter, TargetOnly())
    with pytest.raises(ForetokenError, match="native"):
        target.norm(torch.zeros(1, 1, 32))


def test_a_cache_for_larger_trees_takes_the_place_of_the_first(
    target: ModelTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once may be more than a GPU has room for."""

    class Large(Nothing):
        @property
        def nodes(self) -> int:
            return 100

    first, make, there = weakref.ref(target.cache), target.model.new_cache, list[bool]()

    def made(*given: Any, **options: Any) -> KVCache:
        there.append(first() is not None)
        return make(*given, **options)

    monkeypatch.setattr(target.model, "new_cache", made)
    target.bind(Large())
    assert there == [False] and target.cache.spare == 101


@torch.inference_mode()
def test_states_are_not_resumed_after_a_move(reference: LlamaForCausalLM) -> None:
    """When another sequence leaves, the last one takes its slot; what a draft pass wrote after its
    text stays behind, so that the whole pass is made again."""
    weights = reference.state_dict().__getitem__
    native = build_native(reference.config, weights, torch.float64, CPU, "plain")
    target, root = ModelTarget(native, 2, 64), torch.tensor([[5]])
    other, sequence = begun(target, [2, 7]), begun(target, [3, 1, 4, 1, 5])
    states = target.draft_states([sequence], root, 0, range(2))
    tree = replace(empty(1, CPU), resume=target.resume_point(1, root, states))
    target.end(other)
    target.score([sequence], tree)
    sequence.tokens.append(9)
    target.commit([sequence], [[]])
    found = target.score([sequence], empty(1, CPU)).logits
    assert found is not None
    expected = logits_after(native, sequence.tokens)
    assert torch.allclose(found[0, 0], expected, atol=1e-12)


@torch.inference_mode()
def test_passes_of_drafts_are_counted(reference: LlamaForCausalLM) -> None:
    """Each may write over what was computed ahead of a text."""
    weights = reference.state_dict().__getitem__
    native = build_native(reference.config, weights, torch.float64, CPU, "plain")
    target, root = ModelTarget(native, 1, 64), torch.tensor([[5]])
    sequence = begun(target, [3, 1, 4, 1, 5])
    target.draft_states([sequence], root, 0, range(2))
    assert target.draft_passes == 1
    target.rerun_states([sequence], 2, range(2))
    assert target.draft_passes == 2
    target.draft_logits([sequence], chains([[9]], CPU))
    assert target.draft_passes == 3


@torch.inference_mode()
def test_a_copy_has_the_prompt_alone(target: ModelTarget) -> None:
    """However far the other text has gone on."""
    one, copy = begun(target, [3, 1, 4]), Sequence.start([3, 1, 4], SamplingParams())
    target.begin(copy)
    target.score([one], empty(1, CPU))
    one.tokens.append(9)
    target.commit([one], [[]])
    target.fork(one, copy)
    assert target.pending(copy) == target.pending(one) == 0


@torch.inference_mode()
def test_a_prompts_log_probabilities_beside_one_without(target: ModelTarget) -> None:
    rows = [Sequence.start([3, 1, 4], SamplingParams(prompt_logprobs=n)) for n in (None, 0)]
    for row in rows:
        target.begin(row)
    assert target.prefill(rows, 8).logits is not None


@torch.inference_mode()
@pytest.mark.parametrize(("levels", "held"), [("a", False), ("af", True)])
def test_a_prompt_that_windows_have_passed(levels: str, held: bool) -> None:
    """It isn't there for copies any more, unless a drafter reads whole layers."""
    config = MistralConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        sliding_window=4,
    )
    drafter = Nothing()
    drafter.wants = Wants(levels)
    target = ModelTarget(native(MistralForCausalLM(config).double().eval()), 1, 1000)
    target.bind(drafter)
    sequence = Sequence.start([5, 9, 2], SamplingParams())
    target.begin(sequence)
    sequence.tokens += [7] * 500
    while target.pending(sequence):
        target.prefill([sequence], 64)
    assert target.holds(sequence) is held
    assert not held or target.kv(sequence, 0)[0].any(-1).all()
