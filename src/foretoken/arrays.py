"""Files of arrays, which say what they are: how drafters keep what they learned or were given.

One .npz file: the arrays, and a header in JSON that names the kind of thing, the format's version
and what it was made for (a vocabulary's size, a layer count …). Each part has zip's checksum, and
nothing in the file is ever run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import ForetokenError
from foretoken.files import replacing

Arrays = dict[str, NDArray[np.integer]]
"""Whole numbers by name."""

_HEADER = "header"
_DAMAGE = (BadZipFile, EOFError, KeyError, TypeError, ValueError, zlib.error)


def write_arrays(
    path: str | Path,
    kind: str,
    made_for: Mapping[str, int | str],
    arrays: Mapping[str, NDArray[np.integer]],
    *,
    version: int = 1,
) -> None:
    """Write or replace the file, whole or not at all. `kind` in plain words: "suffix automaton".

    Raises `ForetokenError` where it can't be written.
    """
    header = json.dumps({"kind": kind, "version": version, "made_for": dict(made_for)})
    with replacing(path) as file:
        np.savez(file, **{_HEADER: np.frombuffer(header.encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]


def read_arrays(
    path: str | Path,
    kind: str,
    made_for: Mapping[str, int | str],
    names: Seq[str],
    *,
    version: int = 1,
) -> Arrays:
    """The named arrays of a file that `write_arrays` wrote for the same kind, version and use.

    Raises `ForetokenError` for a file that is missing, damaged or something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(bytes(file[_HEADER]))
            given = header["kind"], header["version"], dict(header["made_for"])
            arrays = {name: file[name] for name in names} if given[0] == kind else {}
    except OSError as error:
        reason = error.strerror or "it is no such file"
        raise ForetokenError(f"{path} can't be read as a {kind}: {reason}.") from error
    except _DAMAGE as error:
        raise ForetokenError(
            f"{path} is damaged or not a {kind} that foretoken saved; make it again."
        ) from error
    _check(path, kind, version, made_for, given)
    return arrays


def _check(
    path: str | Path,
    kind: str,
    version: int,
    made_for: Mapping[str, int | str],
    given: tuple[str, int, dict[str, int | str]],
) -> None:
    if given[0] != kind:
        raise ForetokenError(f"{path} holds a {given[0]}; expected is a {kind}.")
    if given[1] != version:
        raise ForetokenError(
            f"{path} is a {kind} of version {given[1]} and this foretoken reads version {version}; "
            "make it again."
        )
    for what, expected in made_for.items():
        if given[2].get(what) != expected:
            raise ForetokenError(
                f"{path} was made for {what} {given[2].get(what)} and this target has "
                f"{expected}; use a {kind} of this target's."
            )
