"""Which methods can be trained, and with what."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import (
    BartConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    T5Config,
)

from foretoken import ForetokenError
from foretoken.drafters.medusa import Medusa
from foretoken.models.load import read_config
from foretoken.registry import drafter_class, drafter_names
from foretoken.train.drafter import (
    DrafterTraining,
    merged,
    papers_tree,
    shape_for,
    trainable,
    with_layer_of,
)
from foretoken.train.job import Job
from foretoken.train.joint import JointTraining
from foretoken.train.recipe import Recipe, read_recipe
from foretoken.train.run import make
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.cross_attention import CrossAttentionModule
from trainings import PROMPTS


def test_methods_with_nothing_to_train() -> None:
    """They are refused with the list of those that can be trained."""
    with pytest.raises(ForetokenError, match=r"nothing to train for method 'pld'.*medusa"):
        trainable("pld")
    assert trainable("medusa") is Medusa


def test_only_small_models_learn_after_others(tmp_path: Path) -> None:
    """Before anything is loaded."""
    job = Job("medusa", "no-such-model", [], read_recipe("medusa"), tmp_path, after=["one"])
    with pytest.raises(ForetokenError, match="use method 'sps' with after"):
        DrafterTraining.check(job)


@pytest.mark.parametrize(
    ("method", "changes", "has"),
    [
        *(
            (method, {"dynamic": 0.5}, method in ("medusa", "hydra", "mtp", "eagle", "eagle3"))
            for method in ("medusa", "hydra", "mtp", "eagle", "eagle3", "dflash", "peagle", "sps")
        ),
        ("kangaroo", {"dynamic": 0.5}, False),
        ("medusa2", {"dynamic": 0.5}, True),
        ("eagle", {"objective": {"kl_div": 1.0, "feature": 0.1}}, True),
        ("eagle3", {"objective": {"kl_div": 1.0, "feature": 0.1}}, False),
        ("medusa2", {"objective": {"kl_div": 1.0, "feature": 0.1}}, False),
        ("dflash", {"objective": {"kl_div": 1.0, "feature": 0.0}}, True),
    ],
)
def test_what_a_loss_would_leave_out(
    method: str, changes: dict[str, Any], has: bool, tmp_path: Path
) -> None:
    """Is refused before anything is loaded."""
    job = Job(method, "mini", [], read_recipe(method, changes), tmp_path)
    kind: Any = JointTraining if method == "medusa2" else DrafterTraining
    with nullcontext() if has else pytest.raises(ForetokenError, match="has no such part"):
        kind.check(job)


@pytest.mark.parametrize(
    ("name", "value"), [("draft_vocab_size", 4), ("num_assistant_tokens_schedule", "confidence")]
)
def test_drafts_that_no_estimate_is_of(name: str, value: Any, tmp_path: Path) -> None:
    """Refused before anything is written; what changes nothing is taken."""
    recipe = read_recipe("sps", {"serving": {name: value}})
    with pytest.raises(ForetokenError, match=f"{name} is in the recipe's serving, and estimates"):
        DrafterTraining.check(Job("sps", "mini", PROMPTS, recipe, tmp_path))
    for same in ({}, {"num_assistant_tokens_schedule": "constant"}, {"draft_vocab_size": None}):
        recipe = read_recipe("sps", {"serving": same})
        DrafterTraining.check(Job("sps", "mini", PROMPTS, recipe, tmp_path))


def test_training_measures_the_papers_tree() -> None:
    """Also where serving would plan one for the machine; others have no such option."""
    planned = {name for name in drafter_names() if papers_tree(drafter_class(name))}
    assert planned == {
        *("eagle2", "eagle3", "hydra", "lookahead", "medusa", "mlp_speculator"),
        "token_recycling",
    }
    assert papers_tree(Medusa) == {"tree": "paper"}


def test_several_are_served_in_one_tree() -> None:
    """A chain of each, of the same depth."""
    config = merged([Path("one"), "two"], 3)
    assert config["models"] == ["one", "two"] and config["widths"] == (1, 1, 1)


def config(**changes: Any) -> Any:
    numbers = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
    return LlamaConfig(**{**numbers, "intermediate_size": 160, "rope_theta": 5e5, **changes})


def test_a_layer_like_the_targets() -> None:
    """Where the recipe names no numbers; those that it names stay, heads all or none."""
    layer = {"heads": 8, "kv_heads": 2, "intermediate": 160, "rope_theta": 5e5}
    assert with_layer_of(config(), {"unroll": 2}) == {**layer, "unroll": 2}
    wide = with_layer_of(config(head_dim=16), {"intermediate": 96})
    assert wide == {**layer, "head_width": 16, "intermediate": 96}
    rest = {"intermediate": 160, "rope_theta": 5e5}
    assert with_layer_of(config(head_dim=16), {"heads": 4}) == {**rest, "heads": 4}


@pytest.mark.parametrize(
    ("config", "layer"),
    [
        (GPT2Config(n_embd=64, n_head=4), {"heads": 4, "kv_heads": 4, "intermediate": 256}),
        (GPT2Config(n_embd=64, n_inner=96, n_head=4), {"intermediate": 96}),
        (OPTConfig(hidden_size=64, ffn_dim=80, num_attention_heads=4), {"intermediate": 80}),
        (Gemma3TextConfig(), {"rope_theta": 1e6}),
    ],
    ids=["GPT-2", "GPT-2 with a width", "OPT", "Gemma 3"],
)
def test_configurations_with_other_names(config: Any, layer: dict[str, Any]) -> None:
    """Of the feed-forward's width; and a base of the rotation for each kind of layer."""
    assert with_layer_of(config, {}).items() >= layer.items()


