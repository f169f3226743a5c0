"""What a training would hold, from a configuration alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, PreTrainedConfig, Qwen2Config, Qwen3Config, ViTConfig

import gguf_files
from foretoken import ForetokenError
from foretoken.train.dry_run import dry_run
from foretoken.train.recipe import read_recipe
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM

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
    shape = {"draft_vocab_size": 32_000, "num_layers": 3}
    three = dry_run("eagle3", large, read_recipe("eagle3", {"shape": shape, "length": 2048}))
    assert three.parts["a batch"] > 1.5 * found.parts["a batch"]
    longer = dry_run("eagle3", large, read_recipe("eagle3", {"length": 8192}))
    assert longer.parts["a batch"] > 2 * found.parts["a batch"]


def test_a_configuration_with_names_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As code that comes with a target may have: there is nothing to reckon by, and it says so."""
    monkeypatch.setattr(
        "foretoken.train.dry_run.config_of", lambda *given: PreTrainedConfig(d_model=64)
    )
    with pytest.raises(ForetokenError, match=r"of its-own has no hidden_size, .* --dry-run out"):
        dry_run("medusa", "its-own", read_recipe("medusa"))


def test_a_target_without_a_list_of_layers(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Can't be shared out, and is reckoned whole otherwise."""
    monkeypatch.setattr("foretoken.models.hf.adapter.layers_of", lambda model: None)
    assert dry_run("medusa", large, read_recipe("medusa")).target == 8_190_735_360
    with pytest.raises(ForetokenError, match="no list of decoder layers"):
        dry_run("medusa", large, read_recipe("medusa"), target_among=2)


CODER = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
}
RECIPES = Path(__file__).parents[2] / "recipes" / "qwen2.5-coder"


@pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not part of this tree")
@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_recipes_of_a_real_target(method: str, tmp_path: Path) -> None:
    """They fit Qwen2.5-Coder-1.5B, and the GPU of 24 GB that their page asks for."""
    Qwen2Config(**CODER).save_pretrained(tmp_path)
    found = dry_run(method, str(tmp_path), read_recipe(RECIPES / f"{method}.yaml"))
    assert 1.5e9 < found.target < 1.6e9 and 5e7 < found.drafter < 3e8
    assert found.tensors["layers.0.self_attn.k_proj.weight"][0] == 2 * 128
    assert found.bytes < 16e9


@pytest.mark.parametrize(
    "method", ["medusa", "mlp_speculator", "eagle", "peagle", "dflash", "mtp", "glide"]
)
def test_other_methods(method: str, large: str) -> None:
    """None needs weights, or memory for its own."""
    found = dry_run(method, large, read_recipe(method, {"shape": {}}))
    assert 1e7 < found.drafter < found.target


def test_layers_that_run_once(large: str) -> None:
    """P-EAGLE has no use for `unroll`; its masks are more places."""
    shapes: list[Any] = [{}, {"unroll": 20}, {"depths": 20}]
    found = [dry_run("peagle", large, read_recipe("peagle", {"shape": s})) for s in shapes]
    sizes = [each.parts["a batch"] for each in found]
    assert sizes[0] == sizes[1] < sizes[2]


def test_small_models(checkpoints: tuple[Path, Path]) -> None:
    """Those that begin as a checkpoint, by its configuration; a step runs their own layers."""
    target, model = map(str, checkpoints)
    shape = {"shape": {"model": model}}
    small = sum(p.numel() for p in TrainedLM(Facts(0, 97, 0), model=model).parameters())
    found = dry_run("sps", target, read_recipe("sps", shape))
    assert found.drafter == small
    assert found.parts["their gradients"] == 4 * small == found.parts["the optimiser"] // 2
    assert dry_run("specdec", target, read_recipe("specdec", shape)).drafter > small
    numbers = {"hidden_size": 96, "num_attention_heads": 2, "num_hidden_layers": 1}
    one, eight = (
        dry_run("sps", target, read_recipe("sps", {"shape": {**numbers, "num_hidden_layers": n}}))
        for n in (1, 8)
    )
    assert eight.parts["a batch"] > 3 * one.parts["a batch"]


def test_target_and_heads_together(checkpoints: tuple[Path, Path]) -> None:
    """All of the target's weights are trained, or adapters of them."""
    whole = dry_run("medusa2", str(checkpoints[0]), read_recipe("medusa2"))
    assert whole.drafter > whole.target
    assert whole.parts["their gradients"] == whole.parts["the drafter's weights"]
    pytest.importorskip("peft")
    adapted = dry_run("medusa2", str(checkpoints[0]), read_recipe("medusa2-lora"))
    assert adapted.drafter > whole.drafter
    assert adapted.parts["their gradients"] < adapted.parts["the drafter's weights"]
    assert adapted.parts["the optimiser"] == 2 * adapted.parts["their gradients"]


def test_shared_out_over_processes(large: str) -> None:
    """Each keeps its part; a step has all weights and gradients, and the first process a copy."""
    recipe = read_recipe("eagle3")
    one, eight = dry_run("eagle3", large, recipe), dry_run("eagle3", large, recipe, among=8)
    own = 4 * one.drafter
    assert own == one.parts["the drafter's weights"]
    for name, size in (("the drafter's weights", own), ("the optimiser", 2 * own)):
        assert eight.parts[f"{name}, a part"] == pytest.approx(size / 8, abs=1)
    assert one.bytes - eight.bytes == pytest.approx(4 * own - (4 * own / 8 + 3 * own), abs=3)


def test_a_target_shared_out_over_processes(large: str) -> None:
    """Each has its part of the layers, the other weights whole, and two layers that a pass gathers;
    the drafter is as it was."""
    recipe = read_recipe("eagle3")
    one = dry_run("eagle3", large, recipe)
    eight = dry_run("eagle3", large, recipe, target_among=8)
    rest = 2 * 151936 * 4096 + 4096
    layers = one.target - rest
    assert eight.target == one.target and eight.tensors == one.tensors
    assert eight.parts["the target's layers, in 16 bits, a part"] == 2 * layers // 8
    assert eight.parts["its embedding, last norm and head, whole"] == 2 * rest
    assert eight.parts["layers of a pass, gathered"] == 2 * 2 * layers // 36
    assert one.bytes - eight.bytes == 2 * layers - 2 * layers // 8 - 4 * layers // 36
    assert eight.bytes == sum(eight.parts.values())
    with pytest.raises(ForetokenError, match="medusa2 trains the target itself"):
        dry_run("medusa2", large, read_recipe("medusa2"), target_among=8)


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
