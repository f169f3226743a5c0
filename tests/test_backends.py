"""How linear layers run: equal to torch, packed once in memory, each row on its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from foretoken.errors import ForetokenError
from foretoken.models import backends
from foretoken.models.backends import half, packed

CPU = torch.device("cpu")
needs_half = pytest.mark.skipif(
    not half.supports(torch.float32, CPU), reason="this torch build has no FBGEMM"
)
needs_packing = pytest.mark.skipif(
    not packed.supports(torch.float32, CPU), reason="this torch build has no oneDNN"
)


served = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name != "plain" and not module.supports(torch.float32, CPU),
                reason=f"this torch build can't run {name!r}",
            ),
        )
        for name, module in (("plain", packed), ("packed", packed), ("half", half))
    ],
)


@served
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_torchs_own_linear(name: str, rows: int, bias: bool) -> None:
    """Every backend computes the same product, up to rounding, for any number of rows."""
    torch.manual_seed(0)
    weight, x = torch.randn(960, 64).half().float(), torch.randn(1, rows, 64)
    offset = torch.randn(960) if bias else None
    _, make = backends.choose(name, torch.float32, CPU)
    expected = F.linear(x, weight, offset)
    with torch.inference_mode():
        got = make(weight.clone(), offset)(x)
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


@served
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    """A row's result is bit-identical whatever stands in the other rows of the pass."""
    torch.manual_seed(0)
    _, make = backends.choose(name, torch.float32, CPU)
    linear = make(torch.randn(960, 64).half().float(), None)
    row = torch.randn(1, 1, 64)
    calm, wild = torch.randn(1, 7, 64), torch.randn(1, 7, 64) * 1e4
    with torch.inference_mode():
        first = linear(torch.cat((row, calm), 1))[:, 0]
        second = linear(torch.cat((row, wild), 1))[:, 0]
    assert torch.equal(first, second)


@needs_half
def test_half_takes_only_what_it_holds_exactly() -> None:
    """A weight between two float16 numbers, or beyond them, stays float32."""
    for value in (1 + 2**-12, 1e6, 2.0**-30):
        weight, x = torch.full((64, 960), value), torch.ones(1, 1, 960)
        with torch.inference_mode():
            assert torch.allclose(half.make(weight, None)(x), x @ weight.t(), rtol=1e-6)


@needs_half
def test_half_keeps_every_bit() -> None:
    """Unit vectors bring back the weights themselves."""
    weight = torch.randn(64, 96).half().float()
    with torch.inference_mode():
        assert torch.equal(half.make(weight.clone(), None)(torch.eye(96)).t(), weight)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("packed", 4, marks=needs_packing),
        pytest.param("half", 2, marks=needs_half),
    ],
)
def test_packing_releases_the_original_weights(name: str, size: int) -> None:
    """The weights are held once: resident memory grows by about one copy, not two."""
    code = (
        f"from foretoken.models.backends import {name} as backend\n"
        + """
import gc, torch
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
torch.set_num_threads(1)
with torch.inference_mode():
    backend.make(torch.ones(64, 64), None)(torch.randn(1, 64))
    before = resident()
    layers = [backend.make(torch.empty(4096, 2048).fill_(0.5), None) for _ in range(8)]
    for layer in layers:
        layer(torch.randn(4, 2048))
    print(resident() - before)
"""
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads resident memory from /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown, weights = float(done.stdout), 8 * 4096 * 2048 * size / 2**20
    assert 0.9 * weights < grown < 1.3 * weights


def test_automatic_choice() -> None:
    """float32 on a CPU is packed where that can be done; float64 never is."""
    known = {"plain": True} | {
        name: module.supports(torch.float32, CPU)
        for name, module in (("packed", packed), ("half", half))
    }
    expected = [name for name, there in known.items() if there][-1]
    assert backends.choose("auto", torch.float32, CPU)[0] == expected
    assert backends.choose("auto", torch.float64, CPU)[0] == "plain"


def test_refusals_name_the_remedy() -> None:
    """A backend that is unknown, or that can't take the dtype, is refused in one sentence."""
    with pytest.raises(ForetokenError, match="Did you mean 'packed'"):
        backends.choose("paked", torch.float32, CPU)
    with pytest.raises(ForetokenError, match="backend='plain'"):
        backends.choose("packed", torch.float64, CPU)
