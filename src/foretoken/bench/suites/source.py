"""Where a suite's rows come from: a file, a file with a public home, or a hub dataset.

A file is looked for next to the description that names it, then in the folder of texts (`data.py`),
then in the cache; last it is downloaded, checked and put into the cache. A file that exists but has
another sha256 than described is an error, not a reason to look further.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from foretoken.bench.suites import data
from foretoken.errors import ForetokenError
from foretoken.files import read_json_lines, write_file
from foretoken.machine import cache_folder

FILES = (".jsonl", ".jsonl.gz", ".parquet", ".txt")
_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Source:
    """The `source:` of a description.

    file: a path of one of `FILES`. url: its public home, which needs its sha256.
    dataset: an id on the hub, with a split and where needed a config and a revision.
    """

    file: str | None = None
    url: str | None = None
    sha256: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if (self.dataset is None) == (self.file is None):
            raise ForetokenError("source needs either a file or a dataset.")
        if self.url is not None and self.sha256 is None:
            raise ForetokenError("source has a url without a sha256; give the file's sha256 too.")
        if self.url is not None and not self.url.startswith(("https:", "http:")):
            raise ForetokenError(f"source: url is {self.url!r}; give one that starts with https:.")
        if self.dataset is None and (self.config or self.split or self.revision):
            raise ForetokenError("source: config, split and revision go with a dataset.")
        if self.dataset is not None and (self.split is None or self.url or self.sha256):
            raise ForetokenError("source: a dataset needs a split and takes no url and no sha256.")


@dataclass(frozen=True)
class Rows:
    """The rows read. numbered: (line in the file or place in the dataset, row)."""

    where: str
    sha256: str
    numbered: tuple[tuple[int, dict[str, Any]], ...]


def read_source(source: Source, folder: Path, cache: Path | None, download: bool) -> Rows:
    """The rows of a source that a description in `folder` names.

    Raises `ForetokenError` where they can't be read or a line is no JSON object.
    """
    if source.dataset is not None:
        options = {"split": source.split, "revision": source.revision}
        return _dataset(source.dataset, source.dataset, source.config, **options)
    return read_file(_find(source, folder, cache or cache_folder(), download))


def read_file(path: Path) -> Rows:
    """The rows of a file: a JSON object a line, also with gzip; parquet; text with a prompt a
    line."""
    if path.suffix == ".parquet":
        if not path.is_file():
            raise ForetokenError(f"There is no file {path}.")
        return _dataset(str(path), "parquet", data_files=str(path), split="train")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error.strerror}.") from error
    try:
        text = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ForetokenError(f"{path} can't be unpacked: {error}.") from error
    numbered = tuple((_texts if path.suffix == ".txt" else _lines)(text, path))
    if not numbered:
        raise ForetokenError(f"{path} holds no prompts.")
    return Rows(str(path), hashlib.sha256(content).hexdigest(), numbered)


def _lines(text: bytes, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in read_json_lines(text.split(b"\n"), path):
        if not isinstance(row, dict):
            raise ForetokenError(f"{path}, line {number}: not a JSON object.")
        yield number, row


def _texts(text: bytes, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every line that isn't blank, as a prompt."""
    try:
        lines = text.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not text in UTF-8: {error}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, {"prompt": line.removesuffix("\r")}


def at_hand(source: Source, folder: Path, cache: Path | None = None) -> Path | None:
    """Where on this machine the file lies that a description in `folder` names; None where it isn't
    here, and for a dataset, whose library keeps its own files."""
    return next(filter(Path.is_file, _places(source, folder, cache or cache_folder())), None)


def _places(source: Source, folder: Path, cache: Path) -> list[Path]:
    """Where the file may be, in the order in which it is looked for."""
    if source.file is None:
        return []
    local = [base / source.file for base in (folder, data.folder()) if base is not None]
    return [*local, _cached(source, cache)] if source.url else local


def _cached(source: Source, cache: Path) -> Path:
    assert source.file is not None
    return cache / "suites" / f"{(source.sha256 or '')[:16]}-{Path(source.file).name}"


def _find(source: Source, folder: Path, cache: Path, download: bool) -> Path:
    """The file, downloaded if it is nowhere."""
    if (path := at_hand(source, folder, cache)) is not None:
        return path
    if source.url is None:
        places = " or ".join(map(str, _places(source, folder, cache)))
        raise ForetokenError(f"There is no file {places}.")
    if not download:
        raise ForetokenError(
            f"{source.file} is not on this machine, and downloading it is switched off; "
            f"put it into the folder that {data.VARIABLE} names."
        )
    path = _cached(source, cache)
    _download(source, path)
    return path


def _download(source: Source, to: Path) -> None:
    """Fetch, check, and only then let the file appear."""
    assert source.url is not None
    try:
        with urlopen(source.url, timeout=_TIMEOUT) as reply:
            content: bytes = reply.read()
    except (OSError, HTTPException) as error:
        raise ForetokenError(
            f"{source.url} can't be downloaded ({getattr(error, 'reason', error)}); "
            f"where you have the file, give it as NAME=PATH."
        ) from error
    check_sha256(source.url, hashlib.sha256(content).hexdigest(), source.sha256)
    write_file(to, content)


def check_sha256(where: str, actual: str, published: str | None) -> None:
    """Raise `ForetokenError` where a file is not the one that was published."""
    if published is not None and actual != published:
        raise ForetokenError(
            f"{where} has the sha256 {actual}, and the published file has {published}; get it "
            f"again, or describe it in another YAML file."
        )


def _dataset(where: str, *args: Any, **options: Any) -> Rows:
    """Rows through the datasets library; the sha256 is that of the rows as lines of JSON."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ForetokenError(
            f"{where} is read with the datasets library; install it with: pip install datasets"
        ) from error
    try:
        rows = [dict(row) for row in load_dataset(*args, **options)]
        lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    except Exception as error:  # whatever the hub, its client and a dataset's types raise
        raise ForetokenError(f"The dataset {where} can't be read: {error}") from error
    if not rows:
        raise ForetokenError(f"The dataset {where} holds no prompts.")
    return Rows(where, hashlib.sha256(lines.encode()).hexdigest(), tuple(enumerate(rows, 1)))
