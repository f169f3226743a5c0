"""Matrices of random blocks, as GGUF files have them."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind

from foretoken.models.native.backends.blocks import ALL, VALUES, Blocks

BYTES = {kind: GGML_QUANT_SIZES[Kind[kind]][1] for kind in ALL if kind != "Q6_0"} | {"Q6_0": 26}
HEADS = {"Q6_K": [208], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2]}
"""Where a block has float16 numbers, if not at its start alone."""


def matrix(kind: str, outputs: int, inputs: int, seed: int = 0) -> Blocks:
    """Any bytes, with scales and minima of a size."""
    values, size = VALUES[kind], BYTES[kind]
    some = np.random.default_rng(seed)
    raw = some.integers(0, 256, (outputs, inputs // values, size), dtype=np.uint8)
    for at in HEADS.get(kind, [0]):
        scales = some.uniform(0.002, 0.02, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    return Blocks(torch.from_numpy(raw.reshape(outputs, -1)), kind, inputs)


def sizes(kind: str) -> list[tuple[int, int]]:
    """Outputs and inputs: of SmolLM2 and of Qwen, and some that fill neither panel nor unit."""
    if VALUES[kind] == 256:
        return [(70, 256), (33, 1536), (64, 2304)]
    return [(70, 32), (33, 576), (64, 928)]
