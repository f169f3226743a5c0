"""Narrow weights on a GPU, by torchao."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

from foretoken.errors import ForetokenError
from foretoken.models.native.backends import weight_only


def test_weight_only_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install, in one sentence."""
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ForetokenError, match=r"'int4' on a GPU needs torchao.*foretoken\[quant\]"):
        weight_only.int4(torch.zeros(8, 128))


def test_weight_only() -> None:
    """torchao's int8 keeps a matrix to a per cent."""
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    weight, x = torch.randn(64, 128).bfloat16(), torch.randn(3, 128).bfloat16()
    held = weight_only.int8(weight)
    with torch.inference_mode():
        got, wanted = F.linear(x, held).float(), x.float() @ weight.float().t()
    assert (got - wanted).norm() < 0.01 * wanted.norm()
