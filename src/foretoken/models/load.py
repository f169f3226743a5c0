"""From a checkpoint folder, a hub id or a bundled name to a `CausalLM`.

Configurations and tokenizers are read by transformers, weights by safetensors, one layer at a
time, so that a backend that packs its weights never stores the model twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.files import read_json
from foretoken.models import bundled
from foretoken.models.model import CausalLM, eos_ids
from foretoken.models.native import attention, backends, loop_attention, rope, transformer
from foretoken.models.native import norm as norms
from foretoken.models.native.backends import compiled, cuda_graphs
from foretoken.models.native.layer import Layer, Linear, Mix, Shape

CYCLE = "layer_cycle"
"""In a config.json: after how many layers their weights repeat (Hooper et al. 2023)."""

Weights = Callable[[str], Tensor]
"""Name of a tensor -> the tensor as stored; KeyError where there is none."""


def load_model(
    source: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    backend: str = "auto",
    model_impl: str = "auto",
    trust_remote_code: bool = False,
) -> CausalLM:
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
        from foretoken.models.hf import adapter

        return adapter.load(folder, kind, place, trust_remote_code)
    return load_native(folder, config, kind, place, backend)


def find(source: str | Path, also: Sequence[str] = ()) -> Path:
    """The folder of a checkpoint: a path, a bundled name, or a hub id (downloaded or cached; with
    files of patterns in addition to the usual ones)."""
    folder, known = Path(source), bundled.names()
    if folder.is_dir():
        return folder
    if str(source) in known:
        return bundled.path(str(source))
    if folder.is_absolute() or str(source).startswith(".") or str(source).count("/") != 1:
        raise ForetokenError(
            f"There is no checkpoint folder {str(source)!r}; give a folder with config.json and "
            "*.safetensors, a hub id such as 'org/name', or a bundled name such as 'mini'"
            + ("." if known else f", which needs {bundled.INSTALL}.")
        )
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", *also]
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
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ForetokenError(f"There is no device {device!r}; give auto, cpu or cuda.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ForetokenError("No CUDA device can be used here; give device auto or cpu.")
    return chosen


def pick_dtype(dtype: str | torch.dtype, config: Any, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        stored = getattr(config, "dtype", None)
        if device.type != "cpu" and isinstance(stored, torch.dtype):
            return stored
        return torch.float32
    kind = getattr(torch, {"half": "float16", "float": "float32"}.get(dtype, dtype), None)
    if not isinstance(kind, torch.dtype):
        raise ForetokenError(
            f"dtype {dtype!r} is not known; use 'auto', 'float32', 'bfloat16', 'float16' or "
            "'float64'."
        )
    return kind


def stored_weights(folder: Path) -> Weights:
    """Lazy access to the tensors of a folder's safetensors files, sharded or not."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed: dict[str, str] = read_json(index, "an index of weights")["weight_map"]
        files = sorted(set(listed.values()))
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise ForetokenError(
            f"{folder} holds no *.safetensors weights; save the model with "
            "save_pretrained(..., safe_serialization=True)."
        )
    places: dict[str, Path] = {}
    for name in files:
        if not (folder / name).is_file():
            raise ForetokenError(
                f"Shard {name} of {folder} is missing; fetch the checkpoint again."
            )
        try:
            with safe_open(folder / name, framework="pt") as handle:
                places.update(dict.fromkeys(handle.keys(), folder / name))
        except (SafetensorError, OSError) as error:
            raise ForetokenError(
                f"{folder / name} is truncated or not a safetensors file; fetch it again."
            ) from error

    def get(name: str) -> Tensor:
        # Opened each time, as a handle keeps every page that was read through it in memory.
        with safe_open(places[name], framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(name)
        return tensor

    return get


def wrapped(model: Any) -> CausalLM:
    """A model that is already loaded: one of ours as it is, one of transformers' in the adapter."""
    if isinstance(model, torch.nn.Module):  # transformers' models are, ours are not
        from foretoken.models.hf.adapter import HFModel

        return HFModel(model)
    ours: CausalLM = model
    return ours


def load_native(
    folder: Path, config: Any, dtype: torch.dtype, device: torch.device, backend: str
) -> transformer.Transformer:
    """The native model from a folder's weights."""
    stored = stored_weights(folder)
    try:
        return build_native(config, stored, dtype, device, backend, folder)
    except KeyError as error:
        raise ForetokenError(
            f"{folder} has no tensor {error.args[0]!r}, which its config.json calls for; the "
            "checkpoint is incomplete: fetch it again."
        ) from error


def build_native(
    config: Any,
    stored: Weights,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    source: Path | None = None,
) -> transformer.Transformer:
    """Fuse and hand each weight to the backend, one layer at a time. Raises KeyError by name."""
    runner, linear_backend = backends.split(backend)
    sample = stored("model.layers.0.self_attn.q_proj.weight")
    name, make = backends.choose(linear_backend, dtype, device, sample)
    count = read = 0

    def find_all(keys: Iterable[str]) -> list[Tensor]:
        nonlocal count
        tensors = [stored(key) for key in keys]
        count += sum(tensor.numel() for tensor in tensors)
        return tensors

    def made(weight: Tensor, bias: Tensor | None) -> Linear:
        nonlocal read
        layer = make(weight, bias)
        read += round(weight.numel() * backends.itemsize(layer, dtype))
        return layer

    def linear(prefix: str, *names: str) -> Linear:
        weight = _joined(find_all(f"{prefix}.{n}.weight" for n in names), dtype, device)
        try:
            biases = find_all(f"{prefix}.{n}.bias" for n in names)
        except KeyError:
            return made(weight, None)
        return made(weight, _joined(biases, dtype, device))

    def norm(name: str) -> norms.Norm:
        [weight] = find_all([f"{name}.weight"])
        return norms.make(_joined([weight], dtype, device), config.rms_norm_eps)

    shape, normed = _shape(config), config.model_type == "qwen3"
    looped = name != "plain" and loop_attention.supports(dtype, device, shape.head_dim)
    mixing = loop_attention.mix if looped else attention.mix
    # The widest matrix first: while it is packed, nothing else is in memory yet.
    [embedding] = find_all(["model.embed_tokens.weight"])
    tied = bool(config.tie_word_embeddings)
    head = [embedding] if tied else find_all(["lm_head.weight"])
    lm_head = made(_joined(head, dtype, device), None)
    narrow = min(embedding.dtype, dtype, key=lambda kind: kind.itemsize)
    embedding = _joined([embedding], narrow, device)

    def mix(i: int) -> Mix:
        return partial(
            mixing, heads=shape.heads, scale=shape.head_dim**-0.5, window=_window(config, i)
        )

    def layer(i: int) -> Layer:
        at = f"model.layers.{i}"
        return Layer(
            attention_norm=norm(f"{at}.input_layernorm"),
            qkv=linear(f"{at}.self_attn", "q_proj", "k_proj", "v_proj"),
            q_norm=norm(f"{at}.self_attn.q_norm") if normed else None,
            k_norm=norm(f"{at}.self_attn.k_norm") if normed else None,
            mix=mix(i),
            out=linear(f"{at}.self_attn", "o_proj"),
            mlp_norm=norm(f"{at}.post_attention_layernorm"),
            gate_up=linear(f"{at}.mlp", "gate_proj", "up_proj"),
            down=linear(f"{at}.mlp", "down_proj"),
        )

    many = config.num_hidden_layers
    cycle = getattr(config, CYCLE, None) or many
    before, layers = read, [layer(i) for i in range(min(cycle, many))]
    read += (read - before) * (many - len(layers)) // len(layers)
    for i in range(len(layers), many):
        _check_same(stored, i, i - cycle)
        layers.append(replace(layers[i - cycle], mix=mix(i)))
    table = rope.table(config, shape.head_dim, shape.max_length + 1, dtype, device)
    model = transformer.Transformer(
        shape,
        embedding,
        layers,
        norm("model.norm"),
        lm_head,
        table,
        name,
        count,
        read,
        eos_ids(config),
        source,
    )
    if runner is not None:
        run_through(runner, model)
    return model


def run_through(runner: str, model: transformer.Transformer) -> None:
    """Have whole passes of the model run by one of `backends.RUNNERS`."""
    if runner == "cuda_graphs":
        model.run_by(cuda_graphs.Graphs, runner)
    else:
        background = runner == "compiled_in_background"
        model.run_by(partial(compiled.Compiled, background=background), runner)


def _check_same(stored: Weights, mine: int, earlier: int) -> None:
    """Raises `ForetokenError` where a layer has other weights than the one that it repeats."""
    for part in (*(f"self_attn.{n}_proj" for n in "qkvo"), "mlp.gate_proj", "mlp.down_proj"):
        one, other = (stored(f"model.layers.{i}.{part}.weight") for i in (mine, earlier))
        if not torch.equal(one, other):
            raise ForetokenError(
                f"config.json says that layers repeat ({CYCLE}), but {part} of layer {mine} isn't "
                f"that of layer {earlier}; take {CYCLE} out of it."
            )


def _joined(parts: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Several stored tensors as one, each let go (and its file unmapped) once it is copied."""
    end = sum(len(part) for part in parts)
    whole = torch.empty(end, *parts[0].shape[1:], dtype=dtype, device=device)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


def _shape(config: Any) -> Shape:
    heads = config.num_attention_heads
    return Shape(
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
