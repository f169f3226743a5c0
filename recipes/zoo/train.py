"""Trains the target: `python train.py --preset cpu --work WORK` (after prepare.py).

Runs the preset's stages in turn, and resumes from WORK/checkpoint.pt if there is one. It may be
killed or suspended at any time: a checkpoint replaces the old one whole, and the clock counts
at most ten seconds a step.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import corpus
import torch
from batches import MIXES, Sampler
from grow import grow
from model import Config, Llama, chunked_loss, compile_loss, mixed, save_hf
from presets import PRESETS, Stage
from torch import Tensor, nn
from workers import Loss, device_type, workers

from foretoken.files import replacing
from foretoken.train.muon import Muon

LONGEST_STEP = 10.0  # seconds that one step may count: it may have been suspended meanwhile


def optimizers(model: nn.Module, lr: tuple[float, float]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() < 2 or "embed" in n]
    return [
        Muon(matrices, lr=lr[0], momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=lr[1], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(stage: Stage, spent: float) -> float:
    """Warm-up, constant, linear decay, as a factor of the learning rate."""
    done = min(spent / stage.minutes, 1.0)
    if done < stage.warm:
        return stage.peak * max(done / stage.warm, 0.02)
    if done < stage.decay_from:
        return stage.peak
    left = (1.0 - done) / (1.0 - stage.decay_from) if stage.decay_from < 1 else 1.0
    return stage.floor + (stage.peak - stage.floor) * left


@dataclasses.dataclass
class Run:
    """All that a checkpoint holds."""

    model: Llama
    stage: int = 0
    spent: float = 0.0  # minutes in this stage
    total: float = 0.0  # minutes in all
    tokens: int = 0
    batches: int = 0
    states: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def save(self, path: Path) -> None:
        fields = [f.name for f in dataclasses.fields(self) if f.name != "model"]
        state: dict[str, Any] = {name: getattr(self, name) for name in fields}
        state["config"] = dataclasses.asdict(self.model.config)
        state["weights"] = self.model.state_dict()
        with replacing(path) as file:
            torch.save(state, file)

    @staticmethod
    def load(path: Path) -> Run:
        state = torch.load(path, weights_only=True, map_location="cpu")
        model = Llama(Config(**state.pop("config")))
        model.load_state_dict(state.pop("weights"))
        return Run(model, **state)


def cross_entropy(model: Llama) -> Loss:
    compile_loss()
    forward, device = torch.compile(model), device_type(model)

    def loss_of(ids: Tensor, goal: Tensor, weight: Tensor) -> Tensor:
        with mixed(device):
            hidden = forward(ids)
        head = model.embed_tokens.weight
        return chunked_loss(hidden.flatten(0, 1), head, goal.flatten(), weight.flatten())[0]

    return loss_of


def report(run: Run, stage: Stage, loss: float) -> None:
    """Print how far the training is."""
    left = stage.minutes - run.spent
    print(
        f"{time.strftime('%H:%M:%S')} {stage.name} {run.spent:.1f}/{stage.minutes:.0f} min, "
        f"{run.tokens / 1e6:.2f} M tokens in {run.total:.1f} min, loss {loss:.4f}, "
        f"lr x{rate(stage, run.spent):.2f}, eta {left:.1f} min",
        flush=True,
    )


def resume(opts: list[torch.optim.Optimizer], states: list[dict[str, Any]]) -> None:
    for opt, state in zip(opts, states, strict=False):
        rates = [group["lr"] for group in opt.param_groups]
        opt.load_state_dict(state)
        for group, lr in zip(opt.param_groups, rates, strict=True):
            group["lr"] = lr


def run_stage(run: Run, stage: Stage, sampler: Sampler, path: Path, every: float) -> None:
    model = run.model
    crew = workers(model, cross_entropy, sampler.batch(stage.rows))
    opts = optimizers(model, (stage.matrix_lr, stage.vector_lr))
    base = [opt.param_groups[0]["lr"] for opt in opts]
    resume(opts, run.states)
    mean, reported, saved, clock = 0.0, time.time(), time.time(), time.time()
    while run.spent < stage.minutes:
        for opt, lr in zip(opts, base, strict=True):
            opt.param_groups[0]["lr"] = lr * rate(stage, run.spent)
        loss = crew.step(sampler.batch(stage.rows))
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        used, clock = min(time.time() - clock, LONGEST_STEP) / 60, time.time()
        run.spent, run.total = run.spent + used, run.total + used
        run.tokens, run.batches = run.tokens + stage.rows * stage.length, run.batches + 1
        mean = loss if mean == 0 else 0.98 * mean + 0.02 * loss
        if clock - reported > 20:
            report(run, stage, mean)
            reported = clock
        if clock - saved > every * 60:
            run.states = [opt.state_dict() for opt in opts]
            run.save(path)
            saved = clock
    run.states = []
    crew.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--every", type=float, default=2.0, help="minutes between checkpoints")
    args = parser.parse_args()
    torch.manual_seed(0)
    (args.work / "pid").write_text(str(os.getpid()))
    data, stages = corpus.load(args.work / "train.npz"), PRESETS[args.preset]
    path = args.work / "checkpoint.pt"
    run = Run.load(path) if path.exists() else Run(Llama(stages[0].config))
    while run.stage < len(stages):
        stage = stages[run.stage]
        if run.model.config != stage.config:
            run.model, run.states = grow(run.model.cpu(), stage.config), []
        # Another seed for every start: what was drawn before a kill isn't drawn again.
        seed = 100_000 * run.stage + run.batches
        sampler = Sampler(data, MIXES[stage.mix], stage.length, seed)
        run_stage(run, stage, sampler, path, args.every)
        run.stage, run.spent = run.stage + 1, 0.0
        run.save(path)
        run.save(args.work / f"after-{stage.name}.pt")
    save_hf(run.model.cpu(), args.work / "target")


if __name__ == "__main__":
    main()
