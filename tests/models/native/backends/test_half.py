"""Weights stored as float16: taken where that loses no bit, and only there."""

from __future__ import annotations

import pytest
import torch

from foretoken.models.native.backends import half
from linear_layers import needs


@needs("half")
def test_half_takes_only_what_it_holds_exactly() -> None:
    """A matrix whose numbers lie too close together, or too far apart, stays float32."""
    for values in ((1 + 2**-12, 1.0), (1e6, 1 + 2**-8), (2.0**-40, 1.0)):
        weight, x = torch.tensor(values).repeat(64, 480), torch.ones(1, 1, 960)
        assert not half.is_exact(weight)
        with torch.inference_mode():
            assert torch.allclose(half.make(weight, None)(x), x @ weight.t(), rtol=1e-6)


@needs("half")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_half_keeps_every_bit(dtype: torch.dtype, bias: bool) -> None:
    """Unit vectors bring back the weights themselves, bfloat16's small and large ones too."""
    torch.manual_seed(0)
    weight = (torch.randn(64, 96) * 0.02).to(dtype).float()
    if dtype == torch.bfloat16:
        weight[0, :3] = torch.tensor([2.0**-24, 1.0078125 * 2.0**-20, 0.8984375])
    offset = torch.zeros(64) if bias else None
    assert half.is_exact(weight)
    with torch.inference_mode():
        assert torch.equal(half.make(weight.clone(), offset)(torch.eye(96)).t(), weight)


@needs("half")
def test_float16_weights_are_kept() -> None:
    """Without a copy in float32; those with an infinite number become float32."""
    torch.manual_seed(0)
    weight, x = torch.randn(960, 64).half(), torch.randn(3, 64)
    assert torch.equal(half.make(weight.clone(), None)(x), half.make(weight.float(), None)(x))
    weight[5, 5] = torch.inf
    assert half.make(weight, None)(x)[:, 5].isinf().all()
