"""What transformers' configurations and modules say of what can be served."""

from __future__ import annotations

import os
import sys
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MinistralConfig, MistralConfig, ModernBertDecoderConfig
from transformers.cache_utils import DynamicCache

from foretoken.errors import ForetokenError
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache, KVShape, alike
from foretoken.models.feed import chain_feed
from foretoken.models.hf.cache import (
    Answers,
    Storage,
    evaluating,
    grouped_heads,
    looks,
    masks,
    pass_cache,
    unfit,
    unsupported,
    windows,
)
from foretoken.testing import tiny_transformers


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"sliding_attention": None}),
        ({"sliding_window": 8}, {"sliding_attention": 8}),
        ({"sliding_window": 8, "use_sliding_window": False}, {"sliding_attention": None}),
        (
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
            {"full_attention": None, "sliding_attention": 8},
        ),
    ],
    ids=str,
)
def test_windows(config: dict[str, Any], expected: dict[str, int | None]) -> None:
    """One entry for each kind of layer."""
    assert windows(SimpleNamespace(**config)) == expected


def test_how_far_layers_look_back() -> None:
    """By the masks that they get; layers that read others' keys are not known."""
    assert looks(MistralConfig(sliding_window=8), 3) == [8, 8, 8]
    assert looks(LlamaConfig(), 2) == [None, None]
    kinds: Any = ["full_attention", "sliding_attention", "chunked_attention"]
    config = SimpleNamespace(sliding_window=8, layer_types=kinds)
    assert looks(config, 3) == [None, 8, None] and looks(config, 2) == [None, None]


def test_masks_of_kinds_of_layers() -> None:
    """One for all where there is one kind; else each kind's by its name."""
    cache = KVCache(alike(1, 1, 1), 1, 32, torch.float32, torch.device("cpu"))
    cache.lengths[:] = [6]
    feed = chain_feed(cache, [0], [[1, 2]])
    one = masks(MistralConfig(sliding_window=3), feed, torch.float32)
    assert (one == 0).sum(-1).flatten().tolist() == [3, 3]
    kinds = {"layer_types": ["full_attention", "chunked_attention"], "attention_chunk_size": 7}
    mixed = masks(SimpleNamespace(**kinds), feed, torch.float32)
    seen = {kind: (mask == 0).sum(-1).flatten().tolist() for kind, mask in mixed.items()}
    assert seen == {"full_attention": [7, 8], "chunked_attention": [7, 1]}


def test_a_window_that_a_family_does_not_know() -> None:
    """Its models don't read it, whatever a config.json says."""
    listed = {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}
    for given in ({}, listed):
        config = LlamaConfig(sliding_window=8, **given)
        assert windows(config) == {"sliding_attention": None}
    assert windows(MistralConfig(sliding_window=8)) == {"sliding_attention": 8}
    kinds = {"full_attention": None, "sliding_attention": 8}
    assert windows(ModernBertDecoderConfig(local_attention=16)) == kinds


def test_types_of_layers_that_a_family_does_not_know() -> None:
    """Models of transformers' Mistral have the window in all layers, whatever is listed."""
    given: dict[str, Any] = {"sliding_window": 8, "num_hidden_layers": 2}
    for types in (["sliding_attention", "full_attention"], ["full_attention"] * 2):
        config = MistralConfig(**given, layer_types=types)
        assert windows(config) == {"sliding_attention": 8}
        assert len(windows(MinistralConfig(**given, layer_types=types))) == len({*types})


def test_evaluation_is_put_back() -> None:
    """A part that was in evaluation mode stays in it, the rest trains again."""
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
    model[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_parts_that_train_in_a_model_that_does_not() -> None:
    """PEFT adds its layers so, with their dropout."""
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout()).eval()
    model[1].train()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [False, False, True]


