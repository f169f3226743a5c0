"""Checkpoints of ours as other programs read them: EAGLE-3, DFlash, and models that draft alone.

`speculators` writes one shape of configuration for all methods, with the target's name in it; vLLM,
SGLang and TensorRT-LLM read what SafeAILab (EAGLE-3) and z-lab (DFlash) publish, and differ in the
fields that they look at. Tensors keep our names unless a format has others. A model that drafts
alone is an ordinary checkpoint.

Sources, as of 2026: vLLM's models/llama_eagle3.py (pull request 42764), `EagleModelMixin` in
models/interfaces.py (the order of captured layers) and its DFlash model (`mask_embedding.pt`,
`causal` in `dflash_config` and in later versions `is_causal`); SGLang's models/llama_eagle3.py
(pull request 24663), `set_eagle3_layers_to_capture` of its targets (how captured layers are
counted: llama.py, pull requests 25454 and 32334) and speculative/dflash_worker_v2.py (where a mask
is put).
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.files import write_file
from foretoken.models.checkpoint import Checkpoint
from foretoken.models.reduced_vocabulary import offsets
from foretoken.trainable.formats.dflash import SELECTING
from foretoken.trainable.formats.published import EMBEDDING, MASK, MASK_FILE

PROGRAMS = ("speculators", "vllm", "sglang", "hf")
"""The programs that a checkpoint can be written for."""

_IDS = "eagle_aux_hidden_state_layer_ids"
_VERSION = "0.9.0"  # of speculators, whose fields these are
_BESIDE = (
    "config.json",
    "generation_config.json",
    "*token*",
    "tekken.json",
    "*.model",
    "vocab.*",
    "merges.txt",
    "*.jinja",
    "*.py",  # code that comes with it
)
"""What belongs to a model beside its weights."""


@dataclass(frozen=True)
class Target:
    """name: as its user loads it; config: its config.json; embedding and head: read them, [V, D];
    scaled: whether its layers read its embedding times a number; tied: whether its head is its
    embedding; tokens: how many its tokenizer has, None where it has none."""

    name: str
    config: Mapping[str, Any]
    embedding: Callable[[], Tensor]
    head: Callable[[], Tensor]
    scaled: bool
    tied: bool
    tokens: Callable[[], int | None]

    @property
    def dtype(self) -> torch.dtype | None:
        """Of its weights; None where its configuration doesn't say."""
        found = getattr(torch, self.config.get("dtype") or "", None)
        return found if isinstance(found, torch.dtype) else None


def trained(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Target, to: str, out: Path
) -> None:
    """Write a trained drafter, by its config.json and tensors, for the program `to`. It is written
    in its target's dtype, in which it should run; SGLang would otherwise choose another.

    Raises `ForetokenError` for a method or a shape that the program has no form for.
    """
    method = config["foretoken_method"]
    if method not in _METHODS or to == "hf":
        raise ForetokenError(
            f"There is no form of method {method!r} for {to!r}; 'eagle3' and 'dflash' can be "
            "written for 'speculators', 'vllm' and 'sglang', 'dflash2' for the last two, and a "
            "model that drafts alone for 'vllm', 'sglang' and 'hf'."
        )
    dtype = target.dtype or tensors["fc.weight"].dtype
    cast = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    written, named = _METHODS[method](*_in_order(config, cast), target, to)
    kind = str(dtype).removeprefix("torch.")
    mask = named.pop(MASK, None)
    if mask is not None:  # of z-lab's form, whose readers look for it in a file of its own
        _save_mask(out, written["dflash_config"]["mask_token_id"], mask)
    _save(out, {**written, "torch_dtype": kind}, named)


def _save_mask(out: Path, token: int, mask: Tensor) -> None:
    file = io.BytesIO()
    torch.save({"mask_token_id": token, "embedding": mask.detach().clone()}, file)
    write_file(out / MASK_FILE, file.getvalue())


