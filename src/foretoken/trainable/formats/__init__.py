"""Checkpoints of other projects, read as they are: one format a file.

A format is a function from a `Source` to what it amounts to here, a `Published`, or to None where
the folder is none of its own. `recognise` asks them in order, the most particular first; `fill`
puts the tensors into a module.
"""

from __future__ import annotations

from pathlib import Path

from foretoken.errors import ForetokenError
from foretoken.files import read_json
from foretoken.models import load
from foretoken.trainable.formats import dflash, eagle, eagle3, hydra, kangaroo, medusa, mtp
from foretoken.trainable.formats.fill import fill
from foretoken.trainable.formats.published import TORCH, Published, Source

__all__ = ["Published", "fill", "find", "recognise"]


def _unknown_speculators(source: Source) -> None:
    kind = source.config.get("speculators_model_type")
    if kind is not None:
        raise source.refusal(
            f"it is a {kind!r} of speculators, and only its 'eagle3', 'dflash' and 'mtp' are"
        )


_FORMATS = (
    medusa.read,
    hydra.read,
    eagle3.read_speculators,
    dflash.read_speculators,
    mtp.read,
    _unknown_speculators,
    dflash.read,
    eagle3.read,
    eagle.read,
    kangaroo.read,
)


def recognise(folder: Path) -> Published | None:
    """What a folder amounts to here, or None where it is our own or nobody's that is known.

    Raises `ForetokenError` for one that is known and can't be served.
    """
    try:
        config = read_json(folder / "config.json", "a checkpoint's config")
    except ForetokenError:
        return None
    if "foretoken_method" in config:
        return None
    source = Source(folder, config)
    for read in _FORMATS:
        try:
            found = read(source)
        except KeyError as error:
            raise source.refusal(f"it lacks {error.args[0]!r}") from error
        if found is not None:
            return found
    return None


def find(source: str | Path) -> Path:
    """A drafter's folder, as `load.find` finds it; from the hub with torch's own files where there
    are no others."""
    folder = load.find(source)
    if Path(source).is_dir() or any(folder.glob("*.safetensors")):
        return folder
    return load.find(source, TORCH)
