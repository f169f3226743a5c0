"""From a checkpoint folder, a hub id or a bundled name to a `CausalLM`.

Configurations and tokenizers are read by transformers, weights by safetensors, one layer at a
time, so that a backend that packs its weights never holds the model twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models import backends, rope, transformer
from foretoken.models import norm as norms
from foretoken.models.model import CausalLM

Weights = Callable[[str], Tensor]
"""Name of a tensor -> the tensor as stored; KeyError where there is none."""


def load_model(
    source: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto",
    backend: str = "auto", model_impl: str = "auto", trust_remote_code: bool = False,
) -> CausalLM:  # fmt: skip
    """Read a checkpoint: natively where the family allows it, else through transformers.

    `dtype` "auto" is the checkpoint's own on a GPU and float32 on a CPU. `model_impl` is "auto",
    "native" or "transformers". Raises `ForetokenError` for anything missing or not servable.
    """
    folder = find(source)
    config = read_config(folder, trust_remote_code)
    place = pick_device(device)
    kind = pick_dtype(dtype, config, place)
    reason = transformer.unsupported(config)
    if model_impl not in ("auto", "native", "transformers"):
        raise ForetokenError(
            f"model_impl is {model_impl!r}; it must be 'auto', 'native' or 'transformers'."
        )
    if model_impl == "native" and reason:
        raise ForetokenError(
            f"{source} can't be served natively: {reason}; use model_impl='transformers'."
        )
    if model_impl == "transformers" or reason:
        from foretoken.models import hf

        return hf.load(folder, kind, place, trust_remote_code)
    return load_native(folder, config, kind, place, backend)


def find(source: str | Path) -> Path:
    """The folder of a checkpoint: a path, a bundled name, or a hub id (downloaded or cached)."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if "/" not in str(source):
        bundled = Path(__file__).parent.parent / "zoo" / "models" / str(source)
        if bundled.is_dir():
            return bundled
    if folder.is_absolute() or str(source).startswith(".") or str(source).count("/") != 1:
        raise ForetokenError(
            f"There is no checkpoint folder {str(source)!r}; give a folder with config.json and "
            "*.safetensors, a hub id such as 'org/name', or a bundled name such as 'mini'."
        )
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
        return Path(snapshot_download(str(source), allow_patterns=wanted))
    except Exception as error:
        raise ForetokenError(
            f"Could not find {str(source)!r} on disk or fetch it from the hub "
            f"({type(error).__name__}); check the name, or give the folder of a downloaded copy."
        ) from error


def read_config(folder: Path, trust_remote_code: bool = False) -> Any:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise ForetokenError(f"{folder} has no config.json; give a Hugging Face checkpoint folder.")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ForetokenError(f"{folder / 'config.json'} can't be read: {reason}") from error


