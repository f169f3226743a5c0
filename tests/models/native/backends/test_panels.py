"""The layout that the loops read: what they can not read is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from foretoken.errors import ForetokenError
from foretoken.models.native.backends import kernels, panels
from linear_layers import PATHS, each, is_there, loops_for, made


@each("int8", "panels", "half")
@pytest.mark.parametrize("shape", [(960, 64), (320, 1000), (1056, 100)])
def test_a_row_alone_and_among_64(name: str, shape: tuple[int, int]) -> None:
    """To the last bit, an outlier row beside it or not, for any number of rows and threads."""
    torch.manual_seed(0)
    linear = made(name, torch.randn(*shape).half().float(), torch.randn(shape[0]))
    x = torch.randn(65, shape[1])
    x[5] *= 1e4
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.inference_mode():
            alone = torch.cat([linear(row[None]) for row in x])
            for count, threads in [*((n, 2) for n in (*range(1, 27), 49)), (65, 1), (65, 2)]:
                torch.set_num_threads(threads)
                assert torch.equal(linear(x[:count]), alone[:count])
            assert torch.equal(linear(x[60:]), alone[60:])
    finally:
        torch.set_num_threads(before)


@each("int8", "panels", "half")
def test_no_rows(name: str) -> None:
    """There is no loop for so many, and nothing is divided by their number: either would end the
    process."""
    linear = made(name, torch.randn(160, 12).half().float(), torch.randn(160))
    assert linear(torch.empty(2, 0, 12)).shape == (2, 0, 160)


@each("panels", "half")
@pytest.mark.parametrize("flags", PATHS, ids=" ".join)
def test_other_instructions_give_the_same_bits(
    flags: tuple[str, ...], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Panels of other widths, added up in the same order."""
    torch.manual_seed(0)
    weight, x = torch.randn(323, 300).half().float(), torch.randn(19, 300)
    native = made(name, weight)(x)
    with loops_for(flags, tmp_path_factory):
        for rows in (*range(1, 8), 11, 13, 19):
            assert torch.equal(made(name, weight)(x[:rows]), native[:rows])


@each("panels", "half")
def test_what_a_loop_can_not_read_is_refused(name: str) -> None:
    """Another dtype, another width, and gradients, which it would silently leave out."""
    if not is_there("panels"):
        pytest.skip("no loop was built")
    linear = made(name, torch.ones(64, 32))
    for x in (torch.ones(2, 32).double(), torch.ones(2, 16), torch.ones(2, 32, requires_grad=True)):
        with pytest.raises(ForetokenError, match="use backend='plain'"):
            linear(x)
    with torch.no_grad():
        assert linear(torch.ones(2, 32, requires_grad=True)).sum() == 2 * 64 * 32


@each("panels")
def test_a_bias_of_another_size_is_refused(name: str) -> None:
    """It would be cut, or filled up with zeros."""
    assert made(name, torch.ones(64, 32), torch.ones(64)) is not None
    for size in (63, 65, 1):
        with pytest.raises(ForetokenError, match="takes a bias and scales of as many"):
            panels.Product([panels.floats(torch.ones(64, 32))], torch.ones(size))


@pytest.mark.skipif(kernels.library() is None, reason="no loop was built")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 96])
def test_packing_reorders_rows(outputs: int, dtype: torch.dtype) -> None:
    loops = kernels.library()
    assert loops is not None
    width, weight = loops.width(), torch.randn(outputs, 70).to(dtype)
    panels_ = panels.pack(loops, weight)
    filled = F.pad(weight, (0, 0, 0, -outputs % width))
    assert torch.equal(panels_, filled.view(-1, width, 70).transpose(1, 2))
    columns = torch.randn(70, outputs).to(dtype).t()  # whose rows aren't contiguous
    assert torch.equal(panels.pack(loops, columns), panels.pack(loops, columns.contiguous()))
