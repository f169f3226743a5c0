"""Trains a base model's drafters, after train.py: `python drafters.py --task corrector --work W`.

shallow: a decoder of one layer beside the base's own encoder; student: a small model by itself
(both learn the base's distribution: Zhou et al. 2024, DistillSpec, forward KL on the given texts).
blockwise: heads on the base's last state (Stern et al. 2018), the base frozen. block: a decoder
whose k masks see each other and are filled in one pass (Xia et al. 2023, SpecDec), trained by
glancing (Qian et al. 2021): as many places as half of its mistakes are shown, the rest learned.

Each may be killed and goes on where it was; WORK/TASK/NAME has the result.

Legend: B pairs, T written tokens, K masks, D width, V vocabulary.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import model as models
import pairs
import torch
import torch.nn.functional as F
from loop import Budget, mixed, train
from model import T5, Batch
from prepare import MASK_ID, PAD_ID
from torch import Tensor, nn

from foretoken.drafters.blockwise import BlockwiseHeads
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, kl_div

HEADS = MASKS = 8
GLANCED = 0.5  # of the wrong places, at the beginning; falls to 0.3

Loss = Callable[[int, Batch], Tensor]
"""(step, batch) -> loss."""


def distilled(base: T5, student: T5) -> Loss:
    """Forward KL to the base at every place; the encoder's states are shared where it is."""
    shares = not any(p.requires_grad for p in student.encoder.parameters())

    def loss_of(step: int, batch: Batch) -> Tensor:
        chosen = batch.goal != models.IGNORED
        with torch.no_grad():
            read = models.encoded(base, batch)
            wanted = models.logits_of(base, models.decoded(base, batch, read, batch.before)[chosen])
        own = read if shares else models.encoded(student, batch)
        states = models.decoded(student, batch, own, batch.before)
        return kl_div(models.logits_of(student, states[chosen]), wanted).mean()

    return loss_of


def lesson_of(base: T5, batch: Batch) -> Lesson:
    """The base's states along what is written, as heads are trained on."""
    last = batch.goal.masked_fill(batch.goal == models.IGNORED, PAD_ID)
    tokens = torch.cat((batch.before[:, :1], last), 1)  # [B, T + 1]
    real = F.pad(batch.goal != models.IGNORED, (1, 0), value=True)
    with torch.no_grad():
        states = models.decoded(base, batch, models.encoded(base, batch), tokens).float()
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    weight = real.float()
    weight[:, 0] = 0.0  # the decoder's start isn't written

    def unused(*_: object) -> Tensor:
        raise NotImplementedError

    return Lesson(
        tokens,
        places,
        torch.where(real, 0, -1),
        weight,
        torch.where(real, HEADS, -1),
        {-1: states},
        lambda states: models.logits_of(base, states),
        unused,
        unused,
        unused,  # type: ignore[arg-type]
    )


def blockwise(base: T5, heads: BlockwiseHeads) -> Loss:
    goal = Objective({"kl_div": 1.0})
    return lambda step, batch: heads(lesson_of(base, batch), goal)


def blocks(batch: Batch, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """A random place of each text, and K masks after it: (tokens [B, T + K], which of them each one
    sees [B, T + K, T + K], where the masks stand [B, K])."""
    lengths = (batch.goal != models.IGNORED).sum(1)
    rng = torch.Generator().manual_seed(step)
    start = (torch.rand(len(lengths), generator=rng) * lengths).long() + 1
    where = start[:, None] + torch.arange(MASKS)
    tokens = F.pad(batch.before, (0, MASKS), value=PAD_ID)
    tokens = tokens.scatter(1, where, MASK_ID)
    columns = torch.arange(tokens.shape[1])
    inside = (columns >= start[:, None]) & (columns < start[:, None] + MASKS)
    causal = torch.ones(len(columns), len(columns), dtype=torch.bool).tril()
    return tokens, causal | (inside[:, :, None] & inside[:, None]), where


def glancing(base: T5, drafter: T5, progress: Callable[[], float]) -> Loss:
    """The loss of the masks that aren't shown. progress: how much of the training is done."""

    def loss_of(step: int, batch: Batch) -> Tensor:
        with torch.no_grad():
            read = models.encoded(base, batch)
        tokens, sees, where = blocks(batch, step)
        goal = F.pad(batch.goal, (0, MASKS), value=models.IGNORED).gather(1, where - 1)
        counted = goal != models.IGNORED

        def guesses(tokens: Tensor) -> Tensor:
            states = models.decoded(drafter, batch, read, tokens, sees)
            at = where[..., None].expand(-1, -1, states.shape[-1])
            return models.logits_of(drafter, states.gather(1, at))

        with torch.no_grad():
            wrong = ((guesses(tokens).argmax(-1) != goal) & counted).sum(1, keepdim=True)
        share = GLANCED - 0.2 * progress()
        shown = torch.rand(goal.shape) * counted.sum(1, keepdim=True) < share * wrong
        shown &= counted
        given = torch.where(shown, goal, MASK_ID)
        logits, learned = guesses(tokens.scatter(1, where, given)), counted & ~shown
        return F.cross_entropy(logits[learned], goal[learned])

    return loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=pairs.TASKS, required=True)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--minutes", type=float, default=18.0, help="of each drafter")
    parser.add_argument("--rows", type=int, default=64, help="pairs of a step")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    for name in given.only:
        make(name, given)


NAMES = ("shallow", "student", "blockwise", "block")


def make(name: str, given: argparse.Namespace) -> None:
    """Train one, or finish it."""
    torch.manual_seed(0)
    folder = given.work / given.task
    tokenizer = models.tokenizer_of(given.work, given.task)
    base = T5.from_pretrained(folder / "base").eval().requires_grad_(False)
    module: nn.Module
    if name == "student":
        module = models.new(models.STUDENT, len(tokenizer))
        loss = distilled(base, module)
    elif name == "shallow":
        module = models.with_decoder(base, models.SHALLOW)
        loss = distilled(base, module)
    elif name == "block":
        module = models.with_decoder(base, models.BLOCK)
        module.config.foretoken_block = {"mask_token_id": MASK_ID, "size": MASKS}
        steps = [0.0]
        loss = glancing(base, module, lambda: steps[0])
    else:
        config = base.config
        numbers = config.d_model, config.vocab_size, config.num_decoder_layers
        facts = Facts(*numbers, config.num_heads, config.d_kv)
        module = BlockwiseHeads(facts, num_heads=HEADS)
        loss = blockwise(base, module)
    batches = pairs.Batches(pairs.read(given.work, given.task, "train"), given.rows, seed=1)

    def loss_of(step: int) -> Tensor:
        with mixed():
            return loss(step, models.collate(tokenizer, batches.batch(step)))

    print(f"{given.task}: {name}", flush=True)
    rates = Budget(given.minutes, 0.003, 1e-3)
    train(module, loss_of, rates, folder / f"{name}.pt")
    if isinstance(module, BlockwiseHeads):
        module.save(folder / name, {})
    else:
        models.save(module, tokenizer, folder / name)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
