"""What a GGUF file says is checked before it is believed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_files
from foretoken.errors import ForetokenError
from foretoken.models.gguf.reader import GGUFFile, Strings, opened

HEADER = struct.Struct("<4sIQQ")
KINDS = {"u8": 0, "bool": 7, "text": 8, "array": 9, "u64": 10}


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def pair(key: str, kind: str | int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", KINDS.get(kind, kind)) + value  # type: ignore[call-overload]


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def crafted(
    path: Path,
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: int = 64,
    **header: Any,
) -> Path:
    """A file of these parts; `header`: other numbers than are right."""
    right = {"magic": b"GGUF", "version": 3, "tensor_count": len(tensors), "kv_count": len(pairs)}
    start = HEADER.pack(*(right | header).values())
    body = start + b"".join((*pairs, *tensors))
    path.write_bytes(body + b"\0" * (-len(body) % 32) + b"\0" * data)
    return path


def test_it_reads_what_the_package_reads(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", also={"general.alignment": 64})
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    keys = {key for key in theirs.fields if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == keys
    for key in keys:
        value = ours.metadata[key]
        read = ours.strings(key) if isinstance(value, Strings) else value
        assert read == theirs.fields[key].contents(), key
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.kind == tensor.tensor_type and found.start == tensor.data_offset
        assert found.shape == tuple(map(int, tensor.shape[::-1])) and found.size == tensor.n_bytes


ARRAY = struct.pack("<IQ", KINDS["u64"], 2**40)
TEXTS = struct.pack("<IQ", KINDS["text"], 2**60)
DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no magic": ({"magic": b"PK\3\4"}, "it doesn't begin with 'GGUF'"),
    "old": ({"version": 1}, "it is of version 1"),
    "big-endian": ({"version": 3 << 24}, "it is of another byte order"),
    "more pairs": ({"kv_count": 2**63}, "it ends in the middle|key '' is there twice"),
    "more tensors": ({"tensor_count": 2**63}, "tensor '' has 0 dimensions"),
    "a long text": ({"pairs": (pair("a", "text", b"\xff" * 8),)}, "it ends in the middle"),
    "no UTF-8": ({"pairs": (pair("a", "text", text(b"\xff\xfe")),)}, "isn't UTF-8"),
    "a long array": ({"pairs": (pair("a", "array", ARRAY),)}, "it ends in the middle"),
    "many texts": ({"pairs": (pair("a", "array", TEXTS),)}, "it ends in the middle"),
    "arrays in one": (
        {"pairs": (pair("a", "array", struct.pack("<IQ", KINDS["array"], 1)),)},
        "of an unknown type, 9",
    ),
    "an unknown value": ({"pairs": (pair("a", 99, b"\0" * 8),)}, "of an unknown type, 99"),
    "a key twice": ({"pairs": (pair("a", "u8", b"\1"),) * 2}, "key 'a' is there twice"),
    "no alignment": (
        {"pairs": (pair("general.alignment", "u8", b"\3"),)},
        "its alignment is 3, which is no power of two",
    ),
    "a tensor twice": ({"tensors": (tensor("t", (4,)),) * 2}, "tensor 't' is there twice"),
    "no dimensions": ({"tensors": (tensor("t", ()),)}, "tensor 't' has 0 dimensions"),
    "a hundred dimensions": ({"tensors": (tensor("t", (1,) * 100),)}, "has 100 dimensions"),
    "nothing in it": ({"tensors": (tensor("t", (4, 0)),)}, r"'t' has the shape \[0, 4\]"),
    "an unknown type": ({"tensors": (tensor("t", (4,), 999),)}, "of an unknown type, 999"),
    "half a block": ({"tensors": (tensor("t", (33,), 8),)}, "Q8_0 has blocks of 32 numbers"),
    "too large": ({"tensors": (tensor("t", (17,)),)}, "'t' ends after the file's end"),
    "sizes that overflow": ({"tensors": (tensor("t", (2**62, 2**62)),)}, "ends after the file's"),
    "far away": ({"tensors": (tensor("t", (4,), 0, 2**63),)}, "ends after the file's end"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    given, message = DAMAGED[case]
    path = crafted(tmp_path / "a.gguf", **given)
    with pytest.raises(ForetokenError, match=message) as raised:
        GGUFFile(path)
    assert str(path) in str(raised.value)


def test_a_file_that_was_cut_off_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf")
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for end in (0, 3, 24, len(whole) - 1, *random.integers(0, len(whole), 60)):
        path.write_bytes(whole[:end])
        with pytest.raises(ForetokenError, match=r"can't be read|no GGUF file"):
            GGUFFile(path)


def test_noise_in_the_metadata_is_read_or_refused(tmp_path: Path) -> None:
    """Nothing but a `ForetokenError` comes of a changed byte."""
    path = crafted(
        tmp_path / "a.gguf",
        (pair("general.architecture", "text", text("llama")), pair("b", "u64", b"\1" * 8)),
        (tensor("t", (4, 4)),),
    )
    whole = path.read_bytes()
    for at in range(len(whole) - 64):
        for value in (0, 1, 0x7F, 0xFF):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                file = GGUFFile(path)
                assert all(t.start + t.size <= len(whole) for t in file.tensors.values())
            except ForetokenError:
                pass


def test_a_part_that_is_not_named_as_one_is_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "a-00001-of-00002.gguf"):
        path = crafted(tmp_path / name, (pair("split.count", "u8", b"\3"),))
        with pytest.raises(ForetokenError, match=f"{name} is one of 3 parts by its metadata, and "):
            GGUFFile(path)


def part(path: Path, index: int, *tensors: str, count: int = 2, of: int = 2) -> Path:
    """One file of several."""
    numbers = {"no": index, "count": count, "tensors.count": of}
    pairs = tuple(pair(f"split.{key}", "u8", bytes([value])) for key, value in numbers.items())
    found = tuple(tensor(name, (4,)) for name in tensors)
    return crafted(path.parent / f"{path.name}-{index + 1:05}-of-00002.gguf", pairs, found)


def test_the_tensors_of_all_parts(tmp_path: Path) -> None:
    first, second = part(tmp_path / "a", 0, "x"), part(tmp_path / "a", 1, "y")
    file = GGUFFile(first)
    assert file.files == [first, second]
    assert {name: stored.file for name, stored in file.tensors.items()} == {"x": first, "y": second}
    with pytest.raises(
        ForetokenError, match=r"00002-of-00002\.gguf is part 2 of 2 .*give the first"
    ):
        GGUFFile(second)


OTHERS: dict[str, tuple[tuple[int, dict[str, Any]], str]] = {
    "another place": ((0, {}), "its split.no is 0 and should be 1"),
    "of more": ((1, {"count": 3}), "its split.count is 3 and should be 2"),
    "of more tensors": ((1, {"of": 3}), "its split.tensors.count is 3 and should be 2"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_part_of_another_model_is_refused(case: str, tmp_path: Path) -> None:
    (index, given), message = OTHERS[case]
    first, second = part(tmp_path / "a", 0, "x"), tmp_path / "a-00002-of-00002.gguf"
    part(tmp_path / "b", index, "y", **given).replace(second)
    with pytest.raises(ForetokenError, match=message) as raised:
        GGUFFile(first)
    assert f"{second} is no part of the model that begins in {first.name}" in str(raised.value)


def test_parts_that_have_a_tensor_twice_or_too_few_are_refused(tmp_path: Path) -> None:
    first = part(tmp_path / "a", 0, "x")
    part(tmp_path / "a", 1, "x")
    with pytest.raises(ForetokenError, match=r"00002\.gguf .*tensor 'x' is in another part too"):
        GGUFFile(first)
    part(tmp_path / "a", 1)
    with pytest.raises(ForetokenError, match="have 1 tensors together, and should have 2"):
        GGUFFile(first)


def test_a_part_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    first, second = part(tmp_path / "a", 0, "x"), tmp_path / "a-00002-of-00002.gguf"
    with pytest.raises(ForetokenError, match=f"{second} is missing, one of 2 parts"):
        GGUFFile(first)
    second.write_bytes(b"GGUF")
    with pytest.raises(ForetokenError, match=f"{second} can't be read: it ends in the middle"):
        GGUFFile(first)


def test_parts_are_read_again_when_one_of_them_changes(tmp_path: Path) -> None:
    first, second = part(tmp_path / "a", 0, "x"), part(tmp_path / "a", 1, "y")
    file = opened(first)
    assert opened(first) is file
    part(tmp_path / "a", 1, "another" * 9)  # of another size
    assert opened(first).tensors.keys() == {"x", "another" * 9}
    second.unlink()
    with pytest.raises(ForetokenError, match="is missing"):
        opened(first)


def test_what_a_model_needs_must_be_there(tmp_path: Path) -> None:
    file = GGUFFile(crafted(tmp_path / "a.gguf"))
    with pytest.raises(ForetokenError, match=r"general\.architecture is None and must be a text"):
        _ = file.architecture
    with pytest.raises(ForetokenError, match=r"no list of texts tokenizer\.ggml\.tokens"):
        file.strings("tokenizer.ggml.tokens")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = crafted(tmp_path / "a.gguf")
    monkeypatch.setattr("foretoken.models.gguf.reader.find_spec", lambda name: None)
    with pytest.raises(ForetokenError, match=r"pip install 'foretoken\[gguf\]'"):
        GGUFFile(path)


def test_a_header_is_parsed_once_while_the_file_stays_what_it_is(tmp_path: Path) -> None:
    path = crafted(tmp_path / "a.gguf", (pair("a", "u8", b"\1"),))
    first = opened(path)
    assert opened(path) is first
    crafted(path, (pair("a", "u8", b"\1"), pair("b", "u8", b"\2")))
    assert opened(path).metadata == {"a": 1, "b": 2}
    path.unlink()
    with pytest.raises(ForetokenError, match="No such file"):
        opened(path)


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match="No such file"):
        GGUFFile(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ForetokenError, match="it is empty"):
        GGUFFile(tmp_path / "empty.gguf")
