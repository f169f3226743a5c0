"""The compiled loops: built for other registers, cached, and done without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.native import backends
from foretoken.models.native.backends import kernels, packed, panels
from linear_layers import CPU


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_panels_of_other_widths(
    lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel for CPUs with narrower or wider registers than this one's; and it is kept."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_FLAGS", (*kernels._FLAGS, f"-DLANES={lanes}"))
    kernels.library.cache_clear()
    try:
        loops = kernels.library()
        assert loops is not None and loops.width() == 2 * lanes
        weight, x = torch.randn(971, 100), torch.randn(9, 100)
        assert torch.allclose(panels.make(weight, None)(x), x @ weight.t(), atol=1e-4)
        [built] = (tmp_path / "kernels").iterdir()
        stamp = built.stat().st_mtime_ns
        kernels.library.cache_clear()
        assert kernels.library() is not None and built.stat().st_mtime_ns == stamp
    finally:
        kernels.library.cache_clear()


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, it is refused with what it needs; not asked for, another serves."""
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    kernels.library.cache_clear()
    try:
        with pytest.raises(ForetokenError, match=r"'panels' needs .* C\+\+ compiler"):
            backends.choose("panels", torch.float32, CPU)
        expected = "packed" if packed.supports(torch.float32, CPU) else "plain"
        assert backends.choose("auto", torch.float32, CPU)[0] == expected
    finally:
        kernels.library.cache_clear()
