"""Memory for weights: whole, and given back."""

from __future__ import annotations

import mmap
import runpy
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from foretoken.models.native.backends import int8, pages
from linear_layers import needs


@pytest.mark.parametrize("size", [0, 100, 2**16, 3_000_001])
def test_memory_for_weights(size: int) -> None:
    """As torch's own, whatever its size; large pieces go back to the system when they are freed."""
    held = [pages.empty((size,), torch.float16).fill_(i) for i in range(3)]
    for i, tensor in enumerate(held):
        assert tensor.shape == (size,) and tensor.dtype == torch.float16
        assert bool((tensor == i).all())
    assert pages.empty((4, 5), torch.float64).shape == (4, 5)


def test_small_matrices_share_large_pages() -> None:
    """Pieces lie side by side, none over another, each on a cache line."""
    with pages.together():
        held = [pages.empty((2**16 + n,), torch.uint8).fill_(n) for n in range(200)]
    assert all(bool((piece == n).all()) for n, piece in enumerate(held))
    places = [piece.data_ptr() for piece in held]
    assert all(place % 64 == 0 for place in places)
    assert [b - a for a, b in pairwise(places)] == [2**16 + n + -n % 64 for n in range(199)]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux says what is in use")
def test_shared_pages_go_back_when_the_last_piece_does() -> None:
    before = _resident()
    with pages.together():
        held = [pages.empty((2**20,), torch.uint8).fill_(1) for _ in range(128)]
    assert _resident() - before > 100 * 2**20
    del held
    assert _resident() - before < 8 * 2**20


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux says what is in use")
def test_freed_memory_leaves_no_holes() -> None:
    """Packing keeps some and frees the rest, layer after layer."""
    before, size, kept = _resident(), 2**22, []
    for _ in range(20):
        freed = [pages.empty((size + i,), torch.uint8).fill_(1) for i in range(4)]
        kept.append(pages.empty((size,), torch.uint8).fill_(1))
        kept.append(torch.ones(1000))  # of what the allocator keeps in its holes
        del freed
    assert _resident() - before < 20 * size * 1.2


@needs("int8")
@pytest.mark.parametrize("size", [(2048, 1024), (2047, 1023)])  # whole panels, and filled up
def test_making_int8_weights_leaves_no_holes(size: tuple[int, int]) -> None:
    """Of the allocator's memory it takes but small pieces: where a part of the weights lay, scales
    would lie next, and no later part would fit there."""
    weight = torch.randn(size)
    with profile(profile_memory=True) as seen:
        int8.make(weight, None)
    taken = [event.self_cpu_memory_usage for event in seen.events() or ()]
    assert 0 < max(taken) < weight.numel() / 16


def test_what_is_let_go_serves_again() -> None:
    with pages.reusing():
        first = pages.passing((2**18,), torch.float16)
        place, part = first.data_ptr(), first[:5]
        second = pages.passing((2**18,), torch.float16)
        assert second.data_ptr() != place
        del first  # a part of it is still in use
        assert pages.passing((2**18,), torch.float16).data_ptr() != place
        del part
        again = pages.passing((2**16, 3), torch.float16)
        assert again.data_ptr() == place and again.shape == (2**16, 3)
        assert pages.passing((2**20,), torch.float16).data_ptr() != place  # too small for that
        assert pages.passing((2**16,), torch.float16).data_ptr() != place  # and too large for this
    assert again.fill_(3).sum() == 3 * 2**16 * 3  # what is in use stays
    pages.passing((2**18,), torch.float16).fill_(7)  # and nothing is kept from here on
    other = pages.passing((2**18,), torch.float16)
    assert not other.any() and other.data_ptr() != again.data_ptr()


def test_a_small_piece_leaves_a_large_map_alone() -> None:
    """It would keep far more of memory than it has use for."""
    with pages.reusing():
        large = pages.passing((2**20,), torch.float16)
        place = large.data_ptr()
        del large
        small = pages.passing((2**16,), torch.float16)
        assert pages.passing((2**20,), torch.float16).data_ptr() == place != small.data_ptr()


def _resident() -> int:
    """Bytes."""
    [line] = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) * 1024


def test_what_a_tensor_has_is_not_given_again() -> None:
    """However many others refer to it, and whatever Python counts; let go, it is."""
    with pages.reusing():
        first = pages.passing((300, 300), torch.float32).fill_(1)
        second = pages.passing((300, 300), torch.float32).fill_(2)
        assert first.data_ptr() != second.data_ptr() and bool((first == 1).all())
        place = second.data_ptr()
        del second
        assert pages.passing((300, 300), torch.float32).data_ptr() == place


def test_where_there_are_no_such_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows `mmap` has none of the flags: the file is imported, and memory is torch's."""
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    monkeypatch.delattr(mmap, "MAP_ANONYMOUS")
    made = runpy.run_path(pages.__file__)
    monkeypatch.setattr(sys, "platform", "win32")
    for give in ("empty", "passing"):
        assert made[give]((2**17,), torch.uint8).fill_(1).sum() == 2**17
