"""EAGLE-3: a layer on states from three depths of the target, trained on its own outputs.

Source: Li et al. 2025 (EAGLE-3), section 3. Drafts are EAGLE-2's trees. Module, training and
departures: `foretoken.trainable.eagle3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from foretoken.access import Access, Wants
from foretoken.drafters.shared.feature_trees import GrownTree
from foretoken.trainable.checkpoint import Trained, read_config
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.trainable.formats import find


@dataclass(eq=False)
class Eagle3(GrownTree):
    """Options: see `GrownTree`."""

    module: ClassVar[type[Trained]] = Eagle3Module

    def __post_init__(self) -> None:
        super().__post_init__()
        loaded = isinstance(self.model, Eagle3Module)
        self._request(self.model.shape if loaded else read_config(find(self.model))["shape"])

    def bind(self, access: Access) -> None:
        super().bind(access)
        self._request(self._module.shape)

    def _request(self, shape: Mapping[str, Any]) -> None:
        """Request the captured layers' states; in some checkpoints they follow from the target's
        depth, and are known after `bind` only."""
        self.wants = Wants("bcd", tuple(dict.fromkeys(shape.get("capture", (-1,)))))
