"""transformers' configuration of a model, from a GGUF file's metadata.

A number that changes what the model computes is applied or refused, never left out: of a key that
isn't known here only "no", 0 and nothing may be the value.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.models.gguf import blocks, check
from foretoken.models.gguf.names import EMBEDDING, FAMILIES, OUTPUT, ROPE_FACTORS
from foretoken.models.gguf.reader import GGUFFile, Stored
from foretoken.models.gguf.tokenizer import CONTROL
from foretoken.models.native import block

_NUMBERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
ENDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_TOKENS = "tokenizer.ggml.tokens"
_END_OF_MESSAGE = "<|end|>"
_KNOWN_ENDS = {
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", _END_OF_MESSAGE, "<end_of_turn>", "<EOT>"),
    *("_<EOT>", "[EOT]", "[EOS]", "<turn|>", "<|tool_response>", "[e~["),
    *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
    *("<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
}
_CALLS, _ANSWERED = {"<|call|>", "<|calls|>"}, {"<|return|>", "<|flush|>"}
"""Ends of the text of models that write several messages: `_END_OF_MESSAGE` is none beside them."""
_CONTROL_ENDS = {"<eos>", "</s>"}
"""Ends of the text where they are control tokens: Gemma's `</s>` is HTML's."""
_KNOWN = {
    *_NUMBERS,
    *("attention.head_count_kv", "attention.key_length", "attention.value_length", "vocab_size"),
    *("rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout"),
    "rope.scale_linear",
}
_WINDOWED = {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"}
_ONE_IN = 6  # of Gemma 3's layers sees the whole text
_LOCAL_BASE = 10_000.0  # of the rotation in Gemma 3's other layers
_LARGEST_GEMMA = 62  # layers of the 27 B model, whose scores are scaled in another way
_LARGEST_GEMMA2 = 46  # the same of Gemma 2
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192


_UNSAID: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "silu"},
    "qwen2": {"hidden_act": "silu"},
    "qwen3": {"hidden_act": "silu"},
    "gemma3_text": {"hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": None},
}
"""What the native model reads and files don't say, as transformers' classes have it."""


def read(file: GGUFFile) -> Any:
    """The configuration of a file whose architecture is one of `FAMILIES`."""
    from transformers import AutoConfig

    given = _given(file)
    try:
        return AutoConfig.for_model(**given)
    except Exception as error:
        raise _unfit(file, given) from error


def read_native(file: GGUFFile) -> Any:
    """The same, of no class of its own: enough for the native model, and without transformers'
    modelling code, whose import takes longer than small weights do."""
    from transformers import PretrainedConfig

    from foretoken.models.native import check

    given = _given(file)
    try:
        made = PretrainedConfig(**_UNSAID[given["model_type"]], **given)
        check.numbers(made)
    except Exception as error:
        raise _unfit(file, given) from error
    return made


def _unfit(file: GGUFFile, given: dict[str, Any]) -> ForetokenError:
    return file.refusal(f"its numbers make no {given['model_type']} model")


def _given(file: GGUFFile) -> dict[str, Any]:
    """What the file says, by transformers' names."""
    check.language_model(file)
    numbers = _Numbers(file)
    numbers.check_known(_WINDOWED if file.architecture == "gemma3" else set())
    given = {name: numbers(key) for key, name in _NUMBERS.items()}
    if type(given["rms_norm_eps"]) is not float:
        raise file.refusal(f"its norms' epsilon is {shown(given['rms_norm_eps'])}")
    given["num_key_value_heads"] = numbers.get(
        "attention.head_count_kv", given["num_attention_heads"]
    )
    given["head_dim"] = _head_dim(numbers, given)
    given |= {name: _token_id(file, key) for name, key in _IDS.items()}
    given |= _biases(file)
    rope = _rope(numbers, given["head_dim"])
    if file.architecture == "gemma3":
        given |= _gemma3(numbers, given, rope)
    else:
        given["rope_parameters"] = rope
    given["vocab_size"] = _vocabulary(numbers)
    if (given["pad_token_id"] or 0) >= given["vocab_size"]:  # -1 without its sign
        given["pad_token_id"] = None
    given["tie_word_embeddings"] = OUTPUT not in file.tensors
    return {"model_type": FAMILIES[file.architecture].model_type, "dtype": dtype_of(file), **given}


def _biases(file: GGUFFile) -> dict[str, bool]:
    """Which products have biases, by the fields of a configuration that say so. Raises
    `ForetokenError` for other biases than these stand for."""
    family = FAMILIES[file.architecture]
    known = block.FAMILIES[family.model_type]
    products = {f"{name}.bias" for name in family.layer.values() if name.endswith("_proj")}
    names = (family.name_of(stored) for stored in file.tensors if stored.endswith(".bias"))
    found = {name.split(".", 3)[-1] for name in names if name is not None}
    meant = {name for name in products if name.startswith(known.biased)}
    fields: dict[str, bool] = {}
    for field, part in known.bias_fields:
        switched = {name for name in products if name.startswith(part)}
        fields[field] = not switched.isdisjoint(found)
        meant |= switched if fields[field] else set()
    if found != meant:
        raise file.unserved(
            f"its biases are {', '.join(sorted(found)) or 'none'}, and those of a "
            f"{family.model_type} model are {', '.join(sorted(meant)) or 'none'}"
        )
    return fields


