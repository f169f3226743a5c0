"""GGUF files of tiny models, and every way in which `fuzz_checkpoints.py` damages one: headers,
metadata, infos of tensors, blocks, and where the file ends."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

NAME = "model.gguf"
FAMILIES = {  # -> of the model, and what its matrices are stored in
    "gguf-llama": ("sharded", "F32"),
    "gguf-llama-Q8_0": ("tied", "Q8_0"),
    "gguf-qwen2-Q4_0": ("qwen2", "Q4_0"),
    "gguf-qwen3-F16": ("qwen3", "F16"),
    "gguf-gemma3": ("gemma3_text", "F32"),
}
_ALIGNMENT = 32
_SIZES = dict(
    zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), (1, 1, 2, 2, 4, 4, 4, 1, 8, 8, 8), strict=True)
)
_TEXT, _ARRAY = 8, 9
Value = tuple[int, bytes]  # a type and what is written for it


@dataclass
class Tensor:
    """dims: as they stand in the file. offset: where it isn't the next free one."""

    name: bytes
    dims: list[int]
    kind: int
    data: bytes
    offset: int | None = None
    count: int | None = None  # of dimensions, where it isn't theirs


@dataclass
class Parts:
    """A file taken apart, and what is written instead of its counts."""

    pairs: list[tuple[bytes, Value]]
    tensors: list[Tensor]
    header: dict[str, Any] = field(default_factory=dict)

    def written(self) -> bytes:
        right = {
            "magic": b"GGUF",
            "version": 3,
            "tensors": len(self.tensors),
            "pairs": len(self.pairs),
        }
        out = bytearray(struct.pack("<4sIQQ", *(right | self.header).values()))
        for key, (kind, value) in self.pairs:
            out += text(key) + struct.pack("<I", kind) + value
        at, places = 0, []
        for tensor in self.tensors:
            places.append(at if tensor.offset is None else tensor.offset)
            count = len(tensor.dims) if tensor.count is None else tensor.count
            out += text(tensor.name) + struct.pack(f"<I{len(tensor.dims)}Q", count, *tensor.dims)
            out += struct.pack("<IQ", tensor.kind, places[-1])
            at += -(-len(tensor.data) // _ALIGNMENT) * _ALIGNMENT
        for tensor in self.tensors:
            out += b"\0" * (-len(out) % _ALIGNMENT) + tensor.data
        return bytes(out)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def taken_apart(data: bytes) -> Parts:
    """Of a file that is sound."""
    at = 24
    tensors, pairs = struct.unpack_from("<QQ", data, 8)

    def took(layout: str) -> Any:
        nonlocal at
        values = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return values[0] if len(values) == 1 else values

    def string() -> bytes:
        nonlocal at
        size = took("Q")
        at += size
        return data[at - size : at]

    def skip(kind: int) -> None:
        nonlocal at
        if kind == _TEXT:
            string()
        elif kind == _ARRAY:
            inner, count = took("IQ")
            for _ in range(count):
                skip(inner)
        else:
            at += _SIZES[kind]

    made = Parts([], [])
    for _ in range(pairs):
        key, kind = string(), took("I")
        begin = at
        skip(kind)
        made.pairs.append((key, (kind, data[begin:at])))
    infos = []
    for _ in range(tensors):
        name = string()
        dims = [took("Q") for _ in range(took("I"))]
        infos.append((name, dims, took("I"), took("Q")))
    start = -(-at // _ALIGNMENT) * _ALIGNMENT
    ends = sorted([offset for *_, offset in infos] + [len(data) - start])
    for name, dims, kind, offset in infos:
        end = next(end for end in ends if end > offset)
        made.tensors.append(Tensor(name, dims, kind, data[start + offset : start + end]))
    return made


def write_family(family: str, folder: Path, write_model: Callable[[str, Path], None]) -> None:
    """A file in a folder; `write_model` writes the checkpoint folder that it is made of."""
    from transformers import AutoConfig

    from foretoken.models import gguf

    model, kind = FAMILIES[family]
    source = folder.with_name(f"{folder.name}-source")
    write_model(model, source)
    config = json.loads((source / "config.json").read_text())
    if config.pop("use_sliding_window", False):  # which a file can't say
        del config["layer_types"]
    if "query_pre_attn_scalar" in config:  # nor another one than this
        config["query_pre_attn_scalar"] = config["head_dim"]
    (source / "config.json").write_text(json.dumps(config))
    folder.mkdir()
    made = gguf.FolderSource(source, AutoConfig.from_pretrained(source), _tokenizer())
    gguf.write_file(made, folder / NAME, kind)


def reading(folder: Path) -> dict[str, Any]:
    """How transformers is asked for a file. Its reader leaves out the width of Qwen's heads and a
    base of Gemma's, so that they are given."""
    from transformers import AutoConfig

    from foretoken.models.gguf.reader import GGUFFile

    config = AutoConfig.from_pretrained(folder, gguf_file=NAME)
    config.head_dim = config.query_pre_attn_scalar = 32
    base = GGUFFile(folder / NAME).metadata.get("gemma3.rope.freq_base_swa")
    if base is not None and "sliding_attention" in config.rope_parameters:
        config.rope_parameters["sliding_attention"]["rope_theta"] = base
    return {"gguf_file": NAME, "config": config}


def _tokenizer() -> Any:
    """Of 97 tokens: letters, a merge and an end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*(chr(33 + i) for i in range(94)), "Ġ", "th", "<e>"]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [("t", "h")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<e>")


# What is damaged.

Change = Callable[[Path], None]


def _changed(change: Callable[[Parts], None]) -> Change:
    def apply(folder: Path) -> None:
        parts = taken_apart((folder / NAME).read_bytes())
        change(parts)
        (folder / NAME).write_bytes(parts.written())

    return apply


def _bytes(change: Callable[[bytes], bytes]) -> Change:
    def apply(folder: Path) -> None:
        (folder / NAME).write_bytes(change((folder / NAME).read_bytes()))

    return apply


def _number(layout: str, value: float) -> bytes:
    return struct.pack("<" + layout, value)


def _listed(kind: int, values: list[bytes], count: int | None = None) -> Value:
    many = len(values) if count is None else count
    return _ARRAY, struct.pack("<IQ", kind, many) + b"".join(values)


VALUES: dict[str, Value] = {
    **{
        f"u32 {n}": (4, _number("I", n))
        for n in (0, 1, 2, 3, 5, 33, 64, 96, 97, 98, 10**5, 10**8, 2**32 - 1)
    },
    **{f"i32 {n}": (5, _number("i", n)) for n in (-1, -(2**31))},
    **{f"u64 {n}": (10, _number("Q", n)) for n in (4, 2**33, 2**63, 2**64 - 1)},
    "u8 4": (0, b"\4"),
    "i64 -1": (11, _number("q", -1)),
    **{f"f32 {x}": (6, _number("f", x)) for x in (0.0, 1.5, 4.0, -1.0, 1e30, math.nan, math.inf)},
    "f64 1e300": (12, _number("d", 1e300)),
    "yes": (7, b"\1"),
    "no": (7, b"\0"),
    "a bool of 7": (7, b"\7"),
    "an empty text": (_TEXT, text(b"")),
    "a text": (_TEXT, text(b"llama")),
    "a text of two lines": (_TEXT, text(b"a\nb\x1b[31m")),
    "a long text": (_TEXT, text(b"x" * 70_000)),
    "not UTF-8": (_TEXT, text(b"\xff\xfe")),
    "a text that is longer than the file": (_TEXT, _number("Q", 2**40)),
    "a text of 2^64 - 1": (_TEXT, _number("Q", 2**64 - 1)),
    "no numbers": _listed(4, []),
    "two numbers": _listed(4, [_number("I", 4), _number("I", 2)]),
    "two floats": _listed(6, [_number("f", 0.5)] * 2),
    "two texts": _listed(_TEXT, [text(b"a"), text(b"b c")]),
    "one text twice": _listed(_TEXT, [text(b"a")] * 97),
    "no texts": _listed(_TEXT, []),
    "texts that are not UTF-8": _listed(_TEXT, [text(b"\xff")] * 97),
    "97 numbers": _listed(5, [_number("i", i - 3) for i in range(97)]),
    "a list of lists": _listed(_ARRAY, [struct.pack("<IQ", 4, 0)] * 2),
    "a list that is longer than the file": _listed(4, [], 2**40),
    "texts without an end": _listed(_TEXT, [], 2**62),
    "a list of an unknown type": _listed(77, [], 1),
    "an unknown type": (99, b"\0" * 8),
}
MORE: dict[str, list[str]] = {
    "general.alignment": [
        "u32 0",
        "u32 1",
        "u32 2",
        "u32 3",
        "u32 64",
        "u64 9223372036854775808",
        "a text",
        "f32 4.0",
        "u32 100000000",
    ],
    "split.count": ["u32 2", "u32 1", "a text", "two numbers"],
    "general.type": ["a text", "u32 1"],
    **{
        f"ARCH.{key}": ["u32 1", "u32 0", "f32 1.5", "a text", "yes", "no", "two numbers"]
        for key in (
            "vocab_size",
            "expert_count",
            "pooling_type",
            "attention.causal",
            "logit_scale",
            "rope.scaling.type",
            "rope.scaling.factor",
            "rope.dimension_count",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attention.key_length",
            "attention.value_length",
            "attention.scale",
            "attn_logit_softcapping",
            "rope.freq_base",
            "rope.freq_base_swa",
        )
    },
    **{
        f"tokenizer.ggml.{key}": [
            "u32 1",
            "u32 98",
            "no",
            "yes",
            "a text",
            "two texts",
            "97 numbers",
            "two floats",
        ]
        for key in (
            "bos_token_id",
            "eot_token_id",
            "eom_token_id",
            "unknown_token_id",
            "scores",
            "padding_token_id",
            "add_bos_token",
            "add_eos_token",
            "add_space_prefix",
        )
    },
    "tokenizer.chat_template": ["a text", "a text of two lines", "u32 1"],
}
NAMES = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma3",
    "gpt2",
    "bloom",
    "clip",
    "bert",
    "mamba",
    "t5",
    "qwen2moe",
    "x" * 70_000,
    "",
    "a\nb",
)
COUNTS = (0, 1, 2, 1000, 2**31, 2**32, 2**63, 2**64 - 1)
PARTS = (
    "token_embd",
    "output.weight",
    "output_norm",
    "blk.0.attn_q.weight",
    "blk.1.attn_k.weight",
    "blk.0.attn_norm",
    "blk.1.ffn_down",
    "blk.0.attn_q.bias",
)


def damages(names: dict[str, list[str]]) -> Iterator[tuple[str, str, Change]]:
    """names: of each family's keys and tensors."""
    for family in FAMILIES:
        keys = [
            name
            for name in names[family]
            if name.partition(".")[0] not in ("blk", "output", "token_embd", "output_norm")
        ]
        held = [name for name in names[family] if name not in keys]
        yield from ((family, what, change) for what, change in _of_pairs(keys))
        yield from ((family, what, change) for what, change in _of_tensors(held))
        yield from ((family, what, change) for what, change in _of_bytes(family))


def _of_pairs(keys: list[str]) -> Iterator[tuple[str, Change]]:
    architecture = next(key.partition(".")[0] for key in keys if key.endswith("block_count"))
    for key in keys:
        for what, value in VALUES.items():
            yield f"{key} = {what}", _changed(_valued(key, value))
        yield f"no {key}", _changed(_valued(key, None))
        yield f"{key} twice", _changed(_twice(key))
    for key, whats in MORE.items():
        full = key.replace("ARCH", architecture)
        for what in whats:
            yield f"{full} = {what} too", _changed(_valued(full, VALUES[what]))
    for name in NAMES:
        value = (_TEXT, text(name.encode()))
        yield f"architecture {name[:20]!r}", _changed(_valued("general.architecture", value))
    for name in ("magic", "version", "tensors", "pairs"):
        for count in COUNTS if name != "magic" else (b"GGML", b"FUGG", b"\0" * 4):
            if name == "version" and count >= 2**32:  # type: ignore[operator]
                continue
            yield f"header: {name} {count!r}", _changed(_headed(name, count))


def _valued(key: str, value: Value | None) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        kept = [pair for pair in parts.pairs if pair[0] != key.encode()]
        parts.pairs = kept + ([] if value is None else [(key.encode(), value)])

    return change


def _twice(key: str) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts.pairs += [pair for pair in parts.pairs if pair[0] == key.encode()]

    return change


def _headed(name: str, value: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        right = {
            "magic": b"GGUF",
            "version": 3,
            "tensors": len(parts.tensors),
            "pairs": len(parts.pairs),
        }
        parts.header = right | {name: value}

    return change


def _of_tensors(names: list[str]) -> Iterator[tuple[str, Change]]:
    changes: dict[str, Callable[[Tensor], None]] = {
        **{f"dimensions {count}": _set("count", count) for count in (0, 1, 5, 2**31, 2**32 - 1)},
        **{f"type {kind}": _set("kind", kind) for kind in (*range(42), 99, 2**32 - 1)},
        **{f"at {at}": _set("offset", at) for at in (0, 1, 32, 4096, 10**6, 2**63, 2**64 - 32)},
        **{f"size {size}": _sized(size) for size in (0, 1, 31, 63, 2**31, 2**62, 2**64 - 1)},
        "turned": lambda tensor: tensor.dims.reverse(),
        "flat": lambda tensor: _set("dims", [_product(tensor.dims)])(tensor),
        "a dimension more": lambda tensor: tensor.dims.append(1),
        "of 2^32 by 2^32": lambda tensor: _set("dims", [2**32, 2**32])(tensor),
        "named x": _set("name", b"x"),
        "no name": _set("name", b""),
        "a long name": _set("name", b"n" * 70_000),
        "a name of two lines": _set("name", b"a\nb\x1b[31m"),
        "a name of no text": _set("name", b"\xff\xfe"),
        "all ones": lambda tensor: _set("data", b"\xff" * len(tensor.data))(tensor),
        "all zeros": lambda tensor: _set("data", b"\0" * len(tensor.data))(tensor),
        "noise": lambda tensor: _set("data", Random(1).randbytes(len(tensor.data)))(tensor),
        "half of it": lambda tensor: _set("data", tensor.data[: len(tensor.data) // 2])(tensor),
    }
    for part in PARTS:
        for name in [name for name in names if name.startswith(part)][:1]:
            for what, change in changes.items():
                yield f"{name}: {what}", _changed(_one(name, change))
            yield f"{name}: gone", _changed(_without(name))
            yield f"{name}: twice", _changed(_added(name, name))
            for other in ("rope_freqs.weight", "blk.2.attn_q.weight", "blk.0.attn_v.bias", "x.y"):
                yield f"{name}: also as {other}", _changed(_added(name, other))


def _product(dims: list[int]) -> int:
    count = 1
    for size in dims:
        count *= size
    return count


def _set(name: str, value: Any) -> Callable[[Tensor], None]:
    return lambda tensor: setattr(tensor, name, value)


def _sized(size: int) -> Callable[[Tensor], None]:
    return lambda tensor: tensor.dims.__setitem__(0, size)


def _one(name: str, change: Callable[[Tensor], None]) -> Callable[[Parts], None]:
    def apply(parts: Parts) -> None:
        change(next(tensor for tensor in parts.tensors if tensor.name == name.encode()))

    return apply


def _without(name: str) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts.tensors = [tensor for tensor in parts.tensors if tensor.name != name.encode()]

    return change


def _added(name: str, other: str) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        found = next(tensor for tensor in parts.tensors if tensor.name == name.encode())
        parts.tensors.append(Tensor(other.encode(), found.dims, found.kind, found.data))

    return change


def _of_bytes(family: str) -> Iterator[tuple[str, Change]]:
    """Ends of all sorts, and changed bytes, most of them before the tensors' data."""
    for share in (0.0, 0.0001, 0.001, 0.01, 0.03, 0.1, 0.5, 0.9, 0.999):
        yield f"cut at {share}", _bytes(lambda data, share=share: data[: int(len(data) * share)])
    yield "a kilobyte more", _bytes(lambda data: data + b"\0" * 1024)
    random = Random(family)
    for number in range(400):
        place, many = random.random(), random.choice((1, 2, 8))
        new = random.choice((b"\0" * many, b"\xff" * many, random.randbytes(many)))
        yield f"bytes #{number}", _bytes(_patch(place, new))


def _patch(place: float, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = int(place * min(len(data), 6000))
        return data[:at] + new + data[at + len(new) :]

    return change
