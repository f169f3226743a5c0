"""Distils the drafter: `python distill.py --work WORK --target FOLDER --minutes M --own-minutes N`.

Forward KL from the target's distribution: first along corpus text, then along answers that the
target wrote itself to training prompts (own.py), which is the text that the drafter will meet.
Killed, it goes on from WORK/draft.pt; what is finished is left alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import corpus
import torch
from batches import MIXES, Sampler
from model import CHUNK, Config, Llama, load_hf, mixed, precision, save_hf
from own import Own, OwnSampler, write
from presets import DRAFTS
from torch import Tensor
from workers import Loss, Prepare, device_type, workers

from foretoken.files import replacing
from train import LONGEST_STEP, optimizers, resume

ROWS, LENGTH = 16, 512  # of a batch
PHASES = 2  # along corpus text, along the target's answers
SAVE_EVERY = 20.0  # seconds between two saved states, of which each is told


def _kl_kernel(student: Tensor, weight: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """KL(teacher || student) [T] and its weighted gradient by the student's logits [T, V]."""
    p, q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    chance = p.exp()
    loss = (chance * (p - q)).sum(-1)
    return loss, ((q.exp() - chance) * weight[:, None]).to(student.dtype)


def _best_kernel(
    student: Tensor, weight: Tensor, best: Tensor, chance: Tensor
) -> tuple[Tensor, Tensor]:
    """The same against the likeliest tokens [T, K], their probabilities [T, K] made to sum to 1."""
    p, q = chance / chance.sum(-1, keepdim=True), student.float().log_softmax(-1)
    loss = (p * (p.clamp(min=1e-9).log() - q.gather(-1, best))).sum(-1)
    grad = q.exp().scatter_add(-1, best, -p)
    return loss, (grad * weight[:, None]).to(student.dtype)


class _Chunked(torch.autograd.Function):
    """The loss of a kernel, some places at a time, so that [T, V] never stands whole."""

    @staticmethod
    def forward(ctx, kernel, hidden, head, weight, *known):  # type: ignore[no-untyped-def]
        cast = head.to(hidden.dtype)
        d_hidden, d_head = torch.empty_like(hidden), torch.zeros_like(head)
        losses = torch.empty(hidden.shape[0], device=hidden.device)
        for lo in range(0, hidden.shape[0], CHUNK):
            at = slice(lo, lo + CHUNK)
            facts = known[0](at) if callable(known[0]) else tuple(k[at] for k in known)
            losses[at], grad = kernel(hidden[at] @ cast.t(), weight[at], *facts)
            d_hidden[at] = grad @ cast
            d_head += grad.t() @ hidden[at]
        ctx.save_for_backward(d_hidden, d_head)
        ctx.inputs = len(known)
        return (losses * weight).sum()

    @staticmethod
    def backward(ctx, d_loss):  # type: ignore[no-untyped-def]
        d_hidden, d_head = ctx.saved_tensors
        return (
            None,
            d_hidden * d_loss.to(d_hidden.dtype),
            d_head * d_loss,
            *[None] * (1 + ctx.inputs),
        )


def from_embedding(target: Llama, config: Config) -> Llama:
    """A drafter whose embedding starts as the target's, projected on its main directions."""
    draft = Llama(config)
    table = target.embed_tokens.weight.detach()
    _, _, directions = torch.linalg.svd(table - table.mean(0), full_matrices=False)
    small = (table - table.mean(0)) @ directions[: config.hidden].t()
    draft.embed_tokens.weight.data = small * (0.02 / small.std())
    return draft


def along_text(target: Llama, draft: Llama) -> Loss:
    """Divergence along any text; each worker calls this, and compiles."""
    device = device_type(draft)
    target = target.to(device)
    kernel = torch.compile(_kl_kernel, dynamic=False)
    student, teacher = torch.compile(draft), torch.compile(target)
    t_head = target.embed_tokens.weight.detach().to(precision(device))

    def loss_of(ids: Tensor, goal: Tensor, weight: Tensor) -> Tensor:
        with mixed(device):
            with torch.no_grad():
                known = teacher(ids).flatten(0, 1)
            hidden = student(ids).flatten(0, 1)
        head = draft.embed_tokens.weight
        loss: Tensor = _Chunked.apply(
            kernel, hidden, head, weight.flatten(), lambda at: (known[at] @ t_head.t(),)
        )
        return loss

    return loss_of