def _token_id(file: GGUFFile, key: str) -> int | None:
    value = file.metadata.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise file.refusal(f"{key} is {shown(value)} and must be a token id")
    return value


def _vocabulary(numbers: _Numbers) -> int:
    """How many tokens have an embedding, which must be what the metadata says, if it does."""
    rows = _embedding(numbers.file).shape[0]
    said = numbers.get("vocab_size", rows)
    if said != rows:
        raise numbers.file.refusal(
            f"its vocabulary has {shown(said)} tokens, and its embedding {rows}"
        )
    return rows


def _embedding(file: GGUFFile) -> Stored:
    if EMBEDDING not in file.tensors:
        raise file.refusal(f"it has no tensor {EMBEDDING!r}")
    return file.tensors[EMBEDDING]


def ends(file: GGUFFile) -> frozenset[int]:
    """The ids of the tokens that end a text: of the whole, of a turn, of a message. Where the file
    names none of a turn, all are known by their texts too, by which llama.cpp always knows them:
    the one that it names of a model for chats is a turn's as a rule, and after other texts the
    whole's is written."""
    ids = [file.metadata[key] for key in ENDS if key in file.metadata]
    if any(type(i) is not int or i < 0 for i in ids):
        raise file.refusal(f"its end-of-text ids are {shown(ids)}")
    named = ENDS[1] in file.metadata or _TOKENS not in file.metadata
    tokens = [] if named else file.strings(_TOKENS)
    kinds: Any = file.metadata.get("tokenizer.ggml.token_type")
    listed = isinstance(kinds, list) and len(kinds) == len(tokens)
    control = {i for i, kind in enumerate(kinds) if kind == CONTROL} if listed else set()
    known = {
        token: i
        for i, token in enumerate(tokens)
        if token in _KNOWN_ENDS or (token in _CONTROL_ENDS and i in control)
    }
    if _CALLS & known.keys() and _ANSWERED & known.keys():
        known.pop(_END_OF_MESSAGE, None)
    return frozenset([*ids, *known.values()])


def dtype_of(file: GGUFFile) -> torch.dtype:
    """The dtype that a GPU runs the model in: that of the embedding, float16 for blocks; bfloat16
    for Gemma's, whose states float16 can't hold."""
    found = blocks.FLOATS.get(_embedding(file).kind.name, torch.float16)
    gemma = file.architecture.startswith("gemma")
    return torch.bfloat16 if gemma and found == torch.float16 else found


class _Numbers:
    """A file's metadata under its architecture's name."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self._prefix = file, f"{file.architecture}."

    def __call__(self, key: str) -> Any:
        if self._prefix + key not in self.file.metadata:
            raise self.file.refusal(f"its metadata has no {self._prefix}{key}")
        return self.file.metadata[self._prefix + key]

    def get(self, key: str, default: Any) -> Any:
        return self.file.metadata.get(self._prefix + key, default)

    def check_known(self, also: set[str]) -> None:
        for key, value in self.file.metadata.items():
            name = key.removeprefix(self._prefix)
            if name != key and name not in _KNOWN | also and value:
                raise self.file.unserved(f"it asks for {key} = {shown(value)}")


def _head_dim(numbers: _Numbers, given: dict[str, Any]) -> int:
    """The heads' width, which queries, values and the rotation must have in common."""
    heads, width = given["num_attention_heads"], given["hidden_size"]
    if type(heads) is not int or type(width) is not int or not heads:
        raise numbers.file.refusal(f"it has {shown(heads)} heads and a width of {shown(width)}")
    size = numbers.get("attention.key_length", width // heads)
    if type(size) is not int or size < 1:
        raise numbers.file.refusal(f"its heads have a width of {shown(size)}")
    turned = numbers.get("rope.dimension_count", size)
    if not turned == size == numbers.get("attention.value_length", size):
        raise numbers.file.unserved(
            f"its heads rotate {shown(turned)} of {shown(size)} numbers, or have values of another "
            "width"
        )
    return size


def _rope(numbers: _Numbers, head_dim: int) -> dict[str, Any]:
    """transformers' rope_parameters."""
    file, theta = numbers.file, _base(numbers, "rope.freq_base", 10_000.0)
    kind, factor = _scaling(numbers)
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise file.unserved("it asks for two kinds of rotary scaling")
        factors = blocks.read(file.tensors[ROPE_FACTORS], narrow=False)
        return {"rope_theta": theta, **_llama3(file, factors, head_dim, theta)}
    if kind == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    scaling = {"rope_theta": theta, "rope_type": kind, "factor": factor}
    if kind == "linear":
        return scaling
    if kind == "yarn":
        context = numbers("rope.scaling.original_context_length")
        return {**scaling, "original_max_position_embeddings": context}
    raise file.unserved(f"its rotary scaling is {shown(kind)}")


def _scaling(numbers: _Numbers) -> tuple[Any, Any]:
    """Kind and factor of the rotary scaling: as in llama.cpp, a factor without a kind is a linear
    one, and stands under another key in old files."""
    factor = numbers.get("rope.scaling.factor", numbers.get("rope.scale_linear", 0)) or 1.0
    return numbers.get("rope.scaling.type", "none" if factor == 1 else "linear"), factor


def _base(numbers: _Numbers, key: str, default: float) -> float:
    """Of a rotation."""
    base = numbers.get(key, default)
    if type(base) not in (int, float) or not 0 < base < math.inf:
        raise numbers.file.refusal(f"its {key} is {shown(base)} and must be a number above 0")
    return float(base)


def _llama3(file: GGUFFile, factors: Tensor, head_dim: int, theta: float) -> dict[str, Any]:
    """The parameters of Llama 3's scaling that give these factors, by which frequencies are
    divided. Raises `ForetokenError` where none do."""
    from foretoken.models.native.rope import scaled

    if len(factors) * 2 != head_dim:
        raise _no_scaling(file)
    largest = float(factors.max())
    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": largest,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
        **_LLAMA3,
    }
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2) / head_dim)
    if math.isfinite(largest):
        frequency, _ = scaled(head_dim, theta, scaling)
        if torch.allclose(plain / factors, frequency, rtol=1e-4):
            return scaling
    raise _no_scaling(file)


