"""int8 and int4 weights on a GPU, by torchao: activations keep their dtype.

A pass over few tokens takes the time that its weights take to arrive, so narrow weights alone are
what counts there. A row's result depends on that row alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from foretoken.errors.extras import imported

GROUP = 128  # int4: inputs that share a scale


def int8(weight: Tensor) -> Tensor:
    """[out, in] with one scale an output channel, for `F.linear`."""
    ao = _torchao("int8")
    return _quantized(ao, weight, ao.Int8WeightOnlyConfig(set_inductor_config=False))


def int4(weight: Tensor) -> Tensor:
    """[out, in] with a scale and a zero point a group of `GROUP` inputs, for `F.linear`."""
    ao = _torchao("int4")
    config = ao.Int4WeightOnlyConfig(
        group_size=GROUP, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )
    return _quantized(ao, weight, config)


def _quantized(ao: Any, weight: Tensor, config: Any) -> Tensor:
    module = nn.Linear(1, 1, bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    ao.quantize_(module, config)
    return module.weight


def _torchao(name: str) -> Any:
    return imported("torchao.quantization", "quant", f"Backend {name!r} on a GPU needs")
