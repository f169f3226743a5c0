"""A Hugging Face folder as what a GGUF file holds: metadata, and tensors by their names there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.models.checkpoint import Checkpoint, check_layers, follows
from foretoken.models.gguf import config, tokenizer, vocabulary
from foretoken.models.gguf.names import EMBEDDING, FAMILIES, OUTPUT, ROPE_FACTORS, Family
from foretoken.models.gguf.reader import GGUFFile
from foretoken.models.native import block, check

_log = logging.getLogger(__name__)

_TEXTS = (
    "The quick brown fox, 12345 dogs & naïve 東京 हिन्दी\n\n\tif x == 10:\r\n    y = 'don't'",
    "  two  spaces, Straße, ALLCaps mixedCase 3.14e-10 <|end|> </s> ▁▁ \u200b\u00a0x",
    "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)  # Fibonacci\n",
)
_KEPT = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps"),
    *("rope_parameters", "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act"),
    *("hidden_activation", "layer_types", "query_pre_attn_scalar", "final_logit_softcapping"),
    *("attn_logit_softcapping", "windows"),
)
"""What a configuration says of the model's numbers; windows: how far each layer looks back."""


class FolderSource:
    """A folder, its configuration and tokenizer as transformers reads them: a `write.Source`."""

    def __init__(
        self, folder: Path, model_config: Any, words: Any, ends: Collection[int] = ()
    ) -> None:
        """words: a tokenizer, or None. ends: the ids of the tokens that end a text."""
        self._config, self._words = model_config, words
        self.architecture, self._family = _family(model_config)
        self._stored = Checkpoint(folder)
        _check_whole(self._stored, model_config)
        self._names: dict[str, str] = {}
        for name in self._stored.headers:
            if not follows(name):
                self._names[self._written_name(name)] = name
        if model_config.tie_word_embeddings:
            self._tie()
        self._factors = _rope_factors(model_config)
        self.shapes = {new: self._stored.header(n).shape for new, n in self._names.items()}
        if self._factors is not None:
            self.shapes[ROPE_FACTORS] = tuple(self._factors.shape)
        size = self.shapes[EMBEDDING][0]
        self.metadata = {
            "general.architecture": self.architecture,
            "general.name": folder.name,
            **_numbers(self.architecture, model_config),
            **({} if words is None else vocabulary.metadata(words, size)),
        }
        self.metadata |= _other_ends(ends, self.metadata)

    def _tie(self) -> None:
        """Embedding and head as one, under either name; but a head of its own stays one."""
        head = self._names.pop(OUTPUT, None)
        if head is None:
            return
        embedding = self._names.setdefault(EMBEDDING, head)
        if embedding != head and not torch.equal(self._stored(embedding), self._stored(head)):
            self._names[OUTPUT] = head
            self._config = copy(self._config)
            self._config.tie_word_embeddings = False

    def _written_name(self, name: str) -> str:
        full = name if name.startswith(("model.", "lm_head.")) else f"model.{name}"
        found = self._family.stored_name(full)
        if found is None:
            raise ForetokenError(
                f"Tensor {shown(name)} has no name in a GGUF file of {self.architecture} models; "
                "use llama.cpp's converter."
            )
        return found

    def tensor(self, name: str) -> Tensor:
        """In float32."""
        if name == ROPE_FACTORS:
            assert self._factors is not None
            return self._factors
        tensor = self._stored(self._names[name]).float() + self._family.shift_of(name)
        return self._paired(tensor, name) if self._family.is_paired(name) else tensor

    def _paired(self, tensor: Tensor, name: str) -> Tensor:
        """Each head's rows, in two halves, as the rotation pairs them."""
        of_keys = "attn_k." in name
        heads = self._config.num_key_value_heads if of_keys else self._config.num_attention_heads
        halves = tensor.view(heads, 2, -1, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)

    def check(self, file: GGUFFile) -> None:
        """Raise `ForetokenError` where the file says anything else than the folder."""
        read = config.read(file)
        for name in _KEPT:
            meant, found = (_said(of, name) for of in (self._config, read))
            if meant != found:
                raise ForetokenError(
                    f"A GGUF file can't say that {name} is {shown(meant)} (it would be read as "
                    f"{shown(found)}); use llama.cpp's converter."
                )
        if self._words is not None:
            same = tokenizer.read(file)
            if self._differs(same, _TEXTS):
                raise ForetokenError(
                    "The tokenizer can't be written into a GGUF file: it would cut text in another "
                    "way; use llama.cpp's converter."
                )
            if self._differs(same, self._marked()):
                _log.warning(
                    "A GGUF file can't say how this tokenizer cuts what follows a special token: "
                    "it will be read with a space there, so that some conversations have other "
                    "ids than with the folder. Give its tokenizer with --tokenizer to keep them."
                )

    def _differs(self, same: Any, texts: Iterable[str]) -> bool:
        """Whether any of these texts has other ids by the file's tokenizer."""
        return any(same(text)["input_ids"] != self._words(text)["input_ids"] for text in texts)

    def _marked(self) -> list[str]:
        """Texts with special tokens; the unknown one is none in a text."""
        words = self._words
        marks = [mark for mark in words.all_special_tokens if mark != words.unk_token]
        return [f"a{mark}a\n{mark}\na {mark} a" for mark in marks]


