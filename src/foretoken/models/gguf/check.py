"""Whether a GGUF file is a language model that can be read at all: looked at before anything else,
as a file of another sort lacks what is asked for next, and would be called damaged."""

from __future__ import annotations

from foretoken.errors import ForetokenError, shown
from foretoken.models.gguf import blocks
from foretoken.models.gguf.reader import GGUFFile

_TYPES = {
    "adapter": "an adapter (LoRA); merge it into its model with llama-export-lora",
    "mmproj": "what a model sees or hears with; give the language model's own file",
    "imatrix": "statistics for quantising; give the model's file",
}
"""general.type -> what that is, and what to do."""
_ARCHITECTURES = {
    "clip": _TYPES["mmproj"],
    "imatrix": _TYPES["imatrix"],
    "controlvector": "a control vector, which isn't served; give the model's file",
}
_EMBEDDERS = ("t5encoder", "gemma-embedding", "llama-embed")
_ADAPTED = (".lora_a", ".lora_b")


def language_model(file: GGUFFile) -> None:
    """Raises `ForetokenError` for a file that holds something else than a causal language model,
    and for one with a tensor of a type that has no numbers here."""
    if found := _another(file):
        raise ForetokenError(f"{file.path} is {found}.")
    if not file.tensors:
        raise ForetokenError(
            f"{file.path} has a vocabulary and no weights, so that it is a tokenizer alone; give a "
            "file with weights."
        )
    for name, tensor in file.tensors.items():
        if not blocks.can_be_read(tensor.kind):
            raise ForetokenError(
                f"{file.path} can't be read: tensor {shown(name)} is of type {tensor.kind.name}, "
                "which can't be dequantised; use a file of another quantisation, e.g. Q4_K_M."
            )


def _another(file: GGUFFile) -> str | None:
    """What a file is that is no language model."""
    kind, architecture = file.metadata.get("general.type"), file.architecture
    if isinstance(kind, str) and kind in _TYPES:
        return _TYPES[kind]
    if any(name.endswith(_ADAPTED) for name in file.tensors):
        return _TYPES["adapter"]
    if _embeds(file):
        return f"a model that embeds texts ({architecture}) and writes none; give one that writes"
    return _ARCHITECTURES.get(architecture)


def _embeds(file: GGUFFile) -> bool:
    architecture, metadata = file.architecture, file.metadata
    return bool(
        "bert" in architecture
        or architecture in _EMBEDDERS
        or metadata.get(f"{architecture}.pooling_type")
        or metadata.get(f"{architecture}.attention.causal") is False
    )
