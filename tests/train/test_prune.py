"""A small model cut out of a large one keeps what matters."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.models.load import generation_ends
from foretoken.train.prune import Size, _Seen, prune, write

transformers = pytest.importorskip("transformers")

TEXTS = [[3, 8, 2, 9, 4, 4, 7], [1, 5, 6], [10, 11, 0, 2]]
NUMBERS = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "max_position_embeddings": 64,
}
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}


def model_of(family: str = "llama", tied: bool = True, **more: Any) -> Any:
    config, kind = (getattr(transformers, name) for name in CLASSES[family])
    torch.manual_seed(0)
    numbers = {**NUMBERS, "tie_word_embeddings": tied, "rms_norm_eps": 1e-12, **more}
    model = kind(config(**numbers)).double().eval()
    for weight in model.parameters():
        weight.data = torch.randn_like(weight) * 0.3 + (weight.dim() == 1)
    return model


def logits(model: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(torch.tensor([text])).logits[0] for text in TEXTS]


def check_same(small: Any, large: Any) -> None:
    """As far as transformers' norms go, which compute in float32."""
    for one, two in zip(logits(small), logits(large), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("tied", [True, False])
def test_nothing_is_lost_where_nothing_is_cut(family: str, tied: bool) -> None:
    model = model_of(family, tied)
    check_same(prune(model, Size(), TEXTS), model)


def test_its_texts_end_where_the_large_ones_do(tmp_path: Path) -> None:
    """Which a model says beside its configuration."""
    model = model_of()
    model.generation_config.eos_token_id = [3, 5]
    prune(model, Size(layers=2), TEXTS).save_pretrained(tmp_path)
    assert generation_ends(tmp_path) == {3, 5}


@pytest.mark.parametrize("family", CLASSES)
def test_what_does_nothing_is_cut(family: str) -> None:
    """A layer, channels, units and heads without any effect: the logits stay. The channels' zeros
    made norms divide by less."""
    model = model_of(family)
    dead_channels, dead_units, dead_head = [1, 5, 6, 7, 13, 23], [0, 3, 9], 1
    with torch.no_grad():
        model.model.embed_tokens.weight[:, dead_channels] = 0
        for i, layer in enumerate(model.model.layers):
            for out in (layer.self_attn.o_proj, layer.mlp.down_proj):
                out.weight[dead_channels] = 0
                if i == 2:
                    out.weight.zero_()
            layer.mlp.up_proj.weight[dead_units] = 0
            width = 4
            layer.self_attn.v_proj.weight[dead_head * width : (dead_head + 1) * width] = 0
            if layer.self_attn.v_proj.bias is not None:
                layer.self_attn.v_proj.bias[dead_head * width : (dead_head + 1) * width] = 0
    small = prune(model, Size(3, hidden_size=16, intermediate_size=17, kv_heads=2), TEXTS)
    numbers = (small.config.num_hidden_layers, small.config.hidden_size, small.config.head_dim)
    assert numbers == (3, 16, 4) and small.config.num_attention_heads == 4
    expected = prune(model, Size(3, intermediate_size=17, kv_heads=2), TEXTS)
    check_same(expected, model)
    wide = prune(model, Size(3, hidden_size=18, intermediate_size=17, kv_heads=3), TEXTS)
    check_same(wide, model)


def test_what_is_cut_costs_little(family: str = "llama") -> None:
    """Of units with small weights, those of the smallest activations go."""
    model = model_of(family)
    faint = [2, 4, 11]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.up_proj.weight[faint] *= 1e-7
    small = prune(model, Size(intermediate_size=17), TEXTS)
    for one, two in zip(logits(small), logits(model), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_layers_stay_of_their_kind() -> None:
    """As those with a window, wherever they stand then."""
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    model = model_of("qwen3", layer_types=kinds, use_sliding_window=True, sliding_window=4)
    with torch.no_grad():
        first = model.model.layers[0]
        for out in (first.self_attn.o_proj, first.mlp.down_proj):
            out.weight.zero_()
    assert prune(model, Size(layers=3), TEXTS).config.layer_types == kinds[1:]


def test_norms_see_every_token_alike() -> None:
    """However large it is before them."""
    model, channels = model_of(), [0, 3, 4]
    with torch.no_grad():
        model.model.embed_tokens.weight[TEXTS[0][0]] *= 100
    seen = _Seen(model)
    seen.read(TEXTS)
    states = model.model.embed_tokens.weight[[token for text in TEXTS for token in text]].detach()
    shares = states.square() / states.square().mean(-1, keepdim=True)
    expected = float(shares[:, channels].mean().sqrt())
    assert seen.factor(0, "input_layernorm.weight", channels) == pytest.approx(expected)


def test_sizes_that_do_not_fit() -> None:
    model = model_of()
    with pytest.raises(ForetokenError, match="num_hidden_layers is to be 5 and the model's is 4"):
        prune(model, Size(layers=5), TEXTS)
    with pytest.raises(ForetokenError, match="width of 20 isn't a multiple of the 6 query heads"):
        prune(model, Size(hidden_size=20), TEXTS)
    with pytest.raises(ForetokenError, match="There is no text"):
        prune(model, Size(layers=2), [])
    model.config.model_type = "gpt2"
    with pytest.raises(ForetokenError, match="A gpt2 can't be cut"):
        prune(model, Size(layers=2), TEXTS)


def test_a_model_that_cannot_be_written(tmp_path: Path) -> None:
    """A disk that takes no more (here: no larger file) is one sentence with the folder."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(ForetokenError, match=f"{tmp_path / 'out'} can't be written"):
            write(model_of(), None, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out").exists()


class Tokenizer:
    """Writes a file, after which the process may be killed."""

    def __init__(self, killed: Callable[[], None]) -> None:
        self.killed = killed

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}")
        self.killed()


def test_what_a_killed_process_leaves_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration comes last; what ends with an error leaves nothing."""
    out, seen, moved = tmp_path / "out", list[bool](), list[str]()
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda file, to: moved.append(to.name) or rename(file, to))
    out.mkdir()
    write(model_of(), Tokenizer(lambda: seen.append((out / "config.json").exists())), out)
    written = sorted(file.name for file in out.iterdir())
    assert seen == [False] and moved[-1] == "config.json" and len(moved) == 4
    assert written == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(model_of(), Tokenizer(interrupted), tmp_path / "other")
    assert not (tmp_path / "other").exists()
