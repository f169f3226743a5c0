"""Tiny checkpoints of the native families, and damaged copies of them, for tests of loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from foretoken.models.load import fetched
from foretoken.models.model import CausalLM
from foretoken.testing import native

REAL = [fetched("any").parent, Path.home() / ".cache" / "foretoken-models"]
"""Where trained models' files are looked for: the user's cache folder, which tests don't use
otherwise, and a folder for others."""

VOCAB = 97
CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
}
"""Family -> how its classes of transformers begin."""
FAMILIES = tuple(CLASSES)
IDS = [3, 50, 7, 7, 21, 90, 0, 13]
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 5,
    "tie_word_embeddings": False,
}


def config_class(family: str) -> Any:
    name = CLASSES[family] + "Text" * family.endswith("_text")
    return getattr(transformers, f"{name}Config")


def original(family: str, **numbers: Any) -> Any:
    """A model of transformers with random weights, biases and norms."""
    config = config_class(family)(**SHAPE | numbers)
    with torch.random.fork_rng([]):
        model: Any = getattr(transformers, f"{CLASSES[family]}ForCausalLM")(config)
    random = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.normal_(1.0 if weight.ndim == 1 else 0.0, 0.2, generator=random)
    return model.eval()


def windowed(vocab_size: int) -> CausalLM:
    """A native Mistral in float64, whose tokens see five places."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "sliding_window": 5}
    return native(original("mistral", vocab_size=vocab_size, **shape).double())


def written(folder: Path, family: str = "llama", **numbers: Any) -> Path:
    original(family, **numbers).save_pretrained(folder)
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Rewrite the folder's one file of weights."""
    file = folder / "model.safetensors"
    tensors = dict(load_file(file))
    change(tensors)
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, file, {"format": "pt"})


def change_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


_OWN = """
from transformers import LlamaConfig, LlamaForCausalLM

class Own(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = Own
"""


def with_code(folder: Path) -> Path:
    """A checkpoint whose family is defined by files in its folder."""
    model = original("llama")
    model.config.architectures = ["OwnModel"]
    model.config.auto_map = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}
    model.save_pretrained(folder)
    change_config(folder, model_type="own")
    (folder / "own.py").write_text(_OWN)
    return folder


def theirs(folder: Path) -> Tensor:
    """[V] transformers' logits after IDS."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([IDS])).logits[0, -1]
    return logits


def real_file(name: str) -> Path:
    """A trained model's GGUF file; where there is none, the test is skipped."""
    files = [folder / f"{name}.gguf" for folder in REAL]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        pytest.skip(f"neither {files[0]} nor {files[1]} is there")
    return found
