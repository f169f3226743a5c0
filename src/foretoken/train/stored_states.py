"""The target's states along the texts to learn from, computed once and read in every epoch.

A folder of safetensors files, each with the states of so many whole records in the target's own
dtype. A file is written whole or not at all, so writing goes on where it was stopped; of several
processes each writes its share. A target that is shared out is run for a file by all of them, so
the first one says which files are missing.

Legend: B rows, T places of a row, D width.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.files import replacing
from foretoken.progress import track
from foretoken.train import processes
from foretoken.train.batches import Rows, whole
from foretoken.train.data import digest_of
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective

_TOKENS = 8192  # of a file, and what its last record has beyond
_ROWS = 8  # records read at once
_ABOUT = "states of"  # the entry of a file's metadata


@dataclass(frozen=True)
class StoredStates:
    """What lessons of these texts read from files in place of the target's passes. starts: the
    first place of each file's records."""

    frozen: FrozenTarget
    starts: list[int]
    files: list[dict[int, Tensor]]

    def lesson(self, rows: Rows, layers: Seq[int]) -> Lesson:
        """As `FrozenTarget.lesson`, of rows of these texts. Raises `ForetokenError` where the
        drafter reads more of the target than its states."""
        given = self.frozen.model.device, self.frozen.dtype
        hidden = {layer: self._read(rows.places, layer).to(*given) for layer in layers}
        return self.frozen.lesson_of(rows, hidden, _not_stored, _not_stored)

    def _read(self, places: Tensor, layer: int) -> Tensor:
        """[B, T, D]; 0 where there is padding."""
        flat = places.flatten()
        found = torch.zeros(
            len(flat), self.files[0][layer].shape[1], dtype=self.files[0][layer].dtype
        )
        number = torch.bucketize(flat, torch.tensor(self.starts), right=True) - 1
        for file in number.unique().tolist():
            if file >= 0:
                here = (number == file).nonzero()[:, 0]
                found[here] = self.files[file][layer][flat[here] - self.starts[file]]
        return found.view(*places.shape, -1)


def _not_stored(*given: Any) -> Any:
    raise ForetokenError(
        "This drafter learns from more of the target than its states; leave out states, or "
        "shard_target."
    )


def check_states_suffice(
    module: Trained, frozen: FrozenTarget, rows: Rows, goal: Objective
) -> None:
    """Raise `ForetokenError` for a drafter that reads more of the target than its states, which
    the first of these rows tells, whatever its states are."""
    row = Rows(*(each[:1] for each in rows))
    shape = (*row.tokens.shape, module.facts.hidden_size)
    states = torch.zeros(shape, dtype=frozen.dtype, device=frozen.model.device)
    hidden = dict.fromkeys(module.hidden, states)
    with torch.no_grad():
        module(frozen.lesson_of(row, hidden, _not_stored, _not_stored), goal)


def stored_states(
    frozen: FrozenTarget,
    records: Records,
    layers: Seq[int],
    folder: Path,
    *,
    weights: str = "",
    show: bool = True,
) -> StoredStates:
    """The states after these layers, read from `folder` or written there first. weights: what tells
    the target from others of its shape. show: a progress bar. Raises `ForetokenError` where the
    folder has those of something else, and where they can't be written."""
    spans = list(_spans(records))
    missing = [number for number in range(len(spans)) if not _path(folder, number).exists()]
    if frozen.together:
        missing = processes.as_first(missing)
    with track("Writing states", len(spans), show and processes.is_first()) as advance:
        for number, span in enumerate(spans):
            mine, part = processes.is_mine(number), records.span(*span)
            if number in missing and (mine or frozen.together):
                states = _states(frozen, part, layers)
                if mine:
                    about = _about(frozen, part, layers, weights)
                    _write(_path(folder, number), states, json.dumps(about))
            advance()
    files = []
    for number, span in enumerate(spans):
        processes.wait_for(_path(folder, number))
        about = _about(frozen, records.span(*span), layers, weights)
        files.append(_opened(_path(folder, number), layers, about))
    return StoredStates(frozen, [int(records.starts[first]) for first, _ in spans], files)


def _spans(records: Records) -> Iterator[tuple[int, int]]:
    """The first record of each file, and the one after its last."""
    first, starts = 0, records.starts.tolist()
    while first < len(records):
        end = min(bisect_right(starts, starts[first] + _TOKENS - 1), len(records))
        yield first, end
        first = end


def _path(folder: Path, number: int) -> Path:
    return folder / f"states-{number:05d}.safetensors"


def _about(
    frozen: FrozenTarget, records: Records, layers: Seq[int], weights: str
) -> dict[str, Any]:
    """What a file must have been written for."""
    model = frozen.model
    return {
        "texts": digest_of(records),
        "parameters": model.parameters,
        "weights": weights,
        "dtype": str(model.dtype),
        "layers": list(layers),
    }


def _states(frozen: FrozenTarget, records: Records, layers: Seq[int]) -> dict[str, Tensor]:
    """Layer -> [tokens, D]"""
    dtype = frozen.model.dtype
    found: dict[str, Tensor] = {}
    for rows in whole(records, _ROWS):
        hidden, there = frozen.lesson(rows, layers).hidden, rows.places >= 0
        for layer, states in hidden.items():
            if str(layer) not in found:
                shape = (len(records.tokens), states.shape[-1])
                found[str(layer)] = torch.empty(shape, dtype=dtype)
            found[str(layer)][rows.places[there]] = states.cpu()[there].to(dtype)
    return found


def _write(path: Path, states: dict[str, Tensor], about: str) -> None:
    from safetensors.torch import save

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(save(states, {_ABOUT: about}))


def _opened(path: Path, layers: Seq[int], about: dict[str, Any]) -> dict[int, Tensor]:
    """Tensors whose numbers are read when they are taken."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            noted = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
            found = {n: file.get_tensor(str(n)) for n in layers} if noted == about else {}
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ForetokenError(
            f"{path} can't be read ({type(error).__name__}); remove it, and it is written again."
        ) from error
    if not found:
        raise ForetokenError(
            f"{path} has states of other texts, another target or precision, or other layers; "
            "remove its folder, or give another one."
        )
    return found
