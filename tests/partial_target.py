"""Parts of a target as models, and sequences that its cache already contains."""

from __future__ import annotations

from typing import Any

import torch

from foretoken import SamplingParams
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import native
from foretoken.testing.models import Pair

LAYERS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def begun(target: ModelTarget, *texts: list[int]) -> list[Sequence]:
    sequences = [Sequence.start(text, GREEDY) for text in texts]
    for sequence in sequences:
        target.begin(sequence)
        while target.pending(sequence):
            target.prefill([sequence], 64)
    return sequences


def without(pair: Pair, layers: list[int]) -> Any:
    """The native model without these layers."""
    import copy

    model = copy.deepcopy(pair.transformers)
    kept = [layer for i, layer in enumerate(model.model.layers) if i not in layers]
    for place, layer in enumerate(kept):
        layer.self_attn.layer_idx = place
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    model.config.layer_types = None
    return native(model)