def pick_device(device: str | torch.device) -> torch.device:
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def pick_dtype(dtype: str | torch.dtype, config: Any, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        stored = getattr(config, "dtype", None)
        if device.type != "cpu" and isinstance(stored, torch.dtype):
            return stored
        return torch.float32
    found = getattr(torch, {"half": "float16", "float": "float32"}.get(dtype, dtype), None)
    if not isinstance(found, torch.dtype):
        raise ForetokenError(
            f"dtype {dtype!r} is not known; use 'auto', 'float32', 'bfloat16', 'float16' or "
            "'float64'."
        )
    return found


def stored_weights(folder: Path) -> Weights:
    """Lazy access to the tensors of a folder's safetensors files, sharded or not."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        places: dict[str, str] = json.loads(index.read_text())["weight_map"]
        files = sorted(set(places.values()))
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise ForetokenError(
            f"{folder} holds no *.safetensors weights; save the model with "
            "save_pretrained(..., safe_serialization=True)."
        )
    handles: dict[str, Any] = {}
    for name in files:
        if not (folder / name).is_file():
            raise ForetokenError(
                f"Shard {name} of {folder} is missing; fetch the checkpoint again."
            )
        try:
            handle = safe_open(folder / name, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ForetokenError(
                f"{folder / name} is truncated or not a safetensors file; fetch it again."
            ) from error
        names: list[str] = handle.keys()  # type: ignore[no-untyped-call]
        handles.update(dict.fromkeys(names, handle))

    def get(name: str) -> Tensor:
        tensor: Tensor = handles[name].get_tensor(name)
        return tensor

    return get


def wrapped(model: Any) -> CausalLM:
    """A model that is already loaded: one of ours as it is, one of transformers' in the adapter."""
    if hasattr(model, "new_cache"):
        ours: CausalLM = model
        return ours
    from foretoken.models.hf import HFModel

    return HFModel(model)


def load_native(
    folder: Path, config: Any, dtype: torch.dtype, device: torch.device, backend: str
) -> transformer.Transformer:
    """The native model from a folder's weights."""
    stored = stored_weights(folder)
    try:
        return build_native(config, stored, dtype, device, backend)
    except KeyError as error:
        raise ForetokenError(
            f"{folder} has no tensor {error.args[0]!r}, which its config.json calls for; the "
            "checkpoint is incomplete: fetch it again."
        ) from error


def build_native(
    config: Any, stored: Weights, dtype: torch.dtype, device: torch.device, backend: str
) -> transformer.Transformer:
    """Fuse and hand each weight to the backend, one layer at a time. Raises KeyError by name."""
    name, make = backends.choose(backend, dtype, device)
    count = read = 0

    def get(key: str, *, optional: bool = False) -> Tensor | None:
        nonlocal count
        try:
            tensor = stored(key)
        except KeyError:
            if optional:
                return None
            raise
        count += tensor.numel()
        return tensor.to(device, dtype)

    def need(key: str) -> Tensor:
        tensor = get(key)
        assert tensor is not None
        return tensor

    def made(weight: Tensor, bias: Tensor | None) -> backends.Linear:
        nonlocal read
        layer = make(weight, bias)
        read += weight.numel() * backends.itemsize(layer, dtype)
        return layer

    def linear(prefix: str, *names: str) -> backends.Linear:
        weight = torch.cat([need(f"{prefix}.{n}.weight") for n in names])
        biases = [get(f"{prefix}.{n}.bias", optional=True) for n in names]
        given = [b for b in biases if b is not None]
        return made(weight, torch.cat(given) if given else None)

    def norm(name: str) -> norms.Norm:
        return norms.make(need(f"{name}.weight"), config.rms_norm_eps)

    shape, normed = _shape(config), config.model_type == "qwen3"
    layers = []
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}"
        layers.append(
            transformer.Layer(
                attention_norm=norm(f"{at}.input_layernorm"),
                qkv=linear(f"{at}.self_attn", "q_proj", "k_proj", "v_proj"),
                q_norm=norm(f"{at}.self_attn.q_norm") if normed else None,
                k_norm=norm(f"{at}.self_attn.k_norm") if normed else None,
                out=linear(f"{at}.self_attn", "o_proj"),
                mlp_norm=norm(f"{at}.post_attention_layernorm"),
                gate_up=linear(f"{at}.mlp", "gate_proj", "up_proj"),
                down=linear(f"{at}.mlp", "down_proj"),
                window=_window(config, i),
            )
        )
    embedding = need("model.embed_tokens.weight")
    tied = bool(config.tie_word_embeddings)
    lm_head = made(embedding if tied else need("lm_head.weight"), None)
    table = rope.table(config, shape.head_dim, shape.max_length + 1, dtype, device)
    return transformer.Transformer(
        shape, embedding, layers, norm("model.norm"), lm_head, table, name, count, read,
        eos_ids(config),
    )  # fmt: skip


def _shape(config: Any) -> transformer.Shape:
    heads = config.num_attention_heads
    return transformer.Shape(
        width=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        max_length=config.max_position_embeddings,
    )


def _window(config: Any, layer: int) -> int | None:
    """A layer's sliding window: by its type where the configuration lists types, else for all."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is not None:
        return window if types[layer] == "sliding_attention" else None
    return window


def eos_ids(config: Any) -> frozenset[int]:
    """End-of-text ids of a model or generation configuration."""
    ids = getattr(config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def load_tokenizer(source: str | Path, trust_remote_code: bool = False) -> Any:
    from transformers import AutoTokenizer

    folder = find(source)
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ForetokenError(
            f"{folder} has no tokenizer that transformers can read ({reason}); pass tokenizer=…"
        ) from error
