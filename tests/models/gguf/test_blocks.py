"""Dequantised numbers: bit by bit those of the package `gguf`, with a compiler and without."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind

from foretoken.errors import ForetokenError
from foretoken.models.gguf import blocks
from foretoken.models.gguf.reader import Stored
from foretoken.models.native.backends import kernels
from foretoken.models.native.backends.blocks import KINDS, Blocks

DTYPES = (torch.float16, torch.float32)


def written(path: Path, kind: Kind, rows: int = 40, scale: float | None = 0.01) -> Stored:
    """Random bytes as blocks of 40 rows, two blocks each; their scales are small where given."""
    values, size = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (2 * rows, size), dtype=np.uint8)
    if scale is not None:
        places = {Kind.Q6_K: [208], Kind.Q4_1: [0, 2], Kind.Q4_K: [0, 2], Kind.Q5_K: [0, 2]}
        for at in places.get(kind, [0]):
            numbers = np.random.default_rng(at).normal(0, scale, 2 * rows).astype(np.float16)
            raw[:, at : at + 2] = numbers[:, None].view(np.uint8)
    path.write_bytes(b"\0" * 8192 + raw.tobytes())
    return Stored(path, (rows, 2 * values), kind, 8192, raw.nbytes)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the loops are compiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [0.01, None], ids=["small", "any bytes"])
@pytest.mark.parametrize("name", KINDS)
def test_the_loops_give_the_bits_of_the_package(
    name: str, scale: float | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    stored = written(tmp_path / "a", Kind[name], scale=scale)
    data = np.fromfile(tmp_path / "a", np.uint8)[stored.start :]
    (fast, most), (slow, largest) = (
        find(data, stored, dtype) for find in (blocks.dequantised, blocks.by_package)
    )
    bits = {torch.float16: torch.int16, torch.float32: torch.int32}[dtype]
    same = (fast.view(bits) == slow.view(bits)) | (fast.isnan() & slow.isnan())
    assert same.all() and most == largest


@pytest.mark.parametrize("name", KINDS)
def test_without_a_compiler_the_package_serves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = written(tmp_path / "a", Kind[name])
    fast = blocks.read(stored, narrow=True)
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert torch.equal(blocks.read(stored, narrow=True), fast)


def test_parts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = written(tmp_path / "a", Kind.Q8_0)
    data = np.fromfile(tmp_path / "a", np.uint8)[stored.start :]
    whole, largest = blocks.by_package(data, stored, torch.float32)
    monkeypatch.setattr(blocks, "_PART", 96)
    found, most = blocks.by_package(data, stored, torch.float32)
    assert torch.equal(found, whole) and most == largest


def test_a_type_without_a_loop(tmp_path: Path) -> None:
    stored = written(tmp_path / "a", Kind.Q3_K, scale=None)
    assert blocks.read(stored, narrow=False).shape == stored.shape


def test_numbers_that_float16_holds_badly_stay_float32(tmp_path: Path) -> None:
    for scale in (1e-7, 1e4):
        stored = written(tmp_path / "a", Kind.Q8_0, scale=scale)
        wide = blocks.read(stored, narrow=False)
        kept = blocks.read(stored, narrow=True)
        assert kept.dtype == torch.float32 and torch.equal(kept, wide)


def test_how_far_float16_is_off(tmp_path: Path) -> None:
    """What the module says of it."""
    for name in KINDS:
        stored = written(tmp_path / "a", Kind[name])
        wide, narrow = (blocks.read(stored, narrow=n) for n in (False, True))
        assert narrow.dtype == torch.float16
        off = (narrow.float() - wide).abs()
        assert (off <= torch.maximum(wide.abs() * 2**-11, wide.abs().max() * 2**-17)).all()


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.F64], ids=lambda k: k.name)
def test_floats_are_read_as_they_are(kind: Kind, tmp_path: Path) -> None:
    dtype = blocks.FLOATS[kind.name]
    numbers = torch.randn(3, 5, dtype=torch.float64).to(dtype)
    (tmp_path / "a").write_bytes(b"\0" * 32 + numbers.view(torch.uint8).numpy().tobytes())
    stored = Stored(tmp_path / "a", (3, 5), kind, 32, numbers.nbytes)
    assert torch.equal(blocks.read(stored, narrow=True), numbers)


def test_a_file_that_has_shrunk_is_refused(tmp_path: Path) -> None:
    stored = written(tmp_path / "a", Kind.Q8_0)
    (tmp_path / "a").write_bytes(b"\0" * 9000)
    with pytest.raises(ForetokenError, match="is shorter than when it was opened"):
        blocks.read(stored, narrow=True)


@pytest.mark.parametrize(("values", "format"), [(33, 3), (32, 7), (32, -1), (64, 3)])
def test_the_loops_check_sizes_themselves(values: int, format: int) -> None:
    if (loops := kernels.library()) is None:
        pytest.skip("the loops are compiled")
    data, numbers = np.zeros(34, np.uint8), torch.full((64,), 7.0)
    done = loops.dequantise(data.ctypes.data, 34, numbers.data_ptr(), values, format, 0, 1)
    assert done == -1 and (numbers == 7).all()


@pytest.mark.skipif(kernels.library() is None, reason="no loop was built")
@pytest.mark.parametrize("name", KINDS)
def test_rows_that_stay_in_their_file(name: str, tmp_path: Path) -> None:
    """As those of all its bytes, also where another file has taken the name; none that isn't
    there, and no zeros for what was cut off."""
    path = tmp_path / "a.gguf"
    stored = written(path, Kind[name])
    lying = blocks.StoredBlocks(stored)
    whole = Blocks(blocks.raw(stored), name, stored.shape[1])
    assert torch.equal(lying.data, whole.data)
    rows = torch.tensor([[1, 0], [len(whole) - 1, 1]])
    expected = whole(rows)
    assert torch.equal(lying(rows), expected) and lying(torch.empty(0).long()).shape[0] == 0
    for wrong in (len(whole), -1):
        with pytest.raises(IndexError):
            lying(torch.tensor([wrong]))
    other = tmp_path / "other.gguf"
    other.write_bytes(bytes(path.stat().st_size))
    kept = path.with_name("kept")
    path.rename(kept)
    other.rename(path)
    assert torch.equal(lying(rows), expected)
    with kept.open("r+b") as file:
        file.truncate(stored.start)
    with pytest.raises(ForetokenError, match="shorter than when it was opened"):
        lying(rows)