def _check_whole(stored: Checkpoint, of: Any) -> None:
    """Raise `ForetokenError` where tensors that the configuration calls for are missing, have
    another shape, are no floating-point numbers, or belong to layers beyond its last: a file would
    have them so."""
    if getattr(of, "quantization_config", None) is not None:
        raise ForetokenError(
            f"{stored.folder} is quantised already, and a GGUF file has blocks of its own; export "
            "the model that it was made from."
        )
    missing = []
    for name, shape in check.tensors(of, check.shape_of(of)).items():
        try:
            header = stored.header(name)
        except KeyError:
            missing.append(name)
        else:
            check.agrees(name, header.shape, shape)
            check.check_dtype(name, header.dtype)
    ends = {check.EMBEDDING, check.HEAD}
    if of.tie_word_embeddings and not ends <= {*missing}:  # one of them is both
        missing = [name for name in missing if name not in ends]
    check_layers(stored.headers, of.num_hidden_layers)
    if missing:
        raise ForetokenError(
            f"{stored.folder} has no tensor {missing[0]!r}, which its configuration calls for; the "
            "checkpoint is incomplete: fetch it again."
        )


def _family(of: Any) -> tuple[str, Family]:
    """llama.cpp's name of an architecture. Raises `ForetokenError` where it has none here."""
    kind = "llama" if of.model_type == "mistral" else of.model_type
    for name, family in FAMILIES.items():
        if family.model_type == kind:
            return name, family
    raise ForetokenError(
        f"A {of.model_type} model can't be written as a GGUF file, as {', '.join(FAMILIES)} models "
        "can; use llama.cpp's converter."
    )


def _numbers(architecture: str, of: Any) -> dict[str, Any]:
    """A configuration's numbers, by llama.cpp's names."""
    head = getattr(of, "head_dim", None) or of.hidden_size // of.num_attention_heads
    rope = of.rope_parameters
    given = {
        "context_length": of.max_position_embeddings,
        "embedding_length": of.hidden_size,
        "block_count": of.num_hidden_layers,
        "feed_forward_length": of.intermediate_size,
        "attention.head_count": of.num_attention_heads,
        "attention.head_count_kv": of.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(of.rms_norm_eps),
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "vocab_size": of.vocab_size,
    }
    if architecture == "gemma3":
        given["attention.sliding_window"] = of.sliding_window
        given["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    given["rope.freq_base"] = float(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        given["rope.scaling.type"] = rope["rope_type"]
        given["rope.scaling.factor"] = float(rope["factor"])
    if rope["rope_type"] == "yarn":
        given["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{architecture}.{name}": value for name, value in given.items()}


def _other_ends(ends: Collection[int], given: Mapping[str, Any]) -> dict[str, int]:
    """The ends of texts that the tokenizer doesn't name. Raises `ForetokenError` for too many."""
    free = [key for key in config.ENDS if key not in given]
    others = sorted({*ends} - {given.get(key) for key in config.ENDS})
    if len(others) > len(free):
        raise ForetokenError(
            f"A GGUF file can't say that texts end at the tokens {sorted(ends)}, which are more "
            f"than {len(config.ENDS)}; use llama.cpp's converter."
        )
    return dict(zip(free, others, strict=False))


def _rope_factors(of: Any) -> Tensor | None:
    """By what Llama 3's scaling divides each frequency."""
    from foretoken.models.native.rope import scaled

    rope: dict[str, Any] = of.rope_parameters
    if rope.get("rope_type") != "llama3":
        return None
    head = getattr(of, "head_dim", None) or of.hidden_size // of.num_attention_heads
    plain: Tensor = 1.0 / rope["rope_theta"] ** (torch.arange(0, head, 2) / head)
    frequencies: Tensor = scaled(head, rope["rope_theta"], rope)[0]
    return plain / frequencies


def _said(of: Any, name: str) -> Any:
    """What a configuration says; silence is "no"."""
    if name == "head_dim":
        return getattr(of, name, None) or of.hidden_size // of.num_attention_heads
    if name == "windows":
        return [block.window(of, i) for i in range(of.num_hidden_layers)]
    found = getattr(of, name, None) or None
    if name == "rope_parameters":
        return _rounded(found)
    return float(f"{found:.6g}") if isinstance(found, float) else found


def _rounded(given: Any) -> Any:
    """Numbers as float32 can hold them; what is said of nothing is left out."""
    if isinstance(given, dict):
        return {name: _rounded(value) for name, value in given.items() if value is not None}
    return float(f"{given:.6g}") if isinstance(given, int | float) else given
