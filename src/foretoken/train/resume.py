"""What a training resumes from: weights, the optimisers' numbers and the progress in one file, with
whole tensors, so that another number of processes goes on with it."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from foretoken.errors import ForetokenError
from foretoken.train import processes
from foretoken.train.job import Progress


@dataclass(frozen=True)
class Resumable:
    """One training's, whose files are in `folder`."""

    folder: Path
    module: nn.Module
    optimizers: Seq[torch.optim.Optimizer]
    progress: Progress

    def save(self) -> None:
        """Write a file under another name, rename it, then delete the older ones. A collective.
        Raises `ForetokenError` where it can't be written."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=processes.count() > 1)
        weights, numbers = get_state_dict(self.module, self.optimizers, options=options)
        if not processes.is_first():
            return
        state = {"weights": weights, "optimizers": numbers, "progress": self.progress.state_dict()}
        unfinished = self.folder / "unfinished"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.save(state, unfinished)
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())  # or a power failure could leave neither this nor the last
        except (OSError, RuntimeError) as error:  # the latter: how torch says that the disk is full
            raise ForetokenError(
                f"A state to resume from in {self.folder} can't be written "
                f"({type(error).__name__}); the disk may be full. The state before is kept, and "
                "the same command resumes there."
            ) from error
        unfinished.rename(self.folder / f"step-{self.progress.step:08d}.pt")
        for old in self._files()[:-1]:
            old.unlink()

    def resume(self) -> None:
        """Load the last complete state, if there is one. Raises `ForetokenError` where it is
        damaged or another training's."""
        files = self._files()
        if not files:
            return
        try:
            state = torch.load(files[-1], map_location="cpu", weights_only=True)
            self._load(state)
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as error:
            raise ForetokenError(
                f"{files[-1]} can't be resumed from ({type(error).__name__}); it is damaged or of "
                "another shape: remove the file or give another --out."
            ) from error

    def _load(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.module,
            self.optimizers,
            model_state_dict=state["weights"],
            optim_state_dict=state["optimizers"],
            options=StateDictOptions(full_state_dict=True),
        )
        self.progress.load_state_dict(state["progress"])

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))
