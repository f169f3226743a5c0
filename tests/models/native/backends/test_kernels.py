"""The compiled loops: built for other registers, cached, and done without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.native import backends
from foretoken.models.native.backends import kernels, packed, panels
from linear_layers import CPU

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, from which nothing has been loaded."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    kernels.library.cache_clear()
    yield tmp_path
    kernels.library.cache_clear()


@pytest.mark.parametrize("lanes", [4, 16])
@needs_compiler
def test_panels_of_other_widths(lanes: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for CPUs with narrower or wider registers than this one's; and it is kept."""
    monkeypatch.setattr(kernels, "_FLAGS", (*kernels._FLAGS, f"-DLANES={lanes}"))
    loops = kernels.library()
    assert loops is not None and loops.width() == 2 * lanes
    weight, x = torch.randn(971, 100), torch.randn(9, 100)
    assert torch.allclose(panels.make(weight, None)(x), x @ weight.t(), atol=1e-4)
    [built] = (cache / "kernels").iterdir()
    stamp = built.stat().st_mtime_ns
    kernels.library.cache_clear()
    assert kernels.library() is not None and built.stat().st_mtime_ns == stamp


_LOAD = """
from foretoken.models.native.backends import kernels
assert kernels.library().width() > 0
"""


@needs_compiler
def test_a_damaged_file_is_built_again(cache: Path) -> None:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loops serve all the same, and the sentence names the file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file"))
    kernels.library.cache_clear()
    try:
        loops = kernels.library()
        assert loops is not None and loops.width() > 0
        assert str(tmp_path / "file") in caplog.text and "at every start" in caplog.text
    finally:
        kernels.library.cache_clear()


@needs_compiler
def test_a_compiler_that_fails(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "_FLAGS", ("--no-such-flag",))
    assert kernels.library() is None
    assert "can't be built by g++ (" in caplog.text and "--no-such-flag" in caplog.text


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
