"""The compiled loops: built for other registers, cached, and done without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.native import backends
from foretoken.models.native.backends import kernels, packed, panels
from linear_layers import CPU

QUICKLY = tuple(flag.replace("-O3", "-O0") for flag in kernels._FLAGS)
"""Flags with which a build takes a fifth of the time, where its speed doesn't matter."""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, from which nothing has been loaded."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    kernels.library.cache_clear()
    yield tmp_path
    kernels.library.cache_clear()


@pytest.fixture(scope="module")
def quickly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a compiler that links what the real one has compiled already; for tests of what
    is done with a build."""
    folder = tmp_path_factory.mktemp("compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_FLAGS", QUICKLY)
        kernels._built("g++", folder)
    compiler = folder / "g++"
    compiler.write_text(f'#!/bin/sh\nfor out; do :; done\ncp "{folder}/$(basename $out)" "$out"\n')
    compiler.chmod(0o755)
    return folder


@pytest.fixture
def compiled(quickly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That compiler comes first, for child processes too."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f"{quickly}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("lanes", [4, 16])
@needs_compiler
def test_panels_of_other_widths(lanes: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for CPUs with narrower or wider registers than this one's; and it is kept."""
    monkeypatch.setattr(kernels, "_FLAGS", (*QUICKLY, f"-DLANES={lanes}"))
    loops = kernels.library()
    assert loops is not None and loops.width() == 2 * lanes
    weight, x = torch.randn(971, 100), torch.randn(9, 100)
    assert torch.allclose(panels.make(weight, None)(x), x @ weight.t(), atol=1e-4)
    [built] = (cache / "kernels").iterdir()
    stamp = built.stat().st_mtime_ns
    kernels.library.cache_clear()
    assert kernels.library() is not None and built.stat().st_mtime_ns == stamp


_LOAD = f"""
from foretoken.models.native.backends import kernels
kernels._FLAGS = {QUICKLY}
assert kernels.library().width() > 0
"""


@needs_compiler
def test_a_damaged_file_is_built_again(cache: Path, compiled: None) -> None:
    """In processes of their own: loading half a file ends one."""

    def load() -> str:
        done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert load() == ""
    [built] = (cache / "kernels").iterdir()
    whole = built.read_bytes()
    os.truncate(built, len(whole) // 2)
    assert f"{built} is damaged; it is built again." in load()
    assert built.read_bytes() == whole and load() == ""


@needs_compiler
def test_no_cache_folder_can_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compiled: None,
) -> None:
    """The loops serve all the same, and the sentence names the file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(kernels, "_FLAGS", QUICKLY)
    kernels.library.cache_clear()
    try:
        loops = kernels.library()
        assert loops is not None and loops.width() > 0
        assert str(tmp_path / "file") in caplog.text and "at every start" in caplog.text
    finally:
        kernels.library.cache_clear()


def test_a_cache_folder_that_cannot_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loops are built all the same."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / ("x" * 300)))
    (tmp_path / "built.so").write_text("loops")
    monkeypatch.setattr(kernels, "_built", lambda compiler, folder: tmp_path / "built.so")
    with kernels._shared_object("g++") as file:
        assert file.read_text() == "loops"
    assert "at every start" in caplog.text


@needs_compiler
def test_a_compiler_that_fails(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "_FLAGS", ("--no-such-flag",))
    assert kernels.library() is None
    assert "can't be built by g++ (" in caplog.text and "--no-such-flag" in caplog.text


@needs_compiler
def test_a_compiler_whose_loops_do_not_load(
    cache: Path,
    compiled: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Another one serves, whatever $CXX names."""
    named = tmp_path / "other++"
    named.write_text('#!/bin/sh\nfor out; do :; done\necho nothing > "$out"\n')
    named.chmod(0o755)
    monkeypatch.setenv("CXX", str(named))
    assert kernels.library() is not None
    assert f"can't be built by {named}" in caplog.text