def test_every_part_is_found() -> None:
    """One that stands in two places, one that isn't there, and one that was added in between."""
    shared, model = torch.nn.Dropout(), torch.nn.Sequential(torch.nn.Sequential())
    model[0].append(shared)
    model.append(shared)
    model.register_module("absent", None)
    for added in (torch.nn.Dropout(), torch.nn.Sequential(torch.nn.Dropout())):
        model[0].append(added)
        with evaluating(model):
            assert not any(module.training for module in model.modules())
        assert all(module.training for module in model.modules())


def test_looking_for_parts_that_train_is_cheap() -> None:
    """It is done in every pass, over hundreds of modules: none of them is called for it."""
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Identity()) for _ in range(50)))
    model.eval()
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(event) if event == "call" else None)
    with evaluating(model):
        sys.setprofile(None)
    assert len(calls) < 50


def test_answers_are_for_the_thread_that_asks() -> None:
    """Another thread's calls go through the module; afterwards all do."""
    module, seen = torch.nn.Identity(), []
    answers = Answers(module)
    with answers("mine"):
        thread = Thread(target=lambda: seen.append(module("theirs")))
        thread.start()
        thread.join()
        assert module("theirs") == "mine"
    assert seen == ["theirs"] and module("theirs") == "theirs"


def test_answers_last_while_one_thread_asks() -> None:
    """The first that ends takes nothing from another."""
    module, seen = torch.nn.Identity(), []
    answers, asks, ended = Answers(module), Event(), Event()

    def ask() -> None:
        with answers("theirs"):
            asks.set()
            ended.wait(5)
            seen.append(module("own"))

    thread = Thread(target=ask)
    thread.start()
    asks.wait(5)
    with answers("mine"):
        pass
    assert module("own") == "own"
    ended.set()
    thread.join()
    assert seen == ["theirs"] and "forward" not in vars(module)


def test_a_forward_that_was_put_in_before_is_put_back() -> None:
    """accelerate's hooks are such; also after an error, and for other threads meanwhile."""
    module, seen = torch.nn.Identity(), []

    def hooked(given: Any) -> str:
        return f"hooked {given}"

    vars(module)["forward"] = hooked
    answers = Answers(module)
    with pytest.raises(ValueError, match="once"), answers("mine"):
        thread = Thread(target=lambda: seen.append(module("theirs")))
        thread.start()
        thread.join()
        raise ValueError("once")
    assert vars(module)["forward"] is hooked
    assert [*seen, module(1)] == ["hooked theirs", "hooked 1"]


