"""Memory that is taken when it is written, and given back when it is cleared."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import pytest
import torch

from foretoken.models.memory import PAGE, Memory

CPU = torch.device("cpu")
MIB = 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_what_is_written_takes_memory() -> None:
    """A terabyte of addresses costs nothing; 32 MiB that are written cost 32 MiB, until they are
    cleared, and are zeros then."""
    memory = Memory(2**40, CPU)
    if not memory.lazy:
        pytest.skip("this system backs memory at once")
    before = resident()
    start = 2**39
    memory.data[start : start + 32 * MIB] = 1
    assert 31 * MIB < resident() - before < 40 * MIB
    assert memory.data[start - 1] == 0 and memory.data[-1] == 0
    memory.clear(start + 16 * MIB, start + 32 * MIB)
    assert resident() - before < 24 * MIB
    found = memory.data[start + 16 * MIB - 2 : start + 16 * MIB + 2]
    assert found.tolist() == [1, 1, 0, 0]


def test_without_lazy_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it is all there from the beginning, and is cleared in place."""
    monkeypatch.setattr("sys.platform", "other")
    memory = Memory(8 * PAGE, CPU)
    memory.data[:] = 1
    memory.clear(PAGE, 2 * PAGE)
    assert not memory.lazy and memory.data.sum() == 7 * PAGE


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no such advice, and has the memory all the same."""
    if not Memory(PAGE, CPU).lazy:
        pytest.skip("this system backs memory at once")

    class Refusing(mmap.mmap):
        def madvise(self, option: int, *where: int) -> None:  # type: ignore[override]
            if option == mmap.MADV_NOHUGEPAGE:
                raise OSError(errno.EINVAL, "Invalid argument")
            super().madvise(option, *where)

    monkeypatch.setattr(mmap, "mmap", Refusing)
    memory = Memory(8 * PAGE, CPU)
    memory.data[:] = 1
    memory.clear(PAGE, 2 * PAGE)
    assert memory.lazy and memory.data.sum() == 7 * PAGE


@pytest.mark.parametrize("size", [2**62, 2**90])
def test_too_many_addresses(size: int) -> None:
    with pytest.raises(MemoryError):
        Memory(size, CPU)
