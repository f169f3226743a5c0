"""The machine's names, and the one folder for what may be lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from foretoken import machine
from foretoken.machine import cache_folder, cores, features, processor, return_memory


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FORETOKEN_CACHE itself, else a folder under XDG_CACHE_HOME, else one under the home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("FORETOKEN_CACHE", "~/mine")  # as a file of variables has it
    assert cache_folder() == tmp_path / "home" / "mine"
    monkeypatch.setenv("FORETOKEN_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "foretoken"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "foretoken"


def test_processor_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some name, and at least the core that this runs on: those that the process may use."""
    assert processor().strip()
    assert cores() >= 1
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 6}, raising=False)
    assert cores() == 3


def test_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first processor's line the vector instructions, of x86 and of Arm; else none."""
    for text, names in (
        ("processor: 0\nflags\t\t: fpu sse4_2 avx2 avx512f amx_int8 lm\nflags: avx2", 4),
        ("Features\t: fp asimd sve2 crc32\n", 2),
        ("processor: 0\n", 0),
    ):
        monkeypatch.setattr(Path, "read_text", lambda self, text=text: text)
        assert len(features()) == names
        assert {"fpu", "lm", "fp", "crc32"}.isdisjoint(features())

    def nothing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", nothing)
    assert features() == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_returned() -> None:
    """What lies under a small thing that stays is the system's again."""
    torch.zeros(8 << 20)  # 32 MiB at once: so large blocks are not the system's own from here on
    blocks = [torch.ones(1 << 18) for _ in range(64)]  # 1 MiB each
    kept = [block for place, block in enumerate(blocks) if place % 8 == 7]
    del blocks
    before = resident()
    return_memory()
    assert kept and resident() < before - 0.7 * 56 * 2**20


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_free_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the system has available, or what a control group has left, cached files included."""
    files = {"max": "1000000\n", "now": "900000\n", "stat": "anon 5\ninactive_file 50000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    free = machine.free_memory()
    assert 2**20 < free < 2**50
    group = tuple(str(tmp_path / name) for name in files)
    monkeypatch.setattr(machine, "_GROUPS", (group, ("/none", "/none", "/none")))
    assert machine.free_memory() == 150_000
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "info").write_text("MemTotal: 9 kB\nMemAvailable:   70 kB\n")
    field = machine._field
    monkeypatch.setattr(machine, "_field", lambda file, *rest: field(str(tmp_path / "info"), *rest))
    assert machine.free_memory() == 70 * 1024
    monkeypatch.setattr(machine, "_field", field)
    (tmp_path / "max").write_text("1000\n")
    assert machine.free_memory() == 1  # more is taken than allowed: a budget is never empty
