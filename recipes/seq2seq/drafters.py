"""Trains a base model's drafters, after train.py: `python drafters.py --task corrector --work W`.

shallow: a decoder of one layer beside the base's own encoder; student: a small model by itself
(both learn the base's distribution: Zhou et al. 2024, DistillSpec, forward KL on the given texts).
blockwise: heads on the base's last state (Stern et al. 2018), the base frozen. block: a decoder
whose k masks see each other and are filled in one pass (Xia et al. 2023, SpecDec), trained by
glancing (Qian et al. 2021): as many places as half of its mistakes are shown, the rest learned.

Each may be killed and goes on where it was; WORK/TASK/NAME has the result.

Legend: B pairs, T written tokens, K masks, X places more for them, D width, V vocabulary,
N places, H heads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loop
import model as models
import pairs
import torch
import torch.nn.functional as F
from feed import Feed, Made
from model import Batch
from prepare import MASK_ID, PAD_ID
from safetensors.torch import load_file
from torch import Tensor
from transformers import T5ForConditionalGeneration as T5

from foretoken.drafters.blockwise import BlockwiseHeads
from foretoken.trainable.checkpoint import Facts

HEADS = MASKS = 8
PLACES = 2048  # of a batch, that heads are trained at
DECAY = 0.8  # of the loss from one head to the next
GLANCED = 0.5  # of the wrong places, at the beginning; falls to 0.3

Loss = Callable[[int, Batch], Tensor]
"""(step, batch) -> loss."""


def divergence(given: Tensor, wanted: Tensor) -> Tensor:
    """[N] forward KL of logits [N, V]. Nothing here waits for a GPU."""
    logs = given.log_softmax(-1), wanted.log_softmax(-1)
    return F.kl_div(*logs, reduction="none", log_target=True).sum(-1)


def distilled(base: T5, student: T5) -> Loss:
    """Forward KL to the base at every place; the encoder's states are shared where it is."""
    shares = not any(p.requires_grad for p in student.encoder.parameters())

    def loss_of(step: int, batch: Batch) -> Tensor:
        with torch.no_grad():
            read = models.encoded(base, batch)
            states = models.decoded(base, batch, read, batch.before)
            wanted = models.logits_of(base, models.at_places(states, batch.places))
        own = read if shares else models.encoded(student, batch)
        states = models.decoded(student, batch, own, batch.before)
        return divergence(
            models.logits_of(student, models.at_places(states, batch.places)), wanted
        ).mean()

    return loss_of


def blockwise(base: T5, heads: BlockwiseHeads) -> Loss:
    """Of each head, the forward KL to what the base itself says at that head's place, at up to
    `PLACES` places of a batch. It is the library's own loss (`head_losses`), whose chunks are
    small enough for large vocabularies and too small for a GPU."""

    def loss_of(step: int, batch: Batch) -> Tensor:
        with torch.no_grad():
            read = models.encoded(base, batch)
            states = models.decoded(base, batch, read, batch.before).float()
        places = batch.places
        if len(places) > PLACES:
            places = places[torch.randint(len(places), (PLACES,), device=places.device)]
        later, counted = ahead(batch.goal, places)
        with torch.no_grad():
            wanted = models.logits_of(base, models.at_places(states, later.flatten()))
        guessed = heads.states(models.at_places(states, places)).flatten(0, 1)
        loss = divergence(models.logits_of(base, guessed), wanted).view_as(counted)
        weight = counted * DECAY ** torch.arange(HEADS, device=places.device)
        return (loss * weight).sum() / len(places)

    return loss_of


