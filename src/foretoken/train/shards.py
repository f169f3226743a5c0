"""A drafter's weights, gradients and optimiser's numbers, shared out over the processes: each keeps
its part, and a step gathers the weights while it needs them (torch's FSDP2, `fully_shard`).

The module is one group, as all of a drafter's weights are needed in each of its passes. Estimates,
checkpoints and Muon need whole tensors: the first process has a whole copy of the weights beside
its part.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from foretoken.errors import ForetokenError
from foretoken.train import processes
from foretoken.trainable.checkpoint import Trained


def check(option: str, what: str) -> None:
    """Raises `ForetokenError` where there is nothing to share out to. option: that asks for it;
    what: is to be shared out."""
    if processes.count() == 1:
        raise ForetokenError(
            f"{option} shares {what} out over several processes, and this is the only one; start "
            f"them by torchrun --nproc-per-node N, or leave {option} out."
        )


def shared_out(module: Trained, device: torch.device) -> Trained:
    """A copy for training, of whose weights each process has its part. The given module stays whole
    at the first process and keeps no memory at the others. A collective."""
    mesh = init_device_mesh(device.type, (processes.count(),))
    working = copy.deepcopy(module)
    fully_shard(working, mesh=mesh)
    if not processes.is_first():
        module.to("meta")
    return working


@contextmanager
def gradients(accelerator: Any, module: nn.Module, last: bool) -> Iterator[None]:
    """For one of a step's batches: the processes' gradients become their mean at the last one."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        yield
    elif last:
        yield
    else:
        with accelerator.no_sync(module):
            yield


def gather(working: nn.Module, module: nn.Module) -> None:
    """Bring the weights into the first process's whole module. A collective."""
    own = module.state_dict()
    for name, weight in working.state_dict().items():
        there = whole(weight)
        if processes.is_first():
            own[name].copy_(there)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, also where each process has a part of it. A collective then."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Of a tensor that all processes have, the part that each has of `model`."""
    if not isinstance(model, DTensor):
        return tensor
    return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)
