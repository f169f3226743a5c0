"""Small checkpoints of other projects: configurations, names, files, and what they draft."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foretoken import ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.hydra import HydraHeads
from foretoken.drafters.kangaroo import KangarooAdapter
from foretoken.drafters.medusa import MedusaHeads
from foretoken.drafters.mtp import MtpModule
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.eagle3 import NORMS, Eagle3Module
from foretoken.trainable.selected_blocks import SelectedModule

VOCAB, WIDTH, LAYERS = 23, 32, 3
PROMPTS = [[1, 2, 3], [4, 5], [9] * 6, [7, 3, 7, 3]]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "vocab_size": VOCAB,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LAYER = {"heads": 4, "kv_heads": 2, "intermediate": 48, "norm_eps": 1e-5}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@dataclass
class Foreign:
    """A checkpoint of another project: its configuration, and its names for the module's."""

    module: Callable[[Facts], Trained]
    method: str
    config: Mapping[str, Any]
    names: Callable[[str], str | None] = lambda name: name
    file: str = "model.safetensors"
    brings: tuple[str, ...] = ()  # of the target's own
    change: Callable[[dict[str, Tensor]], None] = lambda tensors: None


def _midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def _state_first(tensors: dict[str, Tensor]) -> None:
    """MiMo's order, and tensors of the model itself."""
    name = "model.mtp_layers.0.input_proj.weight"
    tensors[name] = torch.cat(tensors[name].chunk(2, 1)[::-1], 1)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(48, WIDTH)


def _hydra(name: str) -> str:
    """Ankner's names."""
    _, head, part, *rest = name.split(".")
    layer = {"join": "0.linear", "skip": "0.res_connection", "lm_head": ""}.get(part)
    if part == "lm_head":
        return f"hydra_lm_head.{head}.{rest[0]}"
    if layer is None:
        return f"hydra_mlp.{head}.{int(rest[0]) + 1}.linear.{rest[1]}"
    return f"hydra_mlp.{head}.{layer}.{rest[0]}"


def eagle3(**shape: Any) -> Callable[[Facts], Trained]:
    return lambda facts: Eagle3Module(
        facts, **{**LAYER, "capture": [0, 1, 3], "draft_vocab_size": 11, **shape}
    )


def _speculators(**fields: Any) -> dict[str, Any]:
    return {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 11,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
        "transformer_layer_config": LLAMA,
        **fields,
    }


def _speculators_dflash(layer: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "speculators_model_type": "dflash",
        "block_size": 4,
        "draft_vocab_size": VOCAB,
        "aux_hidden_state_layer_ids": [1, 3],
        "mask_token_id": 22,
        "transformer_layer_config": {**LLAMA, "num_hidden_layers": 2, **(layer or {})},
        **fields,
    }


_SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6}
SAFE = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 11}
MEDUSA = {"base_model_name_or_path": "some/target", "medusa_num_heads": 2, "medusa_num_layers": 2}
BLOCK = {**LAYER, "num_layers": 2, "block_size": 4, "target_layer_ids": [0, 2], "mask_token_id": 22}
SELECTED = {**BLOCK, "conv_group_size": 8, "selector_rank": 3, "selector_top_k": 5}
FOREIGN = {
    "medusa": Foreign(
        lambda facts: MedusaHeads(facts, num_heads=3, num_layers=2),
        "medusa",
        MEDUSA,
        file="medusa_lm_head.pt",
    ),
    "medusa, safetensors": Foreign(
        lambda facts: MedusaHeads(facts, num_heads=2, num_layers=1),
        "medusa",
        MEDUSA,
        lambda name: f"medusa_head.{name}",
        "medusa_lm_head.safetensors",
    ),
    "eagle": Foreign(
        lambda facts: EagleModule(facts, **LAYER),
        "eagle",
        LLAMA,
        file="pytorch_model.bin",
        brings=("embed_tokens.weight",),
    ),
    "eagle 2": Foreign(
        lambda facts: EagleModule(facts, bias=False, rope_theta=500.0, **LAYER),
        "eagle2",
        {**LLAMA, "rope_theta": 500.0},
    ),
    "eagle3": Foreign(
        eagle3(capture=[2, 1, 3]),
        "eagle3",
        {**SAFE, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 0, 2]}},
        _midlayer,
        "pytorch_model.bin",
        ("embed_tokens.weight",),
    ),
    "eagle3, layers by their inputs": Foreign(
        eagle3(),
        "eagle3",
        {**SAFE, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}},
    ),
    "eagle3, rotation and head width": Foreign(
        eagle3(rope_theta=500.0, rope_scaling=LLAMA3, head_width=12),
        "eagle3",
        {
            **SAFE,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
            "head_dim": 12,
            "rope_theta": 500.0,
            "rope_scaling": LLAMA3,
        },
    ),
    "eagle3, layers of DeepSpec": Foreign(
        eagle3(capture=[1, 2, 3]),
        "eagle3",
        {**SAFE, "architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [0, 1, 2]},
    ),
    "eagle3, usual layers": Foreign(eagle3(capture=None), "eagle3", SAFE, _midlayer),
    "eagle3, whole vocabulary": Foreign(
        eagle3(draft_vocab_size=VOCAB),
        "eagle3",
        {**SAFE, "draft_vocab_size": None, "eagle_aux_hidden_state_layer_ids": [0, 1, 3]},
        lambda name: None if name in ("d2t", "t2d", "lm_head.weight") else _midlayer(name),
    ),
    "speculators eagle3": Foreign(eagle3(), "eagle3", _speculators()),
    "speculators eagle3, norms": Foreign(
        eagle3(norms=[NORMS[0], NORMS[3], NORMS[1]], qk_norm=True),
        "eagle3",
        _speculators(norm_before_residual=True, norm_output=True, norm_before_fc=True),
    ),
    "speculators eagle3, norm of each": Foreign(
        eagle3(norms=["fc_norm"], rope_theta=500.0),
        "eagle3",
        _speculators(
            fc_norm=True,
            transformer_layer_config={
                **LLAMA,
                "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
            },
        ),
    ),
    "hydra": Foreign(
        lambda facts: HydraHeads(facts, num_heads=3, num_layers=3, learned_residual=True),
        "hydra",
        {
            "hydra_num_heads": 3,
            "hydra_num_layers": 3,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "base_model_name_or_path": "some/target",
        },
        _hydra,
        "hydra_lm_head.pt",
    ),
    "kangaroo": Foreign(
        lambda facts: KangarooAdapter(facts, heads=4, kv_heads=2, exit_layer=1, norm_eps=1e-5),
        "kangaroo",
        {**LLAMA, "exit_layer": 1},
        file="pytorch_model.bin",
    ),
    "dflash, biases": Foreign(
        lambda facts: BlockModule(facts, qkv_bias=True, o_bias=True, **BLOCK),
        "dflash",
        {
            **LLAMA,
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "attention_bias": True,
            "block_size": 4,
            "num_hidden_layers": 2,
            "num_target_layers": LAYERS,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash": Foreign(
        lambda facts: BlockModule(facts, **BLOCK),
        "dflash",
        {
            **LLAMA,
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": 4,
            "num_hidden_layers": 2,
            "num_target_layers": LAYERS,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash, a mask of its own": Foreign(
        lambda facts: BlockModule(facts, **{**BLOCK, "mask_token_id": None}),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2]},
        },
        lambda name: name.replace("fc.", "encoder.fc."),
        brings=("lm_head.weight",),
    ),
    "speculators dflash": Foreign(
        lambda facts: BlockModule(facts, **BLOCK),
        "dflash",
        _speculators_dflash(),
    ),
    "dflash, a window": Foreign(
        lambda facts: BlockModule(facts, window=6, **BLOCK),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 6,
            "is_causal": False,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash, a window that says nothing else": Foreign(
        lambda facts: BlockModule(facts, window=6, causal=True, **BLOCK),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 6,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash, a window of one layer": Foreign(  # as z-lab's for Gemma 4
        lambda facts: BlockModule(facts, window=[6, None], causal=[True, False], **BLOCK),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 6,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash, a window of one layer and blocks seen both ways": Foreign(
        lambda facts: BlockModule(facts, window=[None, 6], **BLOCK),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 6,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2], "causal": False},
        },
    ),
    "dflash, MiMo's window": Foreign(
        lambda facts: BlockModule(facts, window=6, **BLOCK),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention"] * 2,
            "sliding_window": 9,
            "dflash_config": {
                "mask_token_id": 22,
                "target_layer_ids": [0, 2],
                "use_swa": True,
                "swa_window_size": 6,
            },
        },
    ),
    "dflash, causal": Foreign(
        lambda facts: BlockModule(facts, causal=True, **BLOCK),
        "dflash",
        {
            **LLAMA,
            "block_size": 4,
            "num_hidden_layers": 2,
            "dflash_config": {"mask_token_id": 22, "target_layer_ids": [0, 2], "causal": True},
        },
    ),
    "speculators dflash, of a later version": Foreign(
        lambda facts: BlockModule(facts, **BLOCK),
        "dflash",
        _speculators_dflash(
            projector_type="dflash", shift_label=False, sliding_window_non_causal=False
        ),
    ),
    "speculators dflash, a window": Foreign(
        lambda facts: BlockModule(facts, window=6, causal=True, **BLOCK),
        "dflash",
        _speculators_dflash(_SLIDING, sliding_window_non_causal=False),
    ),
    "speculators dflash, a window and blocks seen both ways": Foreign(
        lambda facts: BlockModule(facts, window=6, **BLOCK),
        "dflash",
        _speculators_dflash(_SLIDING, sliding_window_non_causal=True),
    ),
    "speculators dflash, a window of one layer": Foreign(
        lambda facts: BlockModule(facts, window=[None, 6], causal=[False, True], **BLOCK),
        "dflash",
        _speculators_dflash(
            {**_SLIDING, "layer_types": ["full_attention", "sliding_attention"]},
            sliding_window_non_causal=False,
        ),
    ),
    "speculators dflash, reduced": Foreign(
        lambda facts: BlockModule(facts, draft_vocab_size=11, **BLOCK),
        "dflash",
        _speculators_dflash(draft_vocab_size=11),
    ),
    "dflash2": Foreign(
        lambda facts: SelectedModule(facts, **SELECTED),
        "dflash2",
        {
            **LLAMA,
            "architectures": ["DFlash2DraftModel"],
            "model_type": "qwen3",
            "is_causal": False,
            "num_hidden_layers": 2,
            "num_target_layers": LAYERS,
            "dflash_config": {
                "block_size": 4,
                "mask_token_id": 22,
                "target_layer_ids": [0, 2],
                "conv_kernel_size": 2,
                "conv_group_size": 8,
                "selector_rank": 3,
                "selector_top_k": 5,
                "output_multiplier": 1.0,
            },
        },
        brings=("lm_head.weight",),
    ),
    "speculators mtp": Foreign(
        lambda facts: MtpModule(facts, qk_norm=True, **LAYER),
        "mtp",
        {
            "speculators_model_type": "mtp",
            "num_nextn_predict_layers": 1,
            "transformer_layer_config": LLAMA,
        },
    ),
    "mtp next to the model": Foreign(
        lambda facts: MtpModule(facts, qkv_bias=True, **LAYER),
        "mtp",
        {**LLAMA, "num_hidden_layers": LAYERS},
        lambda name: f"model.{name}",
        change=_state_first,
    ),
}


