"""Muon: momentum whose updates of matrices are orthogonalised; AdamW for all other parameters.

Source: Jordan et al. 2024 (Muon: An optimizer for hidden layers in neural networks) and its code:
Nesterov momentum of 0.95 by `lerp`, five Newton-Schulz rounds with the coefficients given there,
updates scaled by max(1, rows / columns)^0.5, decoupled weight decay, and AdamW for embeddings,
heads and vectors. The scale that matches AdamW's RMS (Liu et al. 2025, Muon is Scalable for LLM
Training) is not used. Departures: rounds run in float32 where the machine has no bfloat16 products,
which torch's own Muon always uses and a CPU then emulates, fifty times slower; of a matrix that is
much wider than high they run there on its Gram matrix, which takes half the products (bfloat16
would lose the small singular values, which are squared in it); the norm that a matrix is divided by
is at least 1e-7, where that is added to it there.

Matrices of one shape are updated together, as a GPU spends more time on starting a small product
than on the product. A matrix whose rows are shared out over processes is gathered for its update,
which all of them compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from foretoken.train.recipe import Recipe
from foretoken.train.shards import shared_like, whole
from foretoken.trainable.checkpoint import Trained

QUINTIC = (3.4445, -4.775, 2.0315)  # Jordan et al.: steep at zero, then within 0.3 of one
ROUNDS = 5
WIDE = 2  # columns by rows from which on rounds on the Gram matrix take fewer products
TOGETHER = 2**24  # numbers of the matrices that are updated together, at most


def precision(device: str) -> torch.dtype:
    """bfloat16 where the machine has products of it, else float32."""
    can: Any = torch.cpu.get_capabilities()
    fast = can.get("amx_bf16") or can.get("avx512_bf16")
    if device == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if fast else torch.float32


def orthogonal(x: Tensor) -> Tensor:
    """Roughly U V^T of x = U S V^T, by Newton-Schulz rounds on each [..., rows, columns]."""
    wide: Tensor = x if x.shape[-2] <= x.shape[-1] else x.mT
    wide = wide.to(precision(x.device.type))
    wide = wide / torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    by_gram = wide.dtype == torch.float32 and wide.shape[-1] >= WIDE * wide.shape[-2]
    wide = _factor(wide @ wide.mT) @ wide if by_gram else _rounds(wide)
    result: Tensor = wide if x.shape[-2] <= x.shape[-1] else wide.mT
    return result.to(x.dtype)


def _rounds(wide: Tensor) -> Tensor:
    """[..., R, C] after all rounds."""
    a, b, c = QUINTIC
    for _ in range(ROUNDS):
        wide = a * wide + _quadratic(wide @ wide.mT, b, c) @ wide
    return wide


def _factor(gram: Tensor) -> Tensor:
    """[..., R, R] what all rounds together multiply a matrix by, from its Gram matrix: a round's
    factor is a polynomial of the Gram matrix, with which it commutes, so the next one's Gram matrix
    is known without the matrix."""
    product = factor = _one(gram)
    for _ in range(ROUNDS - 1):
        gram = factor @ gram @ factor
        factor = _one(gram)
        product = factor @ product
    return product


def _one(gram: Tensor) -> Tensor:
    """What one round multiplies a matrix by."""
    a, b, c = QUINTIC
    factor = _quadratic(gram, b, c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor


def _quadratic(gram: Tensor, b: float, c: float) -> Tensor:
    """b times it and c times its square."""
    add = torch.addmm if gram.dim() == 2 else torch.baddbmm
    return add(gram, gram, gram, beta=b, alpha=c)


def alike(params: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Those that have gradients, by shape, at most `TOGETHER` numbers at a time, if not one matrix
    alone has more; each that is shared out over processes by itself."""
    found: dict[Any, list[Tensor]] = {}
    for p in params:
        if p.grad is not None:
            kind = (p.shape, p.dtype, p.device, p.grad.dtype)
            found.setdefault(id(p) if isinstance(p, DTensor) else kind, []).append(p)
    for some in found.values():
        count = max(1, TOGETHER // some[0].numel())
        for at in range(0, len(some), count):
            yield some[at : at + count]


class Muon(torch.optim.Optimizer):
    """params: matrices, or groups of them; lr: factor of updates whose singular values are about
    one."""

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for some in alike(group["params"]):
                self._move(some, group)

    def _move(self, some: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of one shape."""
        grads = [p.grad for p in some if p.grad is not None]
        for p, grad in zip(some, grads, strict=True):
            if "mean" not in self.state[p]:
                self.state[p]["mean"] = torch.zeros_like(grad)
        means = [self.state[p]["mean"] for p in some]
        shape, lr = some[0].shape, group["lr"]
        torch._foreach_lerp_(means, grads, 1 - group["momentum"])
        directions = torch._foreach_lerp(grads, means, group["momentum"])
        if len(some) == 1:
            updates = [shared_like(orthogonal(whole(directions[0])), some[0])]
        else:
            updates = list(orthogonal(torch.stack(directions)).unbind())
        torch._foreach_mul_(some, 1 - lr * group["weight_decay"])
        torch._foreach_add_(some, updates, alpha=-lr * max(1.0, shape[0] / shape[1]) ** 0.5)


def optimizers_for(module: Trained, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW for the module's parameters, and Muon for the matrices between hidden states if the
    recipe has a `matrix_lr`."""
    of_vocabulary = {id(p) for p in module.of_vocabulary()}
    matrices, others = [], []
    for group in module.parameter_groups():
        inner = [p for p in group["params"] if p.dim() == 2 and id(p) not in of_vocabulary]
        inner = inner if recipe.matrix_lr else []
        chosen = {id(p) for p in inner}
        rest = [p for p in group["params"] if id(p) not in chosen]
        matrices += [{**group, "params": inner, "peak": recipe.matrix_lr}] if inner else []
        others += [{**group, "params": rest, "peak": recipe.lr}] if rest else []
    decay = recipe.weight_decay
    optimizers: list[torch.optim.Optimizer] = []
    if others:
        optimizers.append(torch.optim.AdamW(others, recipe.lr, recipe.betas, weight_decay=decay))
    if matrices:
        optimizers.append(Muon(matrices, recipe.matrix_lr, weight_decay=decay))
    return optimizers