@pytest.mark.parametrize(("tiles", "says"), [(-1, True), (0, False), (1, False)])
def test_tiles_that_are_not_permitted_are_said(
    tiles: int, says: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And only those: a CPU without them is no news."""
    kernels._asked(SimpleNamespace(tiles=lambda: tiles))  # type: ignore[arg-type]
    assert ("doesn't let this process use the CPU's matrix tiles" in caplog.text) == says


def test_without_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, it is refused with what it needs; not asked for, another serves."""
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    with pytest.raises(ForetokenError, match=r"'panels' needs .* C\+\+ compiler"):
        backends.choose("panels", torch.float32, CPU)
    expected = "packed" if packed.supports(torch.float32, CPU) else "plain"
    assert backends.choose("auto", torch.float32, CPU)[0] == expected


def test_small_matrices_are_packed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert (kernels.packers(10**6), kernels.packers(10**7)) == (1, 7)


HALVES = """
#include <stdio.h>

#include "vectors.h"

int main() {
  const uint16_t some[] = {0x7e00, 0xfe00, 0x7c00, 0xfc00, 0x3c00, 0x8001, 0x7bff, 0};
  for (uint16_t one : some) {
    uint16_t copies[LANES];
    for (uint16_t &copy : copies) copy = one;
    printf("%g ", loaded(copies)[LANES - 1]);
  }
}
"""


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs flags of an x86 CPU")
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
def test_numbers_that_are_none(march: str, tmp_path: Path) -> None:
    """NaN and infinity in float16 stay what they are, also where the CPU has no instruction for
    it."""
    if march != "x86-64" and "f16c" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no such instruction")
    source, program = tmp_path / "halves.cpp", str(tmp_path / "halves")
    source.write_text(HALVES)
    flags = (f"-march={march}", "-I", str(kernels._SOURCE.parent))
    subprocess.run(["g++", *flags, str(source), "-o", program], check=True)
    shown = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["nan", "-nan", "inf", "-inf", "1", "-5.96046e-08", "65504", "0"]


ON_ARM = """
#include <stdio.h>
#include <stdlib.h>

#include "kernels.cpp"

int main() {
  unsigned state = 1;
  auto next = [&] { return (state = state * 1664525 + 1013904223) >> 8; };
  const long N = 70, K = 131, M = 9, panels = (N + WIDTH - 1) / WIDTH;
  std::vector<float> w(N * K), x(M * K), laid(panels * WIDTH * K), y(M * panels * WIDTH);
  for (float &one : w) one = next() * 0x1p-24f - 0.5f;
  for (float &one : x) one = next() * 0x1p-24f - 0.5f;
  pack(w.data(), laid.data(), N, K, 4, 1);
  Matrix m = {laid.data(), 0, 0, 0, panels * WIDTH, K, panels * WIDTH, 1, FLOAT32};
  for (long rows = 1; rows <= M; rows++) {
    linear(x.data(), &m, y.data(), rows, 1);
    fwrite(y.data(), 4, rows * panels * WIDTH, stdout);
  }
  for (int format = 0; format < MANY_FORMATS; format++) {
    std::vector<uint8_t> blocks(5 * FORMATS[format].bytes);
    for (uint8_t &one : blocks) one = next() & 0x3b;
    std::vector<float> numbers(5 * FORMATS[format].values);
    std::vector<uint16_t> narrow(numbers.size());
    dequantise(blocks.data(), blocks.size(), numbers.data(), numbers.size(), format, 0, 1);
    dequantise(blocks.data(), blocks.size(), narrow.data(), narrow.size(), format, 1, 1);
    fwrite(numbers.data(), 4, numbers.size(), stdout);
    fwrite(narrow.data(), 2, narrow.size(), stdout);
  }
}
"""
"""Prints the bits of products and of numbers in blocks, the same on every CPU with registers of
`LANES` numbers or of fewer."""


def test_an_arm_cpu_gives_the_same_bits(tmp_path: Path) -> None:
    """float32 products of 1 to 9 rows and dequantised blocks, under an emulator; blocks aren't
    multiplied there."""
    tools = ("g++", "aarch64-linux-gnu-g++", "qemu-aarch64")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"there is no {missing[0]}")
    if platform.machine() != "x86_64" or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU isn't one to compare with")
    source = tmp_path / "arm.cpp"
    source.write_text(ON_ARM)

    def printed(compiler: str, flag: str, *run: str) -> bytes:
        program = str(tmp_path / compiler)
        flags = ("-O3", "-fopenmp", "-static", flag, "-I", str(kernels._SOURCE.parent))
        subprocess.run([compiler, *flags, str(source), "-o", program], check=True)
        return subprocess.run([*run, program], check=True, capture_output=True).stdout

    here = printed("g++", "-march=x86-64-v3")
    there = printed("aarch64-linux-gnu-g++", "-march=armv8.2-a+dotprod", "qemu-aarch64")
    assert len(here) > 10_000 and there == here
