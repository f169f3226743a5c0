"""The training loop of every model here: a budget in minutes, resumed from where it was killed.

Muon for the matrices between hidden states and AdamW for the rest, products in bfloat16 where the
machine has them. Time suspended doesn't count: a step counts ten seconds at most. A GPU is asked
for a number every fiftieth step only, as it would stand still meanwhile.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretoken.files import replacing
from foretoken.train.muon import Muon, precision

WARM = 0.03  # of the time: the rate rises; it falls over the last half
SAVE_EVERY, REPORT_EVERY, LONGEST_STEP = 120.0, 20.0, 10.0  # seconds
LOOK_EVERY = 50  # steps


@dataclass(frozen=True)
class Budget:
    """minutes: of all steps. matrix_lr: of Muon; lr: of AdamW."""

    minutes: float
    matrix_lr: float = 0.01
    lr: float = 2e-3
    seed: int = 0


def asked(parser: argparse.ArgumentParser) -> None:
    """What every training can be told."""
    parser.add_argument("--rows", type=int, default=64, help="pairs of a step")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--workers", type=int, help="processes that make batches; default: 3 for a GPU, else none"
    )
    parser.add_argument("--work", type=Path, required=True)


def device_of(name: str) -> torch.device:
    """auto: a GPU where there is one."""
    # Batches differ in size; without this, memory is kept for each size. Read when a GPU is first
    # used.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise SystemExit("torch finds no CUDA GPU here; use --device cpu.")
    if name == "cpu" or not there:
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # builds a plan for each shape
    return torch.device("cuda")


def workers_of(given: int | None, device: torch.device) -> int:
    if given is not None:
        return given
    return 3 if device.type == "cuda" else 0


def mixed(device: torch.device) -> AbstractContextManager[Any]:
    """Products in bfloat16 where the machine has them."""
    kind = device.type
    return torch.autocast(kind, torch.bfloat16, enabled=precision(kind) == torch.bfloat16)


def for_rows(lr: float, rows: int) -> float:
    """AdamW's rate for batches of so many rows, from that for 64: it grows as the square root of
    the batch does (Malladi et al. 2022, On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms). Muon's stays, as the size of its updates doesn't depend on the gradient's noise."""
    return lr * math.sqrt(rows / 64)


def rate(done: float) -> float:
    """The learning rate's factor after this share of the time."""
    return min(max(done / WARM, 0.02), 1.0, 2 * (1 - done) + 0.01)


def optimizers(model: nn.Module, budget: Budget) -> list[torch.optim.Optimizer]:
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    by_token = ("shared", "embed", "bias", "lm_head")
    inner = [p for n, p in learned if p.dim() == 2 and not any(part in n for part in by_token)]
    chosen = {id(p) for p in inner}
    rest = [p for _, p in learned if id(p) not in chosen]
    return [
        Muon(inner, lr=budget.matrix_lr, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=budget.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def number(mean: Tensor, step: int, path: Path) -> float:
    """The mean loss, which a GPU is waited for. Ends the program where it isn't one any more."""
    value = float(mean)
    if not math.isfinite(value):
        raise SystemExit(
            f"The loss is {value} at step {step}; delete {path} and train with lower rates."
        )
    return value


def train(
    model: nn.Module,
    loss_of: Callable[[int, Any], Tensor],
    feed: Callable[[int], Iterator[Any]],
    budget: Budget,
    path: Path,
    notice: Callable[[float], None] = lambda done: None,
) -> None:
    """Train the parameters that have gradients. loss_of: a step's number and batch -> its loss.
    feed: a number -> the batches from there on. path: of the state to resume from; a finished
    training does nothing. notice: is told before each step how much of the training is done."""
    opts = optimizers(model, budget)
    peaks = [opt.param_groups[0]["lr"] for opt in opts]
    learned = [p for p in model.parameters() if p.requires_grad]
    step, spent = 0, 0.0
    if path.exists():
        state = torch.load(path, map_location=learned[0].device, weights_only=True)
        model.load_state_dict(state["weights"])
        for opt, stored in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(stored)
        step, spent = state["step"], state["spent"]
    if spent >= budget.minutes:
        return

    def save() -> None:
        with replacing(path) as file:
            torch.save(
                {
                    "weights": model.state_dict(),
                    "optimizers": [opt.state_dict() for opt in opts],
                    "step": step,
                    "spent": spent,
                },
                file,
            )

    batches = feed(step)
    batch = next(batches)  # workers start before the clock does
    saved = reported = clock = time.monotonic()
    pause = min(SAVE_EVERY, 60 * budget.minutes / 5)
    mean: Tensor | None = None
    while spent < budget.minutes:
        notice(spent / budget.minutes)
        for opt, peak in zip(opts, peaks, strict=True):
            opt.param_groups[0]["lr"] = peak * rate(spent / budget.minutes)
        torch.manual_seed(budget.seed * 1_000_003 + step)
        loss = loss_of(step, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad()
        mean = loss.detach().clone() if mean is None else mean.lerp_(loss.detach(), 0.02)
        batch = next(batches)
        now, step = time.monotonic(), step + 1
        spent, clock = spent + min(now - clock, LONGEST_STEP) / 60, now
        if step % LOOK_EVERY == 0:
            number(mean, step, path)
        if now - reported > REPORT_EVERY:
            value = number(mean, step, path)
            print(f"step {step}, {spent:.1f}/{budget.minutes:g} min, loss {value:.4f}", flush=True)
            reported = now
        if now - saved > pause:
            number(mean, step, path)
            save()
            saved = now
    if mean is not None:
        print(f"step {step}, the end, loss {number(mean, step, path):.4f}", flush=True)
    save()
