"""DFlash: a whole block of tokens predicted in one pass from the target's states of the text.

Source: Chen, Liang, Liu 2026 (DFlash), section 3. The places of a block are predicted together, so
a place's distribution doesn't depend on the tokens drafted before it: at temperature 0 the draft is
the chain of likeliest tokens, above it each is drawn from its distribution. Departure: z-lab's code
drafts the likeliest tokens at any temperature, and accepts the target's own sample. Module and its
departures: `foretoken.trainable.block_layers`.
"""

from __future__ import annotations

from typing import ClassVar

from foretoken.drafters.shared.block_chain import BlockChain
from foretoken.trainable.block_layers import BlockModule


class DFlash(BlockChain):
    """Options as `BlockChain` has them."""

    module: ClassVar[type[BlockModule]] = BlockModule
