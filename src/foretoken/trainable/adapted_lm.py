"""A language model whose linear layers are trained by low-rank adapters (LoRA, by PEFT).

Source: Hu et al. 2021 (LoRA); Medusa-2 has them of rank 32 (Cai et al. 2024, section 3). The
checkpoint is an ordinary one, in which the adapters are added to the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.errors.extras import imported
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM

_NAME = "default"


class AdaptedLM(TrainedLM):
    """model: a checkpoint; rank, alpha and dropout: of the adapters of all linear layers but the
    head. Raises `ForetokenError` where PEFT isn't installed."""

    method: ClassVar[str] = "sps"

    def __init__(
        self, facts: Facts, model: str, rank: int, alpha: float = 16.0, dropout: float = 0.05
    ) -> None:
        super().__init__(facts, model=model)
        self.shape |= {"rank": rank, "alpha": alpha, "dropout": dropout}
        peft = imported("peft", "train", "Adapters need")
        config = peft.LoraConfig(
            r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear"
        )
        peft.inject_adapter_in_model(config, self.lm, _NAME)

    @property
    def _adapters(self) -> dict[str, Any]:
        """The adapted layers by their names."""
        from peft.tuners.lora import LoraLayer

        layers = self.lm.named_modules()
        return {name: layer for name, layer in layers if isinstance(layer, LoraLayer)}

    def checkpoint_state(self) -> dict[str, Tensor]:
        """With the adapters added to the weights."""
        state = self.lm.state_dict()
        for name, layer in self._adapters.items():
            with torch.no_grad():
                state[f"{name}.base_layer.weight"] = state[
                    f"{name}.base_layer.weight"
                ] + layer.get_delta_weight(_NAME)
        named = {name.replace(".base_layer.", "."): weight for name, weight in state.items()}
        return {name: weight for name, weight in named.items() if ".lora_" not in name}

    def read_weights(self, folder: Path) -> None:
        """Into the weights; the adapters add nothing from then on."""
        plain = TrainedLM(self.facts, model=str(folder))
        adapters = self._adapters
        for adapted in adapters.values():
            torch.nn.init.zeros_(adapted.lora_B[_NAME].weight)
        own = self.lm.state_dict()
        for name, weight in plain.lm.state_dict().items():
            layer, _, end = name.rpartition(".")
            own[f"{layer}.base_layer.{end}" if layer in adapters else name].copy_(weight)
