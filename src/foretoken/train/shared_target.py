"""The target shared out over the processes: each has its part of every decoder layer, and a pass
gathers a layer while the one before runs (torch's FSDP2, `fully_shard`). Embedding, last norm and
head stay whole, as drafters call them outside of passes.

A pass is a collective: all processes have to run the same ones in the same order, or they wait for
each other for ever. These are all that there are:

- `load`: the check of a small tree, by each process.
- `stored_states`, of the held-out texts and where asked for of all others: by each process, file by
  file, of those that the first process finds missing. Estimates, counts and the card then read the
  held-out states, as the first process makes them alone.
- a step's batches, `FrozenTarget.lesson`: as many in each process, of the same size, which GPUs of
  one kind read in as many parts.

So drafters that read more than states are refused, and nothing is written, served or measured with
such a target. What is missing of its texts is written before, with a whole one in each process.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from foretoken.errors import ForetokenError, one_line
from foretoken.models.load import find, generation_ends, read_config
from foretoken.models.model import CausalLM
from foretoken.models.placement import pick_device, pick_dtype, within_memory
from foretoken.train import processes
from foretoken.train.job import Job


def load(job: Job) -> CausalLM:
    """The job's target, by transformers' code, of whose layers no device has more than its part and
    two that a pass gathers. A collective. Raises `ForetokenError` where it can't be shared out."""
    from foretoken.models.hf import adapter

    folder, device = find(job.target), pick_device(job.device)
    config = read_config(folder, job.trust_remote_code)
    dtype = pick_dtype(job.dtype, config, device, folder)
    with within_memory(job.target, device):
        model = adapter.load(
            folder, dtype, device, job.trust_remote_code, spread=partial(_share_out, device=device)
        )
    model.eos_ids = generation_ends(folder) or model.eos_ids
    return model


def no_layers(model: Any) -> ForetokenError:
    """For one of which there is nothing to share out."""
    return ForetokenError(
        f"{type(model).__name__} has no list of decoder layers that could be shared out; leave "
        "shard_target out."
    )


def _share_out(model: Any, device: torch.device) -> None:
    """Leave this process its part of each of the model's layers, which come to the device one after
    the other."""
    from foretoken.models.hf import adapter

    layers = adapter.layers_of(model)
    if layers is None:
        raise no_layers(model)
    processes.join(device)
    mesh = init_device_mesh(device.type, (processes.count(),))
    model.requires_grad_(False)
    try:
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    except (NotImplementedError, ValueError) as error:  # a weight of no dimension, for one
        raise ForetokenError(
            f"The layers of {type(model).__name__} can't be shared out ({one_line(error)}); leave "
            "shard_target out."
        ) from error
    first = layers[0]  # gathered as the others are, or its gathered copy would stay beside two more
    first.register_forward_pre_hook(partial(_gather, first), prepend=True)
    for layer, following in pairwise(layers):
        layer.register_forward_pre_hook(partial(_gather, following))


def _gather(layer: FSDPModule, *called: Any) -> None:
    """Begin to gather a layer, while the one before it runs."""
    layer.unshard(async_op=True)
