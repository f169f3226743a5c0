"""Trains the base models: `python train.py --task corrector --minutes 180 --work WORK`.

After prepare.py. Killed, it goes on where it was. WORK/TASK/base has the result.
"""

from __future__ import annotations

import argparse
from typing import Any

import loop
import model as models
import pairs
import torch
from feed import Feed, Made
from model import Batch
from torch import Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=pairs.TASKS, required=True)
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--matrix-lr", type=float, default=0.01, help="of Muon")
    parser.add_argument("--lr", type=float, help="of AdamW; default: 0.002 · √(rows / 64)")
    loop.asked(parser)
    given = parser.parse_args()
    torch.manual_seed(0)
    folder, device = given.work / given.task, loop.device_of(given.device)
    tokenizer = models.tokenizer_of(given.work, given.task)
    model: Any = models.new(models.BASE, len(tokenizer)).to(device)
    made = Made(given.work, given.task, given.rows, seed=0)
    feed = Feed(made, device, loop.workers_of(given.workers, device))

    def loss_of(step: int, batch: Batch) -> Tensor:
        with loop.mixed(device):
            return models.loss_of(model, batch)

    print(f"{given.task}: base on {device}", flush=True)
    lr = loop.for_rows(2e-3, given.rows) if given.lr is None else given.lr
    budget = loop.Budget(given.minutes, given.matrix_lr, lr)
    loop.train(model, loss_of, feed, budget, folder / "base.pt")
    models.save(model, tokenizer, folder / "base")


if __name__ == "__main__":
    main()