def along_own(draft: Llama) -> Loss:
    """Divergence along the target's answers, from the likeliest tokens kept with them."""
    device = device_type(draft)
    kernel, student = torch.compile(_best_kernel, dynamic=False), torch.compile(draft)

    def loss_of(ids: Tensor, best: Tensor, chance: Tensor, weight: Tensor) -> Tensor:
        with mixed(device):
            hidden = student(ids).flatten(0, 1)
        head = draft.embed_tokens.weight
        loss: Tensor = _Chunked.apply(
            kernel, hidden, head, weight.flatten(), best.flatten(0, 1), chance.flatten(0, 1)
        )
        return loss

    return loss_of


@dataclass(frozen=True)
class Phase:
    minutes: float
    peak: float  # factor of the learning rates
    decay: bool


def rate(phase: Phase, spent: float) -> float:
    done = spent / phase.minutes
    return phase.peak * min(1.0, 0.05 + done / 0.04) * (1.0 - done if phase.decay else 1.0)


@dataclass
class Run:
    """All that a saved state holds."""

    draft: Llama
    phases: int = 0  # that are finished
    minutes: float = 0.0  # in this one, as is what follows
    batches: int = 0
    states: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def save(self, path: Path) -> None:
        state = {**vars(self), "draft": self.draft.state_dict()}
        with replacing(path) as file:
            torch.save(state, file)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True, map_location="cpu")
        self.draft.load_state_dict(state.pop("draft"))
        vars(self).update(state)


def distil(
    run: Run, prepare: Prepare, sampler: Sampler | OwnSampler, phase: Phase, path: Path
) -> None:
    crew = workers(run.draft, prepare, sampler.batch(ROWS))
    opts = optimizers(run.draft, lr=(0.02, 4e-3))
    base = [opt.param_groups[0]["lr"] for opt in opts]
    resume(opts, run.states)
    mean = 0.0
    saved = clock = time.time()
    while run.minutes < phase.minutes:
        for opt, lr in zip(opts, base, strict=True):
            opt.param_groups[0]["lr"] = lr * rate(phase, run.minutes)
        loss = crew.step(sampler.batch(ROWS))
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        mean, run.batches = loss if mean == 0 else 0.97 * mean + 0.03 * loss, run.batches + 1
        used, clock = min(time.time() - clock, LONGEST_STEP) / 60, time.time()
        run.minutes += used
        if clock - saved > SAVE_EVERY:
            done = f"{run.minutes:.1f}/{phase.minutes:.0f} min"
            tokens = f"{run.batches * ROWS * LENGTH / 1e6:.2f} M tokens"
            print(f"{time.strftime('%H:%M:%S')} {done}, {tokens}, KL {mean:.4f}", flush=True)
            run.states = [opt.state_dict() for opt in opts]
            run.save(path)
            saved = clock
    crew.close()
    run.phases, run.minutes, run.batches, run.states = run.phases + 1, 0.0, 0, []
    run.save(path)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=sorted(DRAFTS), default="cpu")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0, help="on corpus text")
    parser.add_argument("--own-minutes", type=float, default=40.0, help="on the target's answers")
    parser.add_argument("--own", type=int, default=14_000, help="answers to have the target write")
    parser.add_argument("--peak", type=float, default=1.0, help="factor of the learning rate")
    return parser.parse_args()


def main() -> None:
    args = options()
    torch.manual_seed(0)
    data, target = corpus.load(args.work / "train.npz"), load_hf(args.target).requires_grad_(False)
    run, path = Run(from_embedding(target, DRAFTS[args.preset])), args.work / "draft.pt"
    if path.exists():
        run.load(path)
    if run.phases == PHASES:
        print(f"{path} is finished; delete it to begin anew.")
    if run.phases == 0 and args.minutes > 0:
        sampler = Sampler(data, MIXES["everything"], LENGTH, seed=int(time.time()))
        phase = Phase(args.minutes, args.peak, decay=args.own_minutes == 0)
        distil(run, partial(along_text, target.share_memory()), sampler, phase, path)
    run.phases = max(run.phases, 1)  # where it was left out
    if run.phases == 1 and args.own_minutes > 0:
        answers = args.work / "own.npz"
        if not answers.exists():
            write(target.cpu(), data, args.own).save(answers)
        own = OwnSampler(Own.load(answers), LENGTH, seed=int(time.time()))
        distil(run, along_own, own, Phase(args.own_minutes, args.peak, True), path)
    save_hf(run.draft.cpu(), args.work / "draft")


if __name__ == "__main__":
    main()
