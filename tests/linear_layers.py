"""What tests of the ways to run a linear layer share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretoken.models.native import backends
from foretoken.models.native.layer import Linear

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
