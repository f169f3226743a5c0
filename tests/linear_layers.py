"""What tests of the ways to run a linear layer share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foretoken.models.native import backends
from foretoken.models.native.backends import kernels
from foretoken.models.native.layer import Linear
from shared_folder import shared_folder

CPU = torch.device("cpu")


EXACT = ("plain", "packed", "packed+plain", "half", "panels")


def needs(name: str) -> pytest.MarkDecorator:
    there = backends.MODULES[name].supports(torch.float32, CPU)
    return pytest.mark.skipif(not there, reason=f"this machine can't run {name!r}")


def each(*names: str) -> pytest.MarkDecorator:
    params = [pytest.param(name, marks=needs(name)) for name in names]
    return pytest.mark.parametrize("name", params)


def made(name: str, weight: Tensor, bias: Tensor | None = None) -> Linear:
    return backends.choose(name, torch.float32, CPU)[1](weight.clone(), bias)


def is_there(name: str) -> bool:
    return bool(backends.MODULES[name].supports(torch.float32, CPU))


PATHS = [
    ("-march=x86-64-v3", "-mtune=znver2"),
    pytest.param(("-march=x86-64-v3", "-mavxvnni"), marks=pytest.mark.slow),
    pytest.param(("-march=x86-64-v4",), marks=pytest.mark.slow),
    pytest.param(("-march=x86-64-v4", "-DLANES=8"), marks=pytest.mark.slow),
]
"""Flags that the loops are built with for other CPUs. Tuned for Zen 2, g++ fuses products with
their sums in some loops only."""


@contextmanager
def loops_for(flags: tuple[str, ...], folder: pytest.TempPathFactory) -> Iterator[None]:
    """The loops built with these flags too, by one process at a time, and kept as the others are;
    skips where this CPU can't run them."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    if not _needed(flags) <= _present():
        pytest.skip(f"this CPU doesn't have {' '.join(flags)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_FLAGS", (*kernels._FLAGS, *flags))
        kernels.library.cache_clear()
        with shared_folder(folder, "loops"):
            kernels.library()
        try:
            yield
        finally:
            kernels.library.cache_clear()


def _needed(flags: tuple[str, ...]) -> set[str]:
    wide = {"avx512f", "avx512bw", "avx512vl"}
    names = {"-march=x86-64-v3": {"avx2"}, "-mavxvnni": {"avx_vnni"}, "-march=x86-64-v4": wide}
    return {name for flag in flags for name in names.get(flag, set())}


def _present() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