def test_grouped_heads_are_asked_for_during_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU; what a user has set stays."""
    name, cpu = "TRANSFORMERS_SDPA_FORCE_GQA", torch.device("cpu")
    monkeypatch.delenv(name, raising=False)
    with grouped_heads(torch.device("cuda")):
        assert name not in os.environ
    with pytest.raises(ValueError, match="once"), grouped_heads(cpu):
        assert os.environ[name] == "1"
        raise ValueError("once")
    assert name not in os.environ
    monkeypatch.setenv(name, "0")
    with grouped_heads(cpu):
        assert os.environ[name] == "0"
    assert os.environ[name] == "0"


@pytest.mark.parametrize("rows", [[0, 1], [1, 2], [2, 1], [2, 0], [1]])
def test_a_pass_reads_its_rows_in_their_order(rows: list[int]) -> None:
    """And writes them there, wherever their slots lie."""
    cache = KVCache(alike(1, 1, 2), 3, 8, torch.float32, torch.device("cpu"))
    for slot in range(3):
        cache.layer[0].keys[slot, :, : slot + 1] = cache.layer[0].values[slot] = slot + 1
    cache.lengths[:] = [1, 2, 3]
    layer = pass_cache(cache, chain_feed(cache, rows, [[5]] * len(rows))).layers[0]
    new = -1.0 - torch.arange(len(rows)).view(-1, 1, 1, 1).expand(-1, 1, 1, 2)
    keys, values = layer.update(new, 2 * new)
    for row, slot in enumerate(rows):
        own = [slot + 1.0] * (slot + 1) + [-1.0 - row]
        assert keys[row, 0, : slot + 2, 1].tolist() == own
        assert values[row, 0, slot + 1].tolist() == [-2.0 - 2 * row] * 2
        assert cache.layer[0].keys[slot, 0, : slot + 2, 0].tolist() == own
    longest = max(rows) + 2
    assert keys.shape[2] == longest == layer.get_mask_sizes(1)[0] == layer.get_seq_length() + 1


LEFT_OUT: dict[str, tuple[dict[str, Any], str | None]] = {
    "sparse": ({"attention_type": "block_sparse"}, "leaves cells of the cache out"),
    "a window of places": ({"keep_window_size": 4}, "leaves cells of the cache out"),
    "chunks": ({"attention_chunk_size": 8}, "cut into chunks"),
    "local": ({"attention_layers": ["global", "local"]}, "local attention"),
    "alibi": ({"attn_config": {"alibi": True}}, "ALiBi"),
    "a state": ({"layers_block_type": ["attention", "mamba"]}, "layers of type mamba keep"),
    "ordinary": ({"layers_block_type": ["attention"] * 2, "attn_config": {"alibi": False}}, None),
    "chunks that layers list": (
        {"attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"]},
        None,
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_configuration_tells(name: str) -> None:
    given, why = LEFT_OUT[name]
    config = SimpleNamespace(model_type="other", **given)
    config.get_text_config = lambda decoder: config
    found = unsupported(config)
    assert found is None if why is None else why in str(found) and "; use a" in str(found)


def test_what_a_loaded_model_tells() -> None:
    """What its forward takes, and where its weights lie."""
    model, decoder = tiny_transformers(), SimpleNamespace()
    decoder.forward = lambda input_ids, past_key_values: None
    assert "takes no position_ids" in str(unfit(model, decoder))
    decoder.forward = lambda input_ids, position_ids: None
    assert "takes no past_key_values" in str(unfit(model, decoder))
    decoder.forward = lambda input_ids, **more: None
    assert unfit(model, decoder) is None
    model.lm_head.weight = torch.nn.Parameter(torch.empty(2, device="meta"))
    assert "several devices" in str(unfit(model, decoder))


def test_each_layer_stores_its_own_shape() -> None:
    """Layers may differ, and keys from values in their width; not in their heads."""
    seen, unlike = DynamicCache(), DynamicCache()
    for layer, (keys, values) in enumerate(((4, 4), (6, 8))):
        seen.update(torch.zeros(1, 2, 3, keys), torch.zeros(1, 2, 3, values), layer)
    config = LlamaConfig()
    storage = Storage("Tiny", seen, config)
    assert storage.shapes == [KVShape(2, 4, 4), KVShape(2, 6, 8)]
    windowed = Storage("Tiny", seen, MistralConfig(sliding_window=8)).shapes
    assert [shape.window for shape in windowed] == [8, 8]
    budget = CacheBudget()
    held = storage.new(3, 16, 20, 4, budget)
    assert (held.positions, held.spare, held.max_length) == (20, 4, 20)
    assert budget.needs(10) == held.needs(10) > 0
    assert [tuple(x.shape[i] for i in (0, 1, 3)) for x in held.layer[1]] == [(3, 2, 6), (3, 2, 8)]
    unlike.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 4), 0)
    with pytest.raises(ForetokenError, match="number of heads"):
        Storage("Tiny", unlike, config)
    with pytest.raises(ForetokenError, match="not every layer"):
        Storage("Tiny", DynamicCache(), config)


def test_a_familys_state_is_none_of_layers_that_attend() -> None:
    """Others of the family may keep one."""
    model = tiny_transformers()
    model._is_stateful = True
    assert "recurrent state" in str(unfit(model, model.model))
    model.config.layer_types = ["full_attention"] * model.config.num_hidden_layers
    assert unfit(model, model.model) is None
