"""The models in each engine's format, and the other engines' workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoints import convert, once, to_gguf
from environments import libraries, prepare, python
from lineup import ENGINES, PLAIN
from protocol import Failed, Worker
from run import HERE, script

from foretoken.models import bundled
from foretoken.models.gguf import is_named, write_folder
from foretoken.models.load import find, read_config
from real_table.cells import Cell
from real_table.lineup import PEERS, TARGETS, rows

if TYPE_CHECKING:
    from real_table.serve import Bench


def checkpoint(name: str, bench: Bench) -> Path:
    """What `LLM` reads: the model's own file, or the folder of a bundled one."""
    return bench.models / name if is_named(name) else find(name)


def drafter(name: str, folder: Path | None) -> Path | None:
    """Where a trained drafter lies: in the folder, or else in the zoo; None where it doesn't."""
    if folder is None:
        return bundled.path(name) if name in bundled.names() else None
    return folder / name if (folder / name / "config.json").is_file() else None


def dequantised(path: Path, bench: Bench) -> Path:
    """A file's weights as a folder, made once."""
    return once(bench.work / "models" / path.stem, lambda out: write_folder(path, out))


def given_to(peer: str, name: str, bench: Bench) -> Path:
    """The model as a peer reads it, made once."""
    weights, path = PEERS[peer].weights, checkpoint(name, bench)
    if weights == "gguf" and is_named(path):
        return path
    folder = dequantised(path, bench) if is_named(path) else path
    if weights == "gguf":
        return once(bench.work / "models" / f"{path.name}.gguf", lambda out: to_gguf(folder, out))
    if weights == "folder":
        return folder
    made = bench.work / "models" / f"{folder.name}-openvino-{weights}"
    return once(made, lambda out: _to_openvino(folder, weights, out))


def _to_openvino(folder: Path, weights: str, out: Path) -> None:
    command = str(python("openvino").with_name("optimum-cli"))
    words = ["--task", "text-generation-with-past", "--weight-format", weights]
    if weights == "int4":
        words += ["--group-size", str(group_size(folder))]
    convert(command, "export", "openvino", "--model", str(folder), *words, str(out))


def group_size(folder: Path) -> int:
    """Weights that share a scale in 4 bits: OpenVINO's 128, or less where rows are no multiple of
    it."""
    config = read_config(folder)
    widths = config.hidden_size, config.intermediate_size
    return next(n for n in (128, 64, 32, 16, 1) if not any(width % n for width in widths))


@contextmanager
def started(cell: Cell, bench: Bench, folder: Path, end: int) -> Iterator[dict[str, Worker]]:
    """The workers of a cell's other engines, those that start; why others don't is in left_out.json
    of the cell's folder. end: the token that ends a text."""
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for peer in cell.peers:
            try:
                workers[peer] = _worker(peer, cell, bench, folder, end)
            except (Failed, OSError) as error:
                left_out[peer] = str(error)
                print(f"{peer} is left out: {error}", file=sys.stderr)
                continue
            stack.callback(workers[peer].close)
        if cell.peers:
            (folder / "left_out.json").write_text(json.dumps(left_out))
        yield workers


def _worker(peer: str, cell: Cell, bench: Bench, folder: Path, end: int) -> Worker:
    engine, target = PEERS[peer].engine, TARGETS[cell.target]
    home = ENGINES[engine]
    assert home is not None
    prepare(home)
    wanted = {
        row.method: row.options
        for row in rows(peer, target)
        if not cell.beside or row.kind == PLAIN or (peer, row.method) in cell.beside
    }
    given: dict[str, Any] = {
        **PEERS[peer].given,
        "target": str(given_to(peer, target.model, bench)),
        "draft": str(given_to(peer, target.draft, bench)) if target.draft else None,
        "threads": bench.threads,
        "eos": end,
        "server": str(libraries() / "llama-server"),
        "context": 2048 + 256,
        "methods": wanted,
    }
    env = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": str(bench.threads),
        "HF_HUB_OFFLINE": "1",
        "LLAMA_CPP_LIB_PATH": str(libraries()),
    }
    log = folder / f"{peer.replace(' ', '-')}.log"
    return Worker([str(python(home)), str(script(engine)), json.dumps(given)], log, env=env)