@pytest.mark.parametrize("method", ["eagle", "eagle3", "dflash", "mtp"])
def test_a_new_drafter_is_shaped_like_its_target(
    method: str, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    job = Job(method, str(checkpoints[0]), [], read_recipe(method, {"shape": {}}), tmp_path)
    target = read_config(checkpoints[0])
    facts = Facts(target.hidden_size, target.vocab_size, target.num_hidden_layers)
    setting: Any = SimpleNamespace(job=job, facts=facts)
    shape = DrafterTraining(setting).new_module().shape
    assert shape["heads"] == target.num_attention_heads
    assert shape["kv_heads"] == target.num_key_value_heads
    assert shape["intermediate"] == target.intermediate_size


SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("kind", [T5Config, BartConfig])
def test_targets_that_have_an_encoder(kind: Any, tmp_path: Path) -> None:
    """Their prompts are sources: the answers to them are no texts with them at the beginning."""
    kind().save_pretrained(tmp_path / "target")
    with pytest.raises(ForetokenError, match=r"is an encoder–decoder.*recipes/seq2seq"):
        make(
            Job("medusa", str(tmp_path / "target"), PROMPTS, Recipe(), tmp_path / "out", show=False)
        )


def test_queries_that_meet_the_targets_keys() -> None:
    """Are rotated as these, and the layer is like the target's; another base is refused."""
    given = config(rope_parameters={"rope_theta": 5e5, **SCALED})
    shape = shape_for(CrossAttentionModule, given, read_recipe("glide").shape)
    assert shape["rope_theta"] == 5e5 and shape["rope_scaling"] == SCALED
    assert shape["kv_heads"] == given.num_key_value_heads
    assert shape["intermediate"] == given.intermediate_size
    plain = shape_for(CrossAttentionModule, config(), {"rope_theta": 5e5, "heads": 2})
    assert plain["rope_theta"] == 5e5 and plain["rope_scaling"] is None
    with pytest.raises(ForetokenError, match="rope_theta of the shape is"):
        shape_for(CrossAttentionModule, given, {"rope_theta": 1e5})
    with pytest.raises(ForetokenError, match="rope_scaling of the shape is"):
        shape_for(CrossAttentionModule, config(), {"rope_scaling": SCALED})


def test_the_rotary_of_the_layer_that_is_read() -> None:
    """Gemma 3 has one for each kind of layer; keys that are rotated in part can't be met."""
    kinds = ["sliding_attention", "full_attention"]
    rope = {kinds[0]: {"rope_theta": 1e4}, kinds[1]: {"rope_theta": 1e6}}
    rope = {kind: {"rope_type": "default", **one} for kind, one in rope.items()}
    gemma = Gemma3TextConfig(num_hidden_layers=2, layer_types=kinds, rope_parameters=rope)
    for layer, theta in ((0, 1e4), (1, 1e6), (-1, 1e6)):
        shape = shape_for(CrossAttentionModule, gemma, {"read_layer": layer})
        assert shape["rope_theta"] == theta
    part = config(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    with pytest.raises(ForetokenError, match="in a way that this drafter's queries can't be"):
        shape_for(CrossAttentionModule, part, {})


def test_a_configuration_with_names_of_its_own() -> None:
    """As code that comes with a target may have: the numbers of a layer are then the shape's."""
    other = PreTrainedConfig(n_heads=4, d_model=64)
    with pytest.raises(ForetokenError, match=r"no num_attention_heads, .* kv_heads, intermediate"):
        with_layer_of(other, {"heads": 4})
    named = {"heads": 4, "kv_heads": 2, "intermediate": 96, "unroll": 2}
    assert with_layer_of(other, named) == named
