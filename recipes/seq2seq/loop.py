"""The training loop of every model here: a budget in minutes, resumed from where it was killed.

Muon for the matrices between hidden states and AdamW for the rest, products in bfloat16 where the
machine has them. Time suspended doesn't count: a step counts ten seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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


@dataclass(frozen=True)
class Budget:
    """minutes: of all steps. matrix_lr: of Muon; lr: of AdamW."""

    minutes: float
    matrix_lr: float = 0.01
    lr: float = 2e-3
    seed: int = 0


def mixed() -> AbstractContextManager[Any]:
    """Products in bfloat16 where the machine has them."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision("cpu") == torch.bfloat16)


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
        torch.optim.AdamW(rest, lr=budget.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(model: nn.Module, loss_of: Callable[[int], Tensor], budget: Budget, path: Path) -> None:
    """Train the parameters that have gradients. loss_of: a step's number -> its loss. path: of the
    state to resume from; a finished training does nothing."""
    opts = optimizers(model, budget)
    peaks = [opt.param_groups[0]["lr"] for opt in opts]
    step, spent = 0, 0.0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["weights"])
        for opt, stored in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(stored)
        step, spent = state["step"], state["spent"]

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

    saved = reported = clock = time.monotonic()
    mean = None
    while spent < budget.minutes:
        for opt, peak in zip(opts, peaks, strict=True):
            opt.param_groups[0]["lr"] = peak * rate(spent / budget.minutes)
        torch.manual_seed(budget.seed * 1_000_003 + step)
        loss = loss_of(step)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad()
        now, step = time.monotonic(), step + 1
        spent, clock = spent + min(now - clock, LONGEST_STEP) / 60, now
        mean = float(loss.detach()) if mean is None else 0.98 * mean + 0.02 * float(loss.detach())
        if now - reported > REPORT_EVERY:
            print(f"step {step}, {spent:.1f}/{budget.minutes:g} min, loss {mean:.4f}", flush=True)
            reported = now
        if now - saved > SAVE_EVERY:
            save()
            saved = now
    save()
