"""Rows of cells: what is cleared is zeros and takes no memory, and what is moved is what it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretoken.models.cells import Cells, Run, Stored
from foretoken.models.memory import PAGE

STORED = [Stored(2, 64, None), Stored(1, 16, 40)]
LENGTH = 200


@pytest.fixture(params=["lazy", "whole"])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cells:
    """Two parts of three slots, the second with a window, filled with numbers of their own."""
    if request.param == "whole":
        monkeypatch.setattr("sys.platform", "other")
    cells = Cells(STORED, 3, LENGTH, torch.float32, torch.device("cpu"))
    for number, tensor in enumerate(cells.tensors):
        tensor[:] = torch.arange(1, tensor.numel() + 1).view(tensor.shape) + number
    return cells


def test_the_layout(cells: Cells) -> None:
    """Heads begin on pages; bytes are counted by pages."""
    shapes = [list(tensor.shape) for tensor in cells.tensors]
    assert shapes == [[3, 2, 208, 64], [3, 1, 256, 16]]
    assert cells.step == 64 and cells.row_bytes == 4 * (2 * 208 * 64 + 256 * 16)
    assert cells.bytes == 3 * cells.row_bytes and cells.token_bytes == 4 * (2 * 64 + 16)
    assert cells.page_bytes(17, 1, False) == PAGE * (2 * 2 + 1)
    assert cells.page_bytes(17, 0, True) == PAGE * (2 * 2 + 2 + 1)


@pytest.mark.parametrize("length", [1, 16, 17, 100, 200, 208])
def test_clearing_after_a_length(cells: Cells, length: int) -> None:
    before = kept(cells)
    cells.clear_after(1, length)
    for now, then in zip(cells.tensors, before, strict=True):
        assert torch.equal(now[1, :, :length], then[1, :, :length])
        assert not now[1, :, length:].any()
        assert torch.equal(now[[0, 2]], then[[0, 2]])


def test_clearing_a_slot_and_what_a_window_has_passed(cells: Cells) -> None:
    before = kept(cells)
    cells.clear_passed(0, Run(0, 64))
    cells.clear(2)
    assert torch.equal(cells.tensors[0][:2], before[0][:2])
    assert not cells.tensors[1][0, :, :64].any()
    assert torch.equal(cells.tensors[1][0, :, 64:], before[1][0, :, 64:])
    assert not any(tensor[2].any() for tensor in cells.tensors)


def test_copies_and_exchanges(cells: Cells) -> None:
    """Runs of unlike lengths change places; what is beyond both stays. A window's run starts
    late."""
    before = kept(cells)
    cells.exchange(0, Run(10, 30), 2, Run(0, 5))
    for now, then, start in zip(cells.tensors, before, (0, 10), strict=True):
        assert torch.equal(now[2, :, start:30], then[0, :, start:30])
        assert torch.equal(now[0, :, :5], then[2, :, :5])
        assert torch.equal(now[0, :, 30:], then[0, :, 30:])
        assert torch.equal(now[2, :, 30:], then[2, :, 30:])
        assert torch.equal(now[1], then[1])
    cells.copy(1, 0, Run(3, 7))
    cells.move(1, 9, 11)
    for now, then, start in zip(cells.tensors, before, (0, 3), strict=True):
        assert torch.equal(now[0, :, start:7], then[1, :, start:7])
        assert torch.equal(now[1, :, 11], then[1, :, 9])


@pytest.mark.parametrize("shapes", ["AAB", "ABA", "BAA", "AAA", "ABB"])
def test_parts_of_one_shape_are_as_others(shapes: str) -> None:
    """What is done to neighbours of one shape together is done to each, by numbers or tensors."""
    stored = {"A": Stored(2, 64, None), "B": Stored(1, 16, 40)}
    cells = Cells([stored[x] for x in shapes], 3, LENGTH, torch.float32, torch.device("cpu"))
    for number, tensor in enumerate(cells.tensors):
        tensor[:] = torch.arange(1, tensor.numel() + 1).view(tensor.shape) + number
    before = kept(cells)
    cells.move(1, 9, 3)
    cells.move(*torch.tensor([[0, 20, 5], [0, 21, 6], [2, 9, 7]]).T)
    cells.zero(2, 4)
    cells.clear_after(1, 100)
    for now, then in zip(cells.tensors, before, strict=True):
        then[1, :, 3] = then[1, :, 9]
        then[0, :, 5:7] = then[0, :, 20:22]
        then[2, :, 7] = then[2, :, 9]
        then[2, :, :4] = 0
        then[1, :, 100:] = 0
        assert torch.equal(now, then)


def kept(cells: Cells) -> list[Tensor]:
    return [tensor.clone() for tensor in cells.tensors]
