"""Trains the base models: `python train.py --task corrector --minutes 180 --work WORK`.

After prepare.py. Killed, it goes on where it was. WORK/TASK/base has the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import model as models
import pairs
import torch
from loop import Budget, mixed, train
from torch import Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=pairs.TASKS, required=True)
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--rows", type=int, default=64, help="pairs of a step")
    parser.add_argument("--matrix-lr", type=float, default=0.01)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    torch.manual_seed(0)
    folder = given.work / given.task
    tokenizer = models.tokenizer_of(given.work, given.task)
    model = models.new(models.BASE, len(tokenizer))
    batches = pairs.Batches(pairs.read(given.work, given.task, "train"), given.rows)

    def loss_of(step: int) -> Tensor:
        with mixed():
            return models.loss_of(model, models.collate(tokenizer, batches.batch(step)))

    budget = Budget(given.minutes, given.matrix_lr, given.lr)
    train(model, loss_of, budget, folder / "base.pt")
    models.save(model, tokenizer, folder / "base")


if __name__ == "__main__":
    main()
