"""What tests of the runners of whole passes share: a tiny model, and passes with and without."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch

from foretoken import SamplingParams
from foretoken.models.native.build import build_native
from foretoken.models.native.transformer import Transformer
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import tiny_transformers
from foretoken.tree import DraftTree, empty
from foretoken.trees.from_lists import from_paths
from stored_models import original

CPU = torch.device("cpu")


VOCAB = 97


KINDS = ("llama", "windowed", "gemma2", "gemma3_text")
"""What runs whole passes runs all of these."""


@cache
def weights(kind: str) -> Any:
    if kind.startswith("gemma"):
        return original(kind, sliding_window=6, max_position_embeddings=192).double()
    model = tiny_transformers(VOCAB, max_length=192)
    if kind == "windowed":
        model.config.model_type, model.config.sliding_window = "mistral", 6
        model.config.layer_types = ["sliding_attention", "full_attention"]
    return model


def fresh(kind: str = "llama", device: torch.device = CPU) -> Transformer:
    """The tiny model again, without a runner."""
    model = weights(kind)
    return build_native(
        model.config, model.state_dict().__getitem__, torch.float64, device, "plain"
    )


def begun(model: Transformer, hidden: tuple[int, ...] = ()) -> tuple[ModelTarget, list[Sequence]]:
    """Three sequences with 3, 20 and 70 tokens."""
    target, rng = ModelTarget(model, 3, 150, nodes=40, hidden=hidden), random.Random(0)
    sequences = []
    for length in (3, 20, 70):
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        sequences.append(Sequence.start(prompt, SamplingParams(temperature=0)))
        target.begin(sequences[-1])
        while target.pending(sequences[-1]):
            target.prefill(sequences[-1:], 33)
    return target, sequences


def drawn(rng: random.Random, rows: int) -> list[list[list[int]]]:
    """The paths of a tree for each row, of any shape, some without nodes."""
    return [
        [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 5))] for _ in range(branches)]
        for branches in (rng.randrange(8) for _ in range(rows))
    ]


def tree_of(paths: list[list[list[int]]], device: torch.device) -> DraftTree:
    return from_paths(paths, device) if any(paths) else empty(len(paths), device)


def last_path(tree: DraftTree, row: int) -> list[int]:
    """The slots above the last node of a row, and it."""
    path, slot = [], tree.counts[row]
    while slot:
        path.append(slot)
        slot = int(tree.parent_slots[row, slot - 1])
    return path[::-1]


@torch.inference_mode()
def check_same(
    model: Transformer, kind: str = "llama", steps: int = 12, near: float = 1e-9
) -> None:
    """Random trees over changing rows: every pass says what it says on the CPU without a runner."""
    rng, (own, mine), (other, theirs) = random.Random(1), begun(fresh(kind)), begun(model)
    for _ in range(steps):
        some = [[0], [0, 1], [0, 1, 2], [2], [1, 2]][rng.randrange(5)]
        paths = drawn(rng, len(some))
        trees = [tree_of(paths, device) for device in (CPU, model.device)]
        tree = trees[0]
        said = [
            target.score([rows[i] for i in some], own_tree).logits
            for (target, rows), own_tree in zip(((own, mine), (other, theirs)), trees, strict=True)
        ]
        for row, count in enumerate(tree.counts):
            one, two = (logits[row, : count + 1].cpu() for logits in said if logits is not None)
            assert torch.allclose(one, two, rtol=0, atol=near)
        taken = [last_path(tree, row) for row in range(len(some))]
        for target, rows in ((own, mine), (other, theirs)):
            target.commit([rows[i] for i in some], taken)
            for i, path in zip(some, taken, strict=True):
                rows[i].tokens += [5] * (len(path) + 1)
