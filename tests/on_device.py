"""Models on the device of the tests in gpu/, beside the same ones on the CPU.

FORETOKEN_TEST_DEVICE=cpu runs these tests where there is no GPU.
"""

from __future__ import annotations

import os
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch

from foretoken.models.model import CausalLM
from foretoken.models.native.build import build_native
from foretoken.testing import Pair, related, tiny_transformers

DEVICE = torch.device(os.environ.get("FORETOKEN_TEST_DEVICE", "cuda"))
ON_GPU = DEVICE.type == "cuda"

NEAR = 1e-4
"""How near logits are on two devices in float64: norms are float32 inside."""

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="there is no GPU"),
]
"""The `pytestmark` of these files."""

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="the device of these tests is no GPU")


def native_there(model: Any) -> CausalLM:
    """The native model on the device, with the weights of a transformers model."""
    weights = model.state_dict().__getitem__
    return build_native(model.config, weights, model.dtype, DEVICE, "plain")


@cache
def pair_there() -> Pair:
    """`tiny_pair` on the device; what needs a transformers model makes the same one itself."""
    model = tiny_transformers()
    return Pair(native_there(model), native_there(related(model, 0.02)))


def moved(options: dict[str, Any]) -> dict[str, Any]:
    """A drafter's options, with copies on the device of the modules of torch among them."""
    return {
        name: deepcopy(value).to(DEVICE) if isinstance(value, torch.nn.Module) else value
        for name, value in options.items()
    }