def _save(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_file(out / "model.safetensors", save(whole, metadata={"format": "pt"}))
    write_file(out / "config.json", json.dumps(config, indent=2) + "\n")


def model(folder: Path, to: str, out: Path) -> None:
    """Write a model that drafts alone: the files of its folder that belong to the model. Raises
    `ForetokenError` for a folder without weights, which is no model."""
    if to == "speculators":
        raise ForetokenError(
            "speculators has no type for a model that drafts alone; write it for 'vllm', and name "
            'it there as {"method": "draft_model", "model": "' + out.name + '"}.'
        )
    files = {*Checkpoint(folder).files, *(file for kind in _BESIDE for file in folder.glob(kind))}
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(file for file in files if file.is_file()):
        shutil.copy(file, out / file.name)


def _in_order(
    config: Mapping[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same drafter with its captured layers in ascending order, in which the programs join
    their states: with the columns of `fc` and the norms of the states in that order."""
    shape, width = config["shape"], config["target"]["hidden_size"]
    name = "capture" if "capture" in shape else "target_layer_ids"
    order = sorted(range(len(shape[name])), key=lambda i: shape[name][i])
    moved = {f"fc_norm.{to}.weight": f"fc_norm.{at}.weight" for to, at in enumerate(order)}
    ordered = {n: tensors[moved.get(n, n)] for n in tensors}
    for joined in {"fc.weight", "input_norm.weight"} & tensors.keys():
        parts = tensors[joined].split(width, -1)
        ordered[joined] = torch.cat([parts[at] for at in order], -1)
    return {**config, "shape": {**shape, name: [shape[name][at] for at in order]}}, ordered


def _with_head(
    shape: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Target
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What predicts with its target's head gets a copy of it: each form has a head."""
    head = target.head().to(tensors["fc.weight"].dtype)
    d2t, t2d = offsets(len(head), len(head))
    copied = {**tensors, "lm_head.weight": head, "d2t": d2t, "t2d": t2d}
    return {**shape, "draft_vocab_size": len(head)}, copied


def _eagle3(
    config: Mapping[str, Any], tensors: dict[str, Tensor], target: Target, to: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    shape = config["shape"]
    if shape["draft_vocab_size"] is None:
        shape, tensors = _with_head(shape, tensors, target)
    norms = shape.get("norms", ())
    layer = _layer(config, target, shape.get("num_layers", 1))
    fields = {
        "draft_vocab_size": shape["draft_vocab_size"],
        _IDS: list(shape["capture"]),
        **{
            name: name in norms
            for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        },
    }
    if to == "speculators":
        if {"norm_before_fc", "fc_norm"} <= set(norms):
            raise ForetokenError(
                "This drafter has norm_before_fc and fc_norm, of which speculators takes one; "
                "write it for 'vllm', or train one whose shape has one of them."
            )
        if shape["draft_vocab_size"] == layer["vocab_size"]:
            del tensors["d2t"], tensors["t2d"]
        # Their loader takes it from the target only if uninitialised memory has a NaN.
        tensors[EMBEDDING] = target.embedding().to(tensors["fc.weight"].dtype)
        return _speculators("eagle3", layer, fields, target, shape["unroll"]), tensors
    fields["num_aux_hidden_states"] = len(shape["capture"])
    inner: dict[str, Any] = {"use_aux_hidden_state": True}
    if to == "sglang":
        _check_norms(shape)
        inner[_IDS] = _counted(fields.pop(_IDS), target)
        for i in range(1, layer["num_hidden_layers"]):  # the norm before attention, by its name
            name = f"layers.{i}."
            tensors[f"{name}hidden_norm.weight"] = tensors.pop(f"{name}input_layernorm.weight")
    architecture = "Eagle3Qwen3ForCausalLM" if shape.get("qk_norm") else "LlamaForCausalLMEagle3"
    written = {**layer, "architectures": [architecture], **fields, "eagle_config": inner}
    if layer["num_hidden_layers"] == 1:  # SafeAILab's name, which older versions look for
        tensors = {name.replace("layers.0.", "midlayer."): t for name, t in tensors.items()}
    return written, tensors


def _check_norms(shape: Mapping[str, Any]) -> None:
    """Raises `ForetokenError` for what SGLang would leave out without a word."""
    norms = (name for name in shape.get("norms", ()) if name not in ("fc_norm", "norm_output"))
    more = [*norms, *(["qk_norm"] if shape.get("qk_norm") else [])]
    if more:
        raise ForetokenError(
            f"This drafter has {' and '.join(more)}, which SGLang leaves out, so that most drafts "
            "would be rejected; train one by --recipe eagle3-sglang."
        )


def _counted(capture: list[int], target: Target) -> list[int]:
    """Captured layers as SGLang counts them: 0 is the first layer's output in most of its targets,
    in some only where the list begins with 1, and in GPT-OSS the embedding's. Raises
    `ForetokenError` for a list that targets would read differently."""
    if target.config.get("model_type") == "gpt_oss":
        return capture
    if capture[0] != 2:
        raise ForetokenError(
            f"This drafter reads layers {capture}, and SGLang's targets count layers alike only "
            "where they begin with 2; train one with --set 'shape={…, capture: [2, …]}'."
        )
    return [index - 1 for index in capture]


def _dflash(
    config: Mapping[str, Any], tensors: dict[str, Tensor], target: Target, to: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    shape, ids = config["shape"], list(config["shape"]["target_layer_ids"])
    layer = _layer(config, target, shape["num_layers"]) | _window(shape, to)
    mask, reduced = shape["mask_token_id"], shape.get("draft_vocab_size")
    if target.scaled:
        raise ForetokenError(
            "This drafter's target multiplies its embedding by a number, and no program would give "
            "the drafter the multiplied one, so most drafts would be rejected; serve it here, or "
            "train EAGLE-3, which norms what it reads."
        )
    if to == "speculators":
        if mask is None:
            raise ForetokenError(
                "This drafter has a mask embedding of its own, and a mask of speculators is one of "
                "the target's tokens; write it for 'vllm', or train one with --set "
                "'shape={…, mask_token_id: 7}'."
            )
        fields = {
            "draft_vocab_size": reduced or layer["vocab_size"],
            "block_size": shape["block_size"],
            "mask_token_id": mask,
            "aux_hidden_state_layer_ids": [index + 1 for index in ids],
            "sliding_window_non_causal": True,  # what vLLM takes for all layers' blocks
        }
        return _speculators("dflash", layer, fields, target, shape["block_size"] - 1), tensors
    if to == "sglang" and mask is None:
        _check_mask(layer["vocab_size"], target)
    if not shape.get("qk_norm", True):
        raise ForetokenError(
            "This drafter's queries and keys are not normed, and vLLM and SGLang norm them, so "
            "most drafts would be rejected; train one with --set 'shape={…, qk_norm: true}'."
        )
    if reduced:
        raise ForetokenError(
            f"This drafter has a head of {reduced} tokens, which z-lab's form has no place for; "
            "write it for 'speculators', whose folders vLLM reads too."
        )
    token = layer["vocab_size"] - 1 if mask is None else mask  # its own embedding replaces one
    inner: dict[str, Any] = {"mask_token_id": token, "target_layer_ids": ids}
    if "is_causal" in layer:  # which older versions of vLLM read here, or take from `layer_types`
        inner["causal"] = layer["is_causal"]
    if "sliding_window" in layer:  # of which TensorRT-LLM looks for these alone
        inner |= {"use_swa": True, "swa_window_size": layer["sliding_window"]}
    written = {
        **layer,
        "architectures": ["DFlashDraftModel"],
        "block_size": shape["block_size"],
        "num_target_layers": config["target"]["layers"],
        "dflash_config": inner,
    }
    return written, tensors


def _check_mask(tokens: int, target: Target) -> None:
    """Raises `ForetokenError` where a mask of its own would change what SGLang's target writes: it
    is put into the target's embedding, in the place of the last token."""
    used = target.tokens()
    if target.tied or (used is not None and used >= tokens):
        raise ForetokenError(
            "This drafter has a mask embedding of its own, which SGLang would write over a token "
            "of this target; write it for 'vllm', or train one with --set "
            "'shape={…, mask_token_id: 7}'."
        )


def _dflash2(
    config: Mapping[str, Any], tensors: dict[str, Tensor], target: Target, to: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """As z-lab's checkpoints have it, with the block's size beside the other settings."""
    if to == "speculators":
        raise ForetokenError(
            "There is no form of method 'dflash2' for 'speculators' that is written; write it for "
            "'vllm' or 'sglang'."
        )
    written, named = _dflash(config, tensors, target, to)
    inner = {name: config["shape"][name] for name in SELECTING}
    inner |= {**written["dflash_config"], "block_size": written.pop("block_size")}
    more = {"architectures": ["DFlash2DraftModel"], "dflash_config": inner}
    return {"is_causal": False, **written, **more}, named


def _window(shape: Mapping[str, Any], to: str) -> dict[str, Any]:
    """What a configuration says of a window, and of blocks that are causal."""
    window, causal = shape.get("window"), shape.get("causal") or False
    if isinstance(window, list) or isinstance(causal, list):
        raise ForetokenError(
            "This drafter's layers see more or less of the text one by one, which is written for "
            "no program; train one with a single window for all, or none."
        )
    if to == "speculators" and (window or causal):
        raise ForetokenError(
            "This drafter's layers have a window or are causal, which speculators has no place "
            "for; write it for 'vllm'."
        )
    if window is None:
        return {"is_causal": True} if causal else {}
    kinds = ["sliding_attention"] * shape["num_layers"]
    sliding = {"use_sliding_window": True, "sliding_window": window}  # Qwen3's takes none without
    return {"layer_types": kinds, **sliding, "is_causal": causal}


_METHODS = {"eagle3": _eagle3, "dflash": _dflash, "dflash2": _dflash2}


def _layer(config: Mapping[str, Any], target: Target, layers: int) -> dict[str, Any]:
    """The part of a configuration that is like Llama's, or Qwen3's where queries are normed."""
    shape, width = config["shape"], config["target"]["hidden_size"]
    if shape.get("qkv_bias") or shape.get("o_bias"):
        raise ForetokenError(
            "This drafter's attention has biases, which no form that is written allows for; train "
            "one without biases."
        )
    normed = shape.get("qk_norm", config["foretoken_method"].startswith("dflash"))
    return {
        "model_type": "qwen3" if normed else "llama",
        "hidden_size": width,
        "vocab_size": config["target"]["vocab_size"],
        "num_hidden_layers": layers,
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape.get("head_width") or width // shape["heads"],
        "intermediate_size": shape["intermediate"],
        "hidden_act": "silu",
        "rms_norm_eps": shape.get("norm_eps", 1e-6),
        "rope_theta": shape.get("rope_theta", 10_000.0),
        "rope_scaling": shape.get("rope_scaling"),
        "max_position_embeddings": target.config.get("max_position_embeddings", 2048),
        "attention_bias": False,
        "tie_word_embeddings": False,
    }


def _speculators(
    kind: str, layer: Mapping[str, Any], fields: Mapping[str, Any], target: Target, tokens: int
) -> dict[str, Any]:
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    names = {"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator"}
    return {
        "architectures": [names[kind]],
        "speculators_model_type": kind,
        "speculators_version": _VERSION,
        "transformer_layer_config": dict(layer),
        **fields,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": target.name,
                "architectures": list(target.config.get("architectures") or ()),
            },
        },
    }