def target_of(pair: Pair) -> ModelTarget:
    return ModelTarget(pair.target, 4, 64)


def made(foreign: Foreign, pair: Pair) -> Trained:
    """A module with random weights that the target's own tokens are known to."""
    module = foreign.module(Facts.of(pair.target)).double()
    random = torch.Generator().manual_seed(5)
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=random, dtype=torch.float64)
        weight.data.copy_(0.3 * noise + (1.0 if weight.ndim == 1 else 0.0))
    module.set_token_counts(torch.rand(VOCAB, generator=random))
    return module


def write(folder: Path, foreign: Foreign, module: Trained, pair: Pair) -> Path:
    """Such a checkpoint, as its own project would save it."""
    own = module.state_dict()
    tensors = {foreign.names(name): tensor.contiguous() for name, tensor in own.items()}
    tensors.pop(None, None)
    for name in foreign.brings:
        tables = {"embed_tokens": pair.target.embed(torch.arange(VOCAB))}
        tables["lm_head"] = pair.target.head(torch.eye(WIDTH, dtype=torch.float64)).T
        tensors[name] = tables[name.removesuffix(".weight")].contiguous().clone()
    foreign.change(tensors)
    return written(folder, foreign.config, tensors, foreign.file)


def written(folder: Path, config: Any, tensors: Any, file: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
        (folder / "optimizer.pt").write_bytes(b"no tensors")
    return folder


def drafts(method: str, folder: Path, model: CausalLM) -> list[Any]:
    """The tokens of every tree, and how many of them were kept."""
    built = build({"method": method, "model": str(folder)})
    drafter, verifier = built.drafter, built.verifier
    found: list[Any] = []
    draft = drafter.draft

    def seen(*given: Any) -> Any:
        tree = draft(*given)
        found.append(tree.tokens.tolist())
        return tree

    drafter.draft = seen  # type: ignore[method-assign]
    drafter.price = lambda measure: None  # type: ignore[method-assign]  # trees vary with the costs
    outputs = serve(model, drafter, verifier, PROMPTS, GREEDY, slots=4)
    assert all(output.stats.drafted for output in outputs)
    return [*found, *(output.stats.accepted for output in outputs)]


def of_module(module: type[Trained]) -> list[str]:
    """The names of the checkpoints that become such a module."""
    facts = Facts(WIDTH, VOCAB, LAYERS, 2, 8)
    return [name for name, foreign in FOREIGN.items() if isinstance(foreign.module(facts), module)]


def check_drafts_as_ours(name: str, small: Pair, folder: Path) -> None:
    """Such a checkpoint drafts what our own one drafts, and becomes the same tensors."""
    foreign = FOREIGN[name]
    module = made(foreign, small)
    if isinstance(module, Eagle3Module) and name == "eagle3, whole vocabulary":
        module.set_token_counts(torch.arange(VOCAB, 0, -1))
        joined = module.fc.weight.detach().clone()
        module.copy_from(target_of(small))
        module.fc.weight.data.copy_(joined)
    module.save(folder / "own", {})
    theirs = write(folder / "theirs", foreign, module, small)
    found = drafts(foreign.method, theirs, small.target)
    assert found == drafts(foreign.method, folder / "own", small.target)
    read = type(module).load(theirs, target_of(small))
    assert read.state_dict().keys() == module.state_dict().keys()
    for key, tensor in module.state_dict().items():
        torch.testing.assert_close(read.state_dict()[key], tensor)


_DFLASH2: Any = FOREIGN["dflash2"].config["dflash_config"]
REFUSED = {
    "hidden_size": ("eagle", {}, {}, {"width": 16}, "hidden_size 32 .* has 16"),
    "vocabulary": ("medusa", {}, {}, {"vocab_size": 19}, "vocab_size 23 .* has 19"),
    "vocabulary of a head": ("hydra", {}, {}, {"vocab_size": 19}, "vocab_size 23 .* has 19"),
    "depth": ("dflash", {}, {}, {"layers": 4}, "layers 3 .* has 4"),
    "layer": (
        "speculators eagle3",
        {"eagle_aux_hidden_state_layer_ids": [0, 2, 9]},
        {},
        {},
        "after layer 9 .* has 3",
    ),
    "width": ("speculators eagle3", {"target_hidden_size": 64}, {}, {}, "is 32 and .* 64"),
    "vocabulary of DFlash": ("speculators dflash", {"draft_vocab_size": 11}, {}, {}, "11 of 23"),
    "logits": ("dflash2", {"dflash_config": {**_DFLASH2, "output_multiplier": 0.2}}, {}, {}, "0.2"),
    "windows of more layers": (
        "dflash",
        {"layer_types": ["sliding_attention", *["full_attention"] * 2], "sliding_window": 8},
        {},
        {},
        "there are 2 layers, and numbers for 3",
    ),
    "another kind of layer": (
        "dflash",
        {"layer_types": ["full_attention", "chunked_attention"]},
        {},
        {},
        "of the kind 'chunked_attention'",
    ),
    "no window": ("dflash", {"layer_types": ["sliding_attention"] * 2}, {}, {}, "how many tokens"),
    "projector": (
        "speculators dflash",
        {"projector_type": "domino", "shift_label": True},
        {},
        {},
        "projector_type is 'domino'",
    ),
    "labels": ("speculators dflash", {"shift_label": True}, {}, {}, "shift_label is True"),
    "labels beside the settings": ("dflash", {"shift_label": True}, {}, {}, "shift_label is True"),
    "a scale beside the settings": ("dflash", {"logit_scale": 0.5}, {}, {}, "logit_scale is 0.5"),
    "neighbouring places": ("dflash", {"is_neox_style": False}, {}, {}, "turns neighbouring"),
    "layers": ("eagle", {"num_hidden_layers": 2}, {}, {}, "has 2 layers"),
    "activation": ("eagle", {"hidden_act": "gelu"}, {}, {}, "'gelu'.*'silu'"),
    "window": (
        "eagle3",
        {"layer_types": ["sliding_attention"], "sliding_window": 8},
        {},
        {},
        "see 8",
    ),
    "rotation": ("eagle", {"rope_scaling": {"type": "dynamic"}}, {}, {}, "dynamic"),
    "rotation of a part": ("eagle", {"partial_rotary_factor": 0.5}, {}, {}, "0.5"),
    "rotation of each kind": (
        "dflash",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            }
        },
        {},
        {},
        "each kind of its layers",
    ),
    "relative": ("speculators dflash", {"speculators_model_type": "dspark"}, {}, {}, "'dspark'"),
    "Hydra++": ("hydra", {"hydra_head_arch": "prefix-mlp"}, {}, {}, "'prefix-mlp'.*'mlp'"),
    "no such tensor": ("eagle3", {}, {"another.weight": torch.ones(3)}, {}, "'another.weight'"),
    "shape": ("eagle3", {}, {"fc.weight": torch.ones(3, 4)}, {}, r"\[3, 4\] .* \[32, 96\]"),
    "embedding": (
        "eagle3",
        {},
        {"embed_tokens.weight": torch.ones(VOCAB, WIDTH)},
        {},
        "away from this target",
    ),
    "size of it": ("eagle3", {}, {"embed_tokens.weight": torch.ones(9, WIDTH)}, {}, r"\[9, 32\]"),
    "head": (
        "dflash, a mask of its own",
        {},
        {"lm_head.weight": torch.ones(VOCAB, WIDTH)},
        {},
        "away from this target",
    ),
}


def check_refused(name: str, small: Pair, folder: Path) -> None:
    """One sentence, with both values where there are two."""
    which, config, tensors, other, message = REFUSED[name]
    foreign = FOREIGN[which]
    module = made(foreign, small)

    def change(own: dict[str, Tensor]) -> None:
        own.update(tensors)

    changed = replace(foreign, config={**foreign.config, **config}, change=change)
    changed_folder = write(folder, changed, module, small)
    shape = {"vocab_size": VOCAB, "layers": LAYERS, "width": WIDTH, **other}
    with pytest.raises(ForetokenError, match=message) as refused:
        drafts(foreign.method, changed_folder, tiny_pair(**shape).target)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
