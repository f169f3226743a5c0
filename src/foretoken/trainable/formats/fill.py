"""Fills our module with a published checkpoint's tensors; embedding and head may be the target's.

`fitting` looks at a module without memory, so that nothing is allocated for numbers that no tensor
has.

Legend: V vocabulary, D width, S states.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.errors import ForetokenError
from foretoken.trainable.formats.published import EMBEDDING, HEAD

_TOLERANCE = 0.02  # of the norm: more than the error of rounding to bfloat16 or int8
_ROWS, _STATES = 4096, 16


def fitting(
    module: Any, tensors: Mapping[str, Tensor], target: Access, what: str
) -> dict[str, Tensor]:
    """The tensors that `fill` takes, without an embedding or head that is the target's.

    Raises `ForetokenError` for tensors that don't fit it, or an embedding or head that is meant to
    be the target's and isn't.
    """
    expected, stored = module.state_dict(), dict(tensors)
    embedding = partial(_embedding_distance, scaled=module.norms_embedding)
    for name, distance_of in ((EMBEDDING, embedding), (HEAD, _head_distance)):
        if name in stored and name not in expected:
            _check_same(stored.pop(name), distance_of, target, f"{what} has {name}")
    wrong = sorted((stored.keys() ^ expected.keys()) - {HEAD})
    if wrong:
        kind = "a tensor" if wrong[0] in stored else "no tensor"
        raise ForetokenError(
            f"{what} has {kind} {wrong[0]!r}, unlike the checkpoints of method "
            f"{module.method!r} that can be read."
        )
    for name, weight in stored.items():
        if weight.shape != expected[name].shape:
            raise ForetokenError(
                f"{name} of {what} is of shape {list(weight.shape)} and its configuration calls "
                f"for {list(expected[name].shape)}; fetch the checkpoint again."
            )
    return stored


def fill(module: Any, tensors: Mapping[str, Tensor], target: Access) -> None:
    """Fill the whole module with tensors that fit it; a head that the checkpoint lacks is copied
    from the target."""
    module.load_state_dict(tensors, strict=False)
    if HEAD in module.state_dict() and HEAD not in tensors:
        module.copy_from(target)  # which begins other weights anew, too
        module.load_state_dict(tensors, strict=False)


def _check_same(weight: Tensor, distance_of: Any, target: Access, what: str) -> None:
    expected = (target.vocab_size, target.width)
    if tuple(weight.shape) != expected:
        raise ForetokenError(
            f"{what} of shape {list(weight.shape)} and this target's is {list(expected)}; use a "
            "checkpoint that was trained for this target."
        )
    distance = distance_of(weight.to(target.device, target.dtype), target)
    if distance > _TOLERANCE:
        raise ForetokenError(
            f"{what} of its own, {distance:.0%} away from this target's, and only the target's is "
            "served; use a checkpoint that was trained with it as it is."
        )


def _embedding_distance(weight: Tensor, target: Access, scaled: bool) -> float:
    """The norm of the difference from the target's embedding [V, D], as a share of its norm.
    scaled: or of the nearest multiple, where the drafter norms what it reads; Gemma's layers read
    a multiple of what its file, and a drafter's, has."""
    own = product = norm = 0.0
    for start in range(0, len(weight), _ROWS):
        ids = torch.arange(start, min(start + _ROWS, len(weight)), device=weight.device)
        rows, stored = target.embed(ids).float(), weight[ids].float()
        own += float(stored.square().sum())
        product += float((stored * rows).sum())
        norm += float(rows.square().sum())
    factor = max(product, 0.0) / max(own, 1e-30) if scaled else 1.0
    difference = factor * factor * own - 2 * factor * product + norm
    return float((max(difference, 0.0) / max(norm, 1e-30)) ** 0.5)


def _head_distance(weight: Tensor, target: Access) -> float:
    """The distance from the target's head [V, D], by its logits of random states [S, D]."""
    random = torch.Generator().manual_seed(0)
    states = torch.randn(_STATES, weight.shape[1], generator=random).to(weight)
    logits = target.head(states).float()
    return float((states @ weight.T - logits).norm() / logits.norm().clamp(min=1e-30))
