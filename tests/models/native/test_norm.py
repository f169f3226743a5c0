"""RMSNorm in every form against the equation."""

from __future__ import annotations

import pytest
import torch

from foretoken.models.native import norm

EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equals_the_equation(dtype: torch.dtype) -> None:
    """x · weight / sqrt(mean(x²) + eps); float64 models are normed in float32."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 24).to(dtype), torch.randn(24).to(dtype)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt()
    got = norm.make(weight, EPS)(x)
    assert got.dtype == dtype
    near = 2e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(got.double(), expected * weight.double(), rtol=near, atol=near)


def test_small_numbers_are_not_blown_up() -> None:
    """eps keeps a row of zeros at zero, and a tiny row tiny."""
    fast = norm.make(torch.ones(8), EPS)
    assert isinstance(fast, norm.Fast)
    assert torch.equal(fast(torch.zeros(1, 8)), torch.zeros(1, 8))
    assert fast(torch.full((1, 8), 1e-6)).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_weight_around_one(dtype: torch.dtype) -> None:
    """What is stored is the distance from one; all in float32, rounded once at the end."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    torch.manual_seed(0)
    x, stored = torch.randn(2, 3, 24).to(dtype), (torch.randn(24) / 50).to(dtype)
    theirs = Gemma3RMSNorm(24, EPS)
    theirs.weight.data = stored
    got = norm.around_one(stored, EPS, dtype)(x)
    assert got.dtype == dtype
    near = 1e-6 if dtype == torch.float32 else 0
    torch.testing.assert_close(got, theirs(x), rtol=near, atol=near)
