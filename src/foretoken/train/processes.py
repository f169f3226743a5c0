"""The processes of one launch, as torchrun and `accelerate launch` start them: which one this is,
and what all of them do as the first one says."""

from __future__ import annotations

import itertools
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported

_POLL = 0.2  # seconds
_LONG = timedelta(days=7)
_MEETINGS = itertools.count(2)  # of the trainings after this process's first one


def rank() -> int:
    """This process's number in the launch, from 0 on."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the process that writes."""
    return rank() == 0


def is_mine(number: int) -> bool:
    """Whether a numbered piece of work, of those that all share, is this process's."""
    return (number - rank()) % count() == 0


def launched() -> bool:
    """Whether a launcher started this process, with or without others."""
    return "LOCAL_RANK" in os.environ


def device(name: str) -> str:
    """The device of that name that is this process's own, of the GPUs of its machine. Raises
    `ForetokenError` for one GPU that all processes would have."""
    if count() == 1 or not torch.cuda.is_available():
        return name
    own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if name.startswith("cuda:") and name != own:
        raise ForetokenError(
            f"device is {name!r}, and each of {count()} processes has a GPU of its own; leave "
            "device out, and choose the GPUs by CUDA_VISIBLE_DEVICES."
        )
    return own if name in ("auto", "cuda") else name


def wait_for(file: Path) -> None:
    """Until another process has written it, however long that takes: collectives would give up.
    A launcher ends all processes where one has failed."""
    while not file.exists():
        time.sleep(_POLL)


def accelerate() -> Any:
    """The package that joins the processes. Raises `ForetokenError` where it isn't installed."""
    return imported("accelerate", "train", "Training needs")


def join(device: torch.device) -> None:
    """Join the processes before the training's loop does, which finds them joined. A collective."""
    meet_again(accelerate().PartialState(cpu=device.type == "cpu"))


def meet_again(state: Any) -> None:
    """Join the processes once more, where an earlier training of theirs has ended their group:
    accelerate joins them for the first one alone. They meet under another name, as the launcher's
    store still has the addresses of the group before. state: accelerate's. A collective, which
    waits for however long the first process measures what it has trained."""
    if state.backend is None or torch.distributed.is_initialized():
        return
    store, own, among = next(rendezvous("env://"))
    store = PrefixStore(f"training {next(_MEETINGS)}", store)
    store.set(f"there {own}", "")
    store.wait([f"there {rank}" for rank in range(among)], _LONG)
    torch.distributed.init_process_group(state.backend, store=store, rank=own, world_size=among)


def agreed(accelerator: Any, value: float) -> float:
    """The first process's value, at all of them. Clocks differ, and so may sums of estimates: a
    process that saved, or ended, by its own would leave the others waiting."""
    if accelerator.num_processes == 1:
        return value
    from accelerate.utils import broadcast

    given = torch.tensor(value, dtype=torch.float64, device=accelerator.device)
    return float(broadcast(given, from_process=0))


def as_first(value: list[int]) -> list[int]:
    """The first process's value, at all of them. A collective of processes that have joined."""
    given = [value]
    torch.distributed.broadcast_object_list(given, src=0)
    return given[0]


def mean(accelerator: Any, value: float) -> float:
    """Over the processes."""
    if accelerator.num_processes == 1:
        return value
    given = torch.tensor(value, dtype=torch.float64, device=accelerator.device)
    return float(accelerator.reduce(given, reduction="mean"))
