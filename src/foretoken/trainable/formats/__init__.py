"""Checkpoints of other projects, read as they are: one format a file.

A format is a function from a `Source` to a `Published`, our description of the same checkpoint, or
to None where the folder is of another format. `recognise` tries them in order, the most specific
first; `fitting` compares the tensors with a module, `fill` puts them into one.
"""

from __future__ import annotations

from pathlib import Path

from foretoken.errors import ForetokenError, one_line
from foretoken.files import read_json
from foretoken.models import load
from foretoken.trainable.formats import (
    dflash,
    eagle,
    eagle3,
    hydra,
    kangaroo,
    medusa,
    mlp_speculator,
    mtp,
)
from foretoken.trainable.formats.fill import fill, fitting
from foretoken.trainable.formats.published import MASK_FILE, TORCH, Published, Source

__all__ = ["Published", "fill", "find", "fitting", "recognise"]


def _unknown_speculators(source: Source) -> None:
    """Refuses the other types of `speculators`."""
    kind = source.config.get("speculators_model_type")
    if kind is not None:
        raise source.refusal(
            f"it is a {kind!r} of speculators, and only its 'eagle3', 'peagle', 'dflash' and 'mtp' "
            "are"
        )


_FORMATS = (
    medusa.read,
    hydra.read,
    mlp_speculator.read,
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
    """The checkpoint of another project in a folder; None where it is ours or of no known format.

    Raises `ForetokenError` for one of a known format that can't be served.
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
            published = read(source)
        except KeyError as error:
            raise source.refusal(f"it lacks {error.args[0]!r}") from error
        except ForetokenError:
            raise
        except Exception as error:  # its numbers may be anything
            raise source.refusal(
                f"its config.json has a value of a wrong kind ({one_line(error)})"
            ) from error
        if published is not None:
            return published
    return None


def find(source: str | Path) -> Path:
    """A drafter's folder, as `load.find` finds it; from the hub with torch's own files where there
    are no others."""
    folder = load.find(source, (*load.FILES, MASK_FILE))
    if Path(source).is_dir() or any(folder.glob("*.safetensors")):
        return folder
    return load.find(source, (*load.FILES, *TORCH, MASK_FILE))
