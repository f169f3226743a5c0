"""Loads a `CausalLM`, and its tokenizer, from a checkpoint folder, a hub id or a bundled name.

Configurations and tokenizers are read by transformers, weights by safetensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.files import read_json
from foretoken.models import bundled
from foretoken.models.model import CausalLM
from foretoken.models.native import transformer
from foretoken.models.native.build import Weights, build_native


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
    """The folder of a checkpoint: a path, a bundled name, or a hub id, which is downloaded unless
    it is cached. also: patterns of files to download in addition to the usual ones."""
    folder, names = Path(source), bundled.names()
    if folder.is_dir():
        return folder
    if str(source) in names:
        return bundled.path(str(source))
    if folder.is_absolute() or str(source).startswith(".") or str(source).count("/") != 1:
        raise ForetokenError(
            f"There is no checkpoint folder {str(source)!r}; give a folder with config.json and "
            "*.safetensors, a hub id such as 'org/name', or a bundled name such as 'mini'"
            + ("." if names else f", which needs {bundled.INSTALL}.")
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
