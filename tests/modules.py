"""Modules of DFlash, DFlash 2 and GliDe for a tiny target, new and trained on its own texts."""

from __future__ import annotations

from typing import Any

import torch

from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.records import Records
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.cross_attention import CrossAttentionModule
from foretoken.trainable.losses import Objective
from foretoken.trainable.selected_blocks import SelectedModule
from lessons import taught

SHAPE: dict[str, Any] = dict(num_layers=2, block_size=5, heads=2, kv_heads=1)


def block_module(pair: Pair, **shape: Any) -> BlockModule:
    """DFlash's, with weights from a seed."""
    torch.manual_seed(3)
    return BlockModule(Facts.of(pair.target), **{**SHAPE, **shape}).double().eval()


def selected_module(pair: Pair, **shape: Any) -> SelectedModule:
    """DFlash 2's, with weights from a seed, none of which leaves it without effect."""
    torch.manual_seed(3)
    given = {**SHAPE, "conv_group_size": 8, "selector_rank": 4, "selector_top_k": 6, **shape}
    module = SelectedModule(Facts.of(pair.target), **given).double().eval()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "conv" in name or "selector" in name:
                weight.add_(0.3 * torch.randn_like(weight))
    return module


def glimpse_module(pair: Pair, **shape: Any) -> CrossAttentionModule:
    """GliDe's, with weights from a seed."""
    torch.manual_seed(3)
    return CrossAttentionModule(Facts.of(pair.target), heads=2, kv_heads=1, **shape).double().eval()


def learned_block_module(pair: Pair, records: Records) -> BlockModule:
    """DFlash's, after some steps on these texts."""
    module: BlockModule = _learned(block_module(pair), pair, records, 60)
    return module


def learned_selected_module(pair: Pair, records: Records) -> SelectedModule:
    """DFlash 2's, after some steps on these texts."""
    module: SelectedModule = _learned(selected_module(pair), pair, records, 60)
    return module


def learned_glimpse_module(pair: Pair, records: Records) -> CrossAttentionModule:
    """GliDe's, after some steps on these texts."""
    module: CrossAttentionModule = _learned(glimpse_module(pair), pair, records, 70)
    return module


def _learned(module: Any, pair: Pair, records: Records, length: int) -> Any:
    rows = collate(records, [[0, 1, 2], [3, 4, 5]], length, 0.25)
    objective = Objective({"kl_div": 1.0})
    return taught(module, pair.target, lambda step: rows, objective, lr=3e-3, left=0.5)
