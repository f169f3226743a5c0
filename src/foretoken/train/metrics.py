"""What a training measures, step by step: a line of JSON each, and whatever else shows curves."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError, unknown
from foretoken.files import write_file

FILE = "metrics.jsonl"
TRACKERS = ("tensorboard", "wandb")
"""Libraries that accelerate writes for."""


def check_trackers(names: Seq[str]) -> None:
    """Raises `ForetokenError` for a library that isn't known or isn't installed: accelerate would
    leave it out."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        from accelerate.tracking import get_available_trackers

        if name not in map(str, get_available_trackers()):
            raise ForetokenError(f"{name} is not installed; install it by pip install {name}.")


class Metrics:
    """Writes `out`/metrics.jsonl, and to the trackers that the accelerator was made with. step: the
    one that a run resumes from; lines after it, of steps that are done again, are removed."""

    def __init__(self, accelerator: Any, out: Path, step: int, settings: dict[str, Any]) -> None:
        self._accelerator, self._path = accelerator, out / FILE
        if accelerator.log_with:
            plain = {name: str(value) for name, value in settings.items()}
            accelerator.init_trackers(out.resolve().name, config=plain)
        if accelerator.is_main_process:
            lines = self._path.read_text().splitlines() if self._path.is_file() else []
            kept = [line for line in lines if _step(line) <= step]
            write_file(self._path, "".join(f"{line}\n" for line in kept))

    def log(self, step: int, values: dict[str, float]) -> None:
        """Of one step, by name."""
        if self._accelerator.is_main_process:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        if self._accelerator.log_with:
            self._accelerator.log(values, step=step)


def _step(line: str) -> float:
    """Of a line; beyond all where it was cut."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