def ahead(goal: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """([N, H] flat places 1 … H after these, which of them have something to write)."""
    length = goal.shape[1]
    steps = 1 + torch.arange(HEADS, device=places.device)
    inside = places[:, None] % length + steps < length
    later = torch.where(inside, places[:, None] + steps, places[:, None])
    there = goal.flatten()[later] != models.IGNORED
    return later, inside & there


def blocks(batch: Batch, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """A random place of each text, and K masks after it: (tokens [B, T + X], which of them each one
    sees [B, T + X, T + X], where the masks stand [B, K])."""
    device = batch.goal.device
    lengths = (batch.goal != models.IGNORED).sum(1)
    rng = torch.Generator(device).manual_seed(step)
    start = (torch.rand(len(lengths), generator=rng, device=device) * lengths).long() + 1
    where = start[:, None] + torch.arange(MASKS, device=device)
    # More than there are masks, so that the width suits attention's kernels as the batch's does.
    tokens = F.pad(batch.before, (0, models.MULTIPLE), value=PAD_ID)
    tokens = tokens.scatter(1, where, MASK_ID)
    columns = torch.arange(tokens.shape[1], device=device)
    inside = (columns >= start[:, None]) & (columns < start[:, None] + MASKS)
    causal = columns[:, None] >= columns
    return tokens, causal | (inside[:, :, None] & inside[:, None]), where


def glancing(base: T5, drafter: T5, progress: Callable[[], float]) -> Loss:
    """The loss of the masks that aren't shown. progress: how much of the training is done."""

    def loss_of(step: int, batch: Batch) -> Tensor:
        with torch.no_grad():
            read = models.encoded(base, batch)
        tokens, sees, where = blocks(batch, step)
        goal = F.pad(batch.goal, (0, models.MULTIPLE), value=models.IGNORED).gather(1, where - 1)
        counted = goal != models.IGNORED

        def guesses(tokens: Tensor) -> Tensor:
            states = models.decoded(drafter, batch, read, tokens, sees)
            at = where[..., None].expand(-1, -1, states.shape[-1])
            return models.logits_of(drafter, states.gather(1, at))

        with torch.no_grad():
            wrong = ((guesses(tokens).argmax(-1) != goal) & counted).sum(1, keepdim=True)
        share = GLANCED - 0.2 * progress()
        shown = (
            torch.rand(goal.shape, device=goal.device) * counted.sum(1, keepdim=True)
            < share * wrong
        )
        shown &= counted
        given = torch.where(shown, goal, MASK_ID)
        logits = guesses(tokens.scatter(1, where, given))
        learned = torch.where(counted & ~shown, goal, models.IGNORED)
        return F.cross_entropy(logits.flatten(0, 1), learned.flatten())

    return loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=pairs.TASKS, required=True)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--minutes", type=float, default=18.0, help="of each drafter")
    parser.add_argument(
        "--begin", type=Path, help="a folder as --work: go on from its drafters' weights"
    )
    loop.asked(parser)
    given = parser.parse_args()
    for name in given.only:
        make(name, given)


NAMES = ("shallow", "student", "blockwise", "block")


def module_of(name: str, base: T5, done: Callable[[], float]) -> tuple[Any, Loss]:
    """A new drafter and its loss. done: how much of the training is."""
    if name == "student":
        module: Any = models.new(models.STUDENT, base.config.vocab_size)
        return module, distilled(base, module)
    if name == "shallow":
        module = models.with_decoder(base, models.SHALLOW)
        return module, distilled(base, module)
    if name == "block":
        module = models.with_decoder(base, models.BLOCK)
        module.config.foretoken_block = {"mask_token_id": MASK_ID, "size": MASKS}
        return module, glancing(base, module, done)
    config = base.config
    numbers = config.d_model, config.vocab_size, config.num_decoder_layers
    facts = Facts(*numbers, config.num_heads, config.d_kv)
    module = BlockwiseHeads(facts, num_heads=HEADS)
    return module, blockwise(base, module)


def begin(module: torch.nn.Module, folder: Path) -> None:
    """Take a trained drafter's weights. Those that are shared stand in the file once."""
    left = module.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tied = {
        name for name in left.missing_keys if "embed_tokens" in name or name == "lm_head.weight"
    }
    if left.unexpected_keys or set(left.missing_keys) - tied:
        raise SystemExit(f"{folder} has other weights than this drafter; begin without it.")


def make(name: str, given: argparse.Namespace) -> None:
    """Train one, or finish it."""
    torch.manual_seed(0)
    folder, device = given.work / given.task, loop.device_of(given.device)
    tokenizer = models.tokenizer_of(given.work, given.task)
    base = models.base_of(folder / "base", device)
    done = [0.0]
    module, loss = module_of(name, base, lambda: done[0])
    if given.begin is not None:
        begin(module, given.begin / given.task / name)
    module.to(device)
    made = Made(given.work, given.task, given.rows, seed=1)
    feed = Feed(made, device, loop.workers_of(given.workers, device))

    def loss_of(step: int, batch: Batch) -> Tensor:
        with loop.mixed(device):
            return loss(step, batch)

    def notice(share: float) -> None:
        done[0] = share

    print(f"{given.task}: {name} on {device}", flush=True)
    rates = loop.Budget(given.minutes, 0.003, loop.for_rows(1e-3, given.rows))
    loop.train(module, loss_of, feed, rates, folder / f"{name}.pt", notice)
    if isinstance(module, BlockwiseHeads):
        module.cpu().save(folder / name, {})
    else:
        models.save(module, tokenizer, folder / name)


if __name__ == "__main__":
    main()
