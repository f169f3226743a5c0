"""Answers kept beside the record, so that another machine can go on with them.

A cell's folder is one compressed file, named after the cell; what was settled for all of them
stands beside these. A cell that is done is written once. One that was begun on another processor
begins anew, so that a round's times are one machine's; rounds may be of several, and the record
names each.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from foretoken.files import read_json, replacing
from foretoken.machine import features, processor
from real_table.cells import OF_TRAINED, Cell
from real_table.progress import DONE, OPENED, PLAN, SETTLED, check_plan
from real_table.record import MEMORY
from real_table.serve import CELL

ENDING = ".tar.xz"
_WHOLE = (PLAN, SETTLED, OPENED, MEMORY)


def unpack(archive: Path, work: Path) -> None:
    """Put what the archive has into a working folder that has none of it. Raises `ForetokenError`
    where the folder is for another plan, whose cells would be mixed up with the archive's."""
    if not (archive / PLAN).is_file():
        return
    if (work / PLAN).is_file():
        check_plan(archive, read_json(work / PLAN, "a benchmark's plan"))
        return
    work.mkdir(parents=True, exist_ok=True)
    for path in sorted(archive.glob(f"*{ENDING}")):
        with tarfile.open(path) as packed:
            packed.extractall(work, filter="data")
    for folder in _cells(work):
        if not (folder / DONE).is_file() and not _begun_here(folder):
            shutil.rmtree(folder)
    for name in _WHOLE:
        if (archive / name).is_file():
            shutil.copy(archive / name, work)


def pack(work: Path, archive: Path) -> None:
    """Write what the archive lacks of a working folder."""
    archive.mkdir(parents=True, exist_ok=True)
    for folder in _cells(work):
        path = archive / f"{folder.name}{ENDING}"
        if not path.is_file() or not _is_done(path):
            with replacing(path) as file, tarfile.open(fileobj=file, mode="w:xz") as packed:
                for part in sorted(folder.iterdir()):
                    if part.suffix != ".log" and not _forgotten(part):
                        packed.add(part, f"{folder.name}/{part.name}")
    for name in _WHOLE:
        if (work / name).is_file():
            shutil.copy(work / name, archive)
    if (work / OPENED).is_file():
        _only_of_now(work, archive)


def _only_of_now(work: Path, archive: Path) -> None:
    """Remove what was measured of earlier trained drafters."""
    cells = read_json(work / OPENED, "the trained drafters")["cells"]
    names = {f"{Cell.from_json(cell).name}{ENDING}" for cell in cells}
    for path in archive.glob(f"{OF_TRAINED}_*{ENDING}"):
        if path.name not in names:
            path.unlink()


def _cells(work: Path) -> Iterator[Path]:
    return (path.parent for path in sorted(work.glob(f"*/{CELL}")))


def _is_done(path: Path) -> bool:
    with tarfile.open(path) as packed:
        return any(Path(name).name == DONE for name in packed.getnames())


def _forgotten(part: Path) -> bool:
    """What methods remember, which nobody needs once all is served."""
    return part.is_dir() and (part.parent / DONE).is_file()


def _begun_here(folder: Path) -> bool:
    where = json.loads((folder / CELL).read_text(encoding="utf-8"))["environment"]
    return bool(where["cpu"] == processor() and where["cpu_features"] == features())
