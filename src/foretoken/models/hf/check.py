"""A checkpoint that transformers is to read: sizes are compared before anything is allocated.

transformers compares shapes itself, but only after it has made every tensor that the configuration
calls for, of whatever size.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.quantizers import AutoHfQuantizer

from foretoken.errors import ForetokenError, shown
from foretoken.models import gguf
from foretoken.models.checkpoint import Checkpoint, Header, check_layers, has_safetensors
from foretoken.models.native import check

_log = logging.getLogger(__name__)
_COUNTS = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "sliding_window",
    "vocab_size",
)
_BUFFERS = 2**28
"""Numbers that a model may have beyond its weights: tables of positions and masks."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.h5", "*.msgpack")


def check_sizes(folder: Path, config: Any, trust_remote_code: bool = False) -> None:
    """Raises `ForetokenError` where a configuration's numbers are no sizes, or where it calls for
    more weights, or others, than the folder's files hold."""
    text = config.get_text_config(decoder=True)
    if (many := getattr(text, "num_hidden_layers", None)) is not None:
        check.count("num_hidden_layers", many, check.MOST_LAYERS)
    for each, name in product(check.of_layers(text), _COUNTS):
        given = getattr(each, name, None)
        if name == "sliding_window" and not getattr(each, "use_sliding_window", True):
            continue  # 0 in the configurations of Qwen 2's experts
        if given is not None and not isinstance(given, list | tuple):  # some have one a layer
            check.count(name, given)
    headers = Checkpoint(folder).headers if has_safetensors(folder) else {}
    if headers and text.num_hidden_layers > len(headers):
        raise _too_large(folder, f"{text.num_hidden_layers} layers", f"{len(headers)} tensors")
    quantised = [getattr(each, "quantization_config", None) for each in (config, text)]
    if (given := quantised[0] or quantised[1]) is None:
        _check_weights(folder, config, headers, trust_remote_code)
    else:
        _check_method(folder, given)


def _check_method(folder: Path, given: Mapping[str, Any]) -> None:
    """Raises `ForetokenError` for a `quantization_config` by which transformers doesn't know how
    the weights are quantised: it would cast what it finds."""
    of_bitsandbytes = given.get("load_in_8bit") or given.get("load_in_4bit")
    if given.get("quant_method") is None and not of_bitsandbytes:
        raise ForetokenError(
            f"{folder} is quantised, and the quantization_config of its config.json, "
            f"{shown(given)}, has no quant_method, without which transformers doesn't read it; add "
            "the name of what quantised it, such as 'gptq' or 'awq', or use the model in another "
            "format, or one that isn't quantised."
        )
    if not AutoHfQuantizer.supports_quant_method(given):
        raise ForetokenError(
            f"{folder} is quantised by {shown(given.get('quant_method'))}, which transformers "
            "doesn't read; use the model in another format, or one that isn't quantised."
        )


def _check_weights(
    folder: Path, config: Any, headers: Mapping[str, Header], trust_remote_code: bool
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), trust_remote_code=trust_remote_code
        )
    named = dict(model.named_parameters())
    needed = sum(x.numel() for x in (*named.values(), *model.buffers()))
    held, unit = _held(folder)
    if needed > held + _BUFFERS:
        raise _too_large(folder, f"{needed} weights", f"{held} {unit}")
    for name in named.keys() & headers.keys():
        check.check_dtype(name, headers[name].dtype)


def _held(folder: Path) -> tuple[int, str]:
    """At least as many weights as a checkpoint can have: its bytes, as none takes less than one,
    and of a GGUF file its numbers, which may be smaller."""
    if gguf.is_named(folder):
        return gguf.numbers_in(folder), "numbers"
    return sum(file.stat().st_size for kind in _WEIGHTS for file in folder.glob(kind)), "bytes"


def check_report(
    folder: Path, config: Any, report: Mapping[str, Any], weights: Collection[str]
) -> None:
    """Raises `ForetokenError` for what transformers found missing or left out. weights: the names
    of the model's own."""
    _check_scales(folder, report["unexpected_keys"], weights)
    if missing := sorted(report["missing_keys"]):
        raise ForetokenError(
            f"{folder} has no tensor {missing[0]!r} ({len(missing)} missing in all), which its "
            "config.json calls for; the checkpoint is incomplete: fetch it again."
        )
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        check.agrees(name, tuple(stored), tuple(wanted))
    text = config.get_text_config(decoder=True)
    ahead = getattr(text, "num_nextn_predict_layers", None)
    ahead = ahead if isinstance(ahead, int) else 0
    check_layers(report["unexpected_keys"], text.num_hidden_layers, ahead)


def _check_scales(folder: Path, unread: Collection[str], read: Collection[str]) -> None:
    """Raises `ForetokenError` where weights are read and what they are to be multiplied by isn't:
    AutoFP8's files name their method as others do whose scales have other names. A `scale` may also
    be a weight of its own, of a part that isn't read."""
    for name in sorted(unread):
        module, _, part = name.rpartition(".")
        weight = f"{module}.weight"
        bare = part in ("scale", "scales") and weight in read
        if (bare or part.startswith("weight_scale")) and weight not in unread:
            raise ForetokenError(
                f"{folder} has {shown(name)}, by which transformers doesn't multiply the weights "
                "that it is of; use the model in another format, or one that isn't quantised."
            )


def check_all_read(file: Path, model: Any) -> None:
    """Raises `ForetokenError` where transformers' reader has left out a tensor of a GGUF file: it
    does so without a word where its model has none of that name."""
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    architecture = gguf.opened(file).architecture
    maker = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    gguf.check_read(file, get_gguf_hf_weights_map(model, maker(config={})).keys())


def warn_of_neighbours(model: Any) -> None:
    """Say where a token's numbers depend on the other tokens of a pass: LLM.int8 (Dettmers et al.
    2022) multiplies an input apart for all rows where one of them has a large number there."""
    given = getattr(model.config, "quantization_config", None)
    if getattr(given, "load_in_8bit", False) and getattr(given, "llm_int8_threshold", 0):
        _log.warning(
            "%s runs in bitsandbytes' 8 bits, by which a token's numbers depend on the tokens "
            "beside it, so that drafts may change a text; quantise it with llm_int8_threshold=0.",
            type(model).__name__,
        )


def _too_large(folder: Path, called_for: str, held: str) -> ForetokenError:
    return ForetokenError(
        f"config.json of {folder} calls for {called_for}, and its files hold {held}; correct it, "
        "or fetch the checkpoint again."
    )