def _no_scaling(file: GGUFFile) -> ForetokenError:
    return file.unserved(f"{ROPE_FACTORS} is no scaling of Llama 3's")


def _gemma3(numbers: _Numbers, given: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """What Gemma 3 has of its own."""
    layers, heads = given["num_hidden_layers"], given["num_attention_heads"]
    every = numbers.get("attention.sliding_window_pattern", _ONE_IN)
    if type(every) is not int or every < 1 or type(layers) is not int:
        raise numbers.file.unserved(f"its pattern of windows is {shown(every)}")
    base = _base(numbers, "rope.freq_base_swa", _LOCAL_BASE)
    local = {"rope_theta": base, "rope_type": "default"}
    kinds = ("full_attention", "sliding_attention")
    largest = layers == _LARGEST_GEMMA
    return {
        "layer_types": [kinds[(i + 1) % every != 0] for i in range(min(layers, 10_000))],
        "sliding_window": numbers("attention.sliding_window"),
        "query_pre_attn_scalar": given["hidden_size"] // heads if largest else given["head_dim"],
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
    }


def completed(file: GGUFFile, made: Any) -> Any:
    """transformers' reading of another architecture, with what it leaves at its class's default:
    the base of the rotation (StarCoder 2's), Phi 3's window, of which 0 is none, Gemma 2's soft
    caps, and the scale of its scores, which follows from the size as in llama.cpp; and the dtype,
    which it doesn't name."""
    made.dtype = dtype_of(file)
    numbers, rope = _Numbers(file), getattr(made, "rope_parameters", None)
    if isinstance(rope, dict) and "rope_theta" in rope:
        rope["rope_theta"] = _base(numbers, "rope.freq_base", rope["rope_theta"])
        _check_turned(numbers, made, rope.get("partial_rotary_factor", 1.0))
    if made.model_type == "phi3":
        made.sliding_window = numbers.get("attention.sliding_window", None) or None
    if made.model_type == "gemma2":
        largest = made.num_hidden_layers == _LARGEST_GEMMA2
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            setattr(made, name, numbers.get(name, getattr(made, name)))
        width = made.hidden_size // made.num_attention_heads
        made.query_pre_attn_scalar = width if largest else made.head_dim
    return made


def _check_turned(numbers: _Numbers, made: Any, part: float) -> None:
    """Raises `ForetokenError` where heads turn more or less than in transformers' reading, which
    takes the `part` that its class names."""
    width = getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads
    read = int(width * part)
    if (turned := numbers.get("rope.dimension_count", read)) != read:
        raise numbers.file.unserved(
            f"its heads turn {shown(turned)} of {width} numbers, and transformers reads {read}"
        )


def check_rope(file: GGUFFile) -> None:
    """Raises `ForetokenError` where a file that transformers is to read asks for rotary scaling,
    which its reader leaves out."""
    kind, _ = _scaling(_Numbers(file))
    if kind != "none" or any(name.startswith("rope_f") for name in file.tensors):
        raise file.unserved(
            f"it asks for rotary scaling, which transformers leaves out of {file.architecture} "
            "models in GGUF"
        )
