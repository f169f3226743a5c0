"""What each method of the table needs in order to be built for the tiny model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from foretoken import METHODS
from foretoken.lookup import datastore
from foretoken.methods import Need
from foretoken.registry import drafter_class
from foretoken.testing import related
from foretoken.trainable.checkpoint import Facts
from hostile_inputs.stand import VOCAB, Stand


def needed(stand: Stand, method: str) -> dict[str, Any]:
    """The options without which a method can't be built."""
    row = METHODS.get(method)
    if row is None:
        return {}
    options: dict[str, Any] = {}
    if method in ("pruned", "substitute"):
        options["checkpoint"] = stand.transformers
    elif method == "online":
        options["model"] = str(draft_folder(stand))
    elif row.needs & Need.DRAFT_MODEL:
        options["model"] = stand.draft
    elif row.needs & Need.WEIGHTS:
        options["model"] = str(trained(stand, row.drafter))
    if row.needs & Need.DATASTORE:
        options["datastore"] = str(texts(stand))
    if method in ("tli", "slem"):
        options |= {"tokenizer": stand.letters, "target_tokenizer": stand.letters}
    return options


@cache
def draft_folder(stand: Stand) -> Path:
    """A small model's checkpoint."""
    folder = stand.folder / "draft"
    related(stand.transformers, 0.02).save_pretrained(folder)
    return folder


@cache
def trained(stand: Stand, drafter: str) -> Path:
    """A checkpoint of a drafter's module with random weights."""
    folder = stand.folder / f"trained-{drafter}"
    module = drafter_class(drafter).module(Facts.of(stand.target))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(weight * 0.5 + 0.3 * torch.randn(weight.shape, generator=random))
    module.save(folder, {})
    return folder


@cache
def texts(stand: Stand) -> Path:
    """A datastore."""
    folder, random = stand.folder / "datastore", Random(0)
    documents = [random.choices(range(VOCAB), k=60) for _ in range(20)]
    datastore.build(folder, {"vocab_size": VOCAB}, documents)
    return folder
