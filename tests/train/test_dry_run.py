"""What a training would hold, from a configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GPT2Config, Qwen3Config, ViTConfig

import gguf_files
from foretoken import ForetokenError
from foretoken.train.dry_run import dry_run
from foretoken.train.recipe import read_recipe

EIGHT_B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "rope_theta": 1e6,
}


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A folder with the configuration of Qwen3-8B and nothing else."""
    Qwen3Config(**EIGHT_B).save_pretrained(tmp_path / "8b")
    return str(tmp_path / "8b")


def test_eagle3_of_an_eight_billion_target(large: str) -> None:
    """Its numbers are Qwen3-8B's; eight processes of 80 GB have room for it."""
    recipe = read_recipe("eagle3", {"shape": {"draft_vocab_size": 32_000}, "length": 2048})
    found = dry_run("eagle3", large, recipe)
    assert found.target == 8_190_735_360
    assert found.tensors["fc.weight"] == (4096, 3 * 4096)
    assert found.tensors["layers.0.self_attn.q_proj.weight"] == (4096, 2 * 4096)
    assert found.tensors["layers.0.self_attn.k_proj.weight"] == (1024, 2 * 4096)
    assert found.tensors["layers.0.mlp.up_proj.weight"] == (12288, 4096)
    assert found.tensors["lm_head.weight"] == (32_000, 4096)
    assert found.bytes == sum(found.parts.values())
    assert 2 * found.target + 16 * found.drafter < found.bytes < 80e9
    caches = found.parts["keys and values of a batch, and of a text"]
    assert caches == (recipe.rows + 1) * 2048 * 36 * 2 * 8 * 128 * 2
    longer = dry_run("eagle3", large, read_recipe("eagle3", {"length": 8192}))
    assert longer.parts["a batch"] > 2 * found.parts["a batch"]


@pytest.mark.parametrize(
    "method", ["medusa", "mlp_speculator", "eagle", "peagle", "dflash", "mtp", "glide"]
)
def test_other_methods(method: str, large: str) -> None:
    """None needs weights, or memory for its own."""
    found = dry_run(method, large, read_recipe(method, {"shape": {}}))
    assert 1e7 < found.drafter < found.target


def test_a_gguf_file(tmp_path: Path) -> None:
    """Its configuration is of no class of transformers."""
    model = gguf_files.model("llama")
    path = gguf_files.written(tmp_path / "model.gguf", "llama")
    assert dry_run("medusa", str(path), read_recipe("medusa")).target == sum(
        p.numel() for p in model.parameters()
    )


def test_what_is_refused(tmp_path: Path, large: str) -> None:
    """A shape that doesn't fit, a method that learns nothing, a target that is none."""
    with pytest.raises(ForetokenError, match="of the recipe doesn't fit"):
        dry_run("eagle3", large, read_recipe("eagle3", {"shape": {"depth": 3}}))
    with pytest.raises(ForetokenError, match="nothing to train"):
        dry_run("pld", large, read_recipe("eagle3"))
    with pytest.raises(ForetokenError, match=r"no config\.json"):
        dry_run("eagle3", str(tmp_path), read_recipe("eagle3"))
    numbers = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    ViTConfig(**numbers, intermediate_size=48).save_pretrained(tmp_path / "vit")
    with pytest.raises(ForetokenError, match="vit"):
        dry_run("medusa", str(tmp_path / "vit"), read_recipe("medusa"))
    GPT2Config(n_embd=32, n_head=2, n_layer=2).save_pretrained(tmp_path / "gpt2")
    assert dry_run("medusa", str(tmp_path / "gpt2"), read_recipe("medusa")).drafter
