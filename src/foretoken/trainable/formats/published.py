"""Reads the files of another project's checkpoint: names, tensors, a layer's shape.

Weights lie in *.safetensors, or in files of torch's own, which are read as tensors and nothing
else.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.native import rope

Tensors = dict[str, Tensor]
Config = Mapping[str, Any]

TORCH = ("pytorch_model*.bin", "*lm_head.pt")
"""Files of torch's own that are weights; others are an optimizer's, or a trainer's."""

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Names under which a checkpoint may contain its target's embedding and head."""

MASK, MASK_FILE = "mask_embedding", "mask_embedding.pt"
"""A trained embedding of DFlash's mask token: its name, and the file that others keep it in."""


@dataclass(frozen=True)
class Published:
    """A checkpoint described in our terms.

    target: its hidden_size, vocab_size and layers, where the files give them. shape: the module's,
    where they give it. tensors: reads the tensors, under the module's names.
    """

    method: str
    target: Mapping[str, int]
    shape: dict[str, Any]
    tensors: Callable[[], Tensors]


class Source:
    """A folder's config.json and its tensors, each read when it is asked for."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config = folder, config
        self._read: Tensors | None = None

    @property
    def tensors(self) -> Tensors:
        """Without the outer "model." that some savers write, and buffers that are no weights.

        Files are mapped, not read. Raises `ForetokenError` where one is damaged.
        """
        if self._read is None:
            self._read = {
                name.removeprefix("model."): tensor
                for name, tensor in _mapped(self.folder).items()
                if not name.endswith("rotary_emb.inv_freq")
            }
        return self._read

    def refusal(self, why: str) -> ForetokenError:
        """The error for a checkpoint that can't be served."""
        return ForetokenError(f"{self.folder} can't be served: {why}.")

    def one_layer(self, config: Config) -> dict[str, Any]:
        """A decoder layer's shape, of a drafter that must have one layer."""
        if config.get("num_hidden_layers", 1) != 1:
            raise self.refusal(f"it has {config['num_hidden_layers']} layers, and only one is")
        return self.layer(config)

    def layer(self, config: Config, windows: bool = False) -> dict[str, Any]:
        """A decoder layer's shape, as `LayerShape` names it, from a configuration like Llama's.
        windows: whether its layers may see the last tokens alone."""
        heads, width = config["num_attention_heads"], config["hidden_size"]
        if config.get("hidden_act", "silu") != "silu":
            raise self.refusal(f"its activation is {config['hidden_act']!r}, and only 'silu' is")
        if not windows and "sliding_attention" in (config.get("layer_types") or ()):
            window = config.get("sliding_window")
            raise self.refusal(f"its layers see {window} tokens, and only those that see all are")
        shape = {
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "intermediate": config["intermediate_size"],
            "norm_eps": config.get("rms_norm_eps", 1e-6),
            "qk_norm": self._ends("self_attn.q_norm.weight"),
            "qkv_bias": self._ends("self_attn.q_proj.bias"),
            "o_bias": self._ends("self_attn.o_proj.bias"),
            **self._rotation(config),
        }
        head_dim = config.get("head_dim")
        return shape if head_dim in (None, width // heads) else {**shape, "head_width": head_dim}

    def _ends(self, end: str) -> bool:
        return any(name.endswith(end) for name in self.tensors)

    def _rotation(self, config: Config) -> dict[str, Any]:
        """rope_theta, and rope_scaling if there is any; transformers has two names for each."""
        rotation = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        if any(isinstance(value, Mapping) for value in rotation.values()):
            raise self.refusal("each kind of its layers has a rotary embedding of its own")
        part = rotation.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        if False in (config.get("is_neox_style"), config.get("rope_is_neox_style")):
            raise self.refusal(
                "its rotary embedding turns neighbouring places, and only one of two halves is"
            )
        theta = rotation.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
        kind = rotation.setdefault("rope_type", rotation.pop("type", "default"))
        if kind not in rope.SERVED or part != 1.0:
            raise self.refusal(
                f"its rotary embedding is {rotation} of {part} of a head's width, and only whole "
                f"ones of {rope.SERVED} are"
            )
        scaling = {} if kind == "default" else {"rope_scaling": rotation}
        return {"rope_theta": float(theta), **scaling}


def vocabulary(source: Source, tensors: Tensors, reduced: int, vocab: int) -> Tensors:
    """d2t and t2d of a head of `reduced` tokens, which one over the whole vocabulary may lack."""
    if "d2t" not in tensors and reduced != vocab:
        raise source.refusal(
            f"its head knows {reduced} of {vocab} tokens and d2t doesn't say which"
        )
    offsets = tensors.get("d2t", torch.zeros(reduced)).long()
    if offsets.shape != (reduced,):
        raise source.refusal(f"its d2t has the shape {[*offsets.shape]}, and its head {reduced}")
    ids = offsets + torch.arange(reduced)
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab or len(ids.unique()) < reduced:
        raise source.refusal(
            f"its d2t names tokens {int(ids.min())} to {int(ids.max())}, {len(ids.unique())} of "
            f"them different, and must name {reduced} different ones of {vocab}"
        )
    covered = torch.zeros(vocab, dtype=torch.bool)
    covered[ids] = True
    return {"d2t": offsets, "t2d": covered}


def _mapped(folder: Path) -> Tensors:
    """All tensors of *.safetensors, else of torch's own files."""
    safe = sorted(folder.glob("*.safetensors"))
    files = safe or sorted(file for kind in TORCH for file in folder.glob(kind))
    tensors: Tensors = {}
    for file in files:
        tensors |= loaded(file)
    return tensors


def loaded(file: Path) -> Any:
    """What a file of tensors holds. Raises `ForetokenError` for a damaged one."""
    try:
        return _loaded(file)
    except Exception as error:  # zip, pickle and safetensors each have their own
        raise ForetokenError(
            f"{file} is damaged or holds more than tensors; fetch it again, or ask its maker "
            "for a .safetensors file."
        ) from error


def _loaded(file: Path) -> Any:
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        return load_file(file)
    mapped = zipfile.is_zipfile(file)  # what torch wrote before 1.6 can't be
    return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
