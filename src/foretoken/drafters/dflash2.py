"""DFlash 2: a block in one pass, whose tokens are chosen each by the one before it.

Source: DFlash 2 (Inco AI and z-lab 2026). At temperature 0 the draft is the chain of best scored
candidates, above it each token is drawn from its candidates' scores after the token before it, by
the request's own temperature. Module and departures: `foretoken.trainable.selected_blocks`.
"""

from __future__ import annotations

from typing import ClassVar

from foretoken.drafters.shared.block_chain import BlockChain
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.selected_blocks import SelectedModule


class DFlash2(BlockChain):
    """Options as `BlockChain` has them."""

    module: ClassVar[type[BlockModule]] = SelectedModule
