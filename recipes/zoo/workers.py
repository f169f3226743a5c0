"""Computes a batch's gradients in one process a core, each taking the next row when it is free.

One process with a thread a core has to wait for its slowest thread at every operation, so a core
that is busy with something else holds up all. Here it only takes fewer rows. The parameters lie in
shared memory; each process adds up its own gradients, and the sum lands in `p.grad`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch
from model import Llama
from torch import Tensor, nn

Loss = Callable[..., Tensor]  # what a batch holds, of some rows -> loss
Batch = tuple[Tensor, ...]  # each with the rows first
Prepare = Callable[[Llama], Loss]  # called once in each process; may compile
PATIENCE = 5.0  # seconds between looks at whether the parent still lives


def _serve(place: int, shared: dict[str, Any], model: Llama, prepare: Prepare) -> None:
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    loss_of, parameters = prepare(model), list(model.parameters())
    sums = shared["grads"][place].split([p.numel() for p in parameters])
    while True:
        if not shared["go"][place].acquire(timeout=PATIENCE):
            if parent is None or not parent.is_alive():
                return
            continue
        total = 0.0
        while True:
            with shared["next"].get_lock():
                row = shared["next"].value
                shared["next"].value += 1
            if row >= len(shared["batch"][0]):
                break
            loss = loss_of(*(t[row : row + 1] for t in shared["batch"]))
            loss.backward()
            total += loss.item()
        for p, flat in zip(parameters, sums, strict=True):
            flat.zero_() if p.grad is None else flat.copy_(p.grad.flatten())
            p.grad = None
        shared["losses"][place] = total
        shared["done"].release()


class Workers:
    """`step(batch)` returns the loss and leaves the gradients, as one process would."""

    def __init__(self, model: Llama, prepare: Prepare, like: Batch) -> None:
        # One thread here too: on a busy machine two made Muon's small products ten times slower.
        torch.set_num_threads(1)
        context = torch.multiprocessing.get_context("spawn")
        self.model, self.count = model.share_memory(), os.cpu_count() or 1
        size = sum(p.numel() for p in model.parameters())
        self.shared: dict[str, Any] = {
            "batch": tuple(t.clone().share_memory_() for t in like),
            "grads": torch.zeros(self.count, size).share_memory_(),
            "losses": torch.zeros(self.count).share_memory_(),
            "next": context.Value("i", 0),
            "go": [context.Semaphore(0) for _ in range(self.count)],
            "done": context.Semaphore(0),
        }
        self.processes = [
            context.Process(target=_serve, args=(i, self.shared, model, prepare), daemon=True)
            for i in range(self.count)
        ]
        for process in self.processes:
            process.start()

    def step(self, batch: Batch) -> float:
        for ours, given in zip(self.shared["batch"], batch, strict=True):
            ours.copy_(given)
        self.shared["next"].value = 0
        for go in self.shared["go"]:
            go.release()
        for _ in range(self.count):
            while not self.shared["done"].acquire(timeout=PATIENCE):
                if not all(p.is_alive() for p in self.processes):
                    raise RuntimeError("A worker process has died.")
        whole = self.shared["grads"].sum(0)
        parameters = list(self.model.parameters())
        for p, flat in zip(parameters, whole.split([p.numel() for p in parameters]), strict=True):
            p.grad = flat.view_as(p)
        return float(self.shared["losses"].sum())

    def close(self) -> None:
        for process in self.processes:
            process.kill()


class Alone:
    """The same in this process, for a GPU."""

    def __init__(self, model: Llama, prepare: Prepare) -> None:
        self.model, self.loss_of = model, prepare(model)

    def step(self, batch: Batch) -> float:
        device = next(self.model.parameters()).device
        loss = self.loss_of(*(t.to(device) for t in batch))
        loss.backward()
        return loss.item()

    def close(self) -> None:
        pass


def workers(model: Llama, prepare: Prepare, like: Batch) -> Workers | Alone:
    """`like` is a batch of the shape that all will have."""
    if torch.cuda.is_available():
        return Alone(model.cuda(), prepare)
    return Workers(model, prepare, like)


def device_type(module: nn.Module) -> str:
    return next(module.parameters()).device.type
