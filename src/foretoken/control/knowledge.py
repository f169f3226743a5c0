"""Acceptance rates that outlive the process: what `auto` believes of its parts at the next start.

A file in the cache folder has a part's counts, for one target and one drafter. What is read counts
as a few nodes at most, so that new text soon outweighs it. Files are replaced whole: of two
processes that end, the later one's counts stay. Drafts change no text, so no text depends on them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from time import monotonic
from typing import Any

from foretoken.control.rates import KINDS, Rates
from foretoken.errors import ForetokenError
from foretoken.files import read_json, write_json
from foretoken.machine import cache_folder

_WEIGHT = 24.0  # tested nodes that a rate counts as at most when it is read
_EVERY = 60.0  # seconds between two writes; the last counts are written as the drafter ends
_SCHEMA = 1
_DEEPEST = 256  # levels; a file with more is not one of ours

_log = logging.getLogger(__name__)


class Knowledge:
    """The files of the parts' acceptance rates.

    owner: with it, or with the process, the latest counts are written. of: what each part's rates
    depend on, by the part's name.
    """

    def __init__(self, owner: object, of: Mapping[str, str]) -> None:
        self._files = [_File(key) for key in of.values()]
        self._due = monotonic() + _EVERY
        self._last = weakref.finalize(owner, _write, self._files)

    def read(self, rates: Seq[Rates]) -> None:
        """Add what the files have to these, the parts' own from now on."""
        for file, own in zip(self._files, rates, strict=True):
            file.read(own)

    def keep(self) -> None:
        """Write what is new, if some time has passed: on another thread, so that nobody waits."""
        if monotonic() >= self._due:
            self._due = monotonic() + _EVERY
            work: Callable[[], None] = lambda: _write(self._files)  # noqa: E731
            threading.Thread(target=work, name="foretoken-knowledge", daemon=True).start()

    def drop(self) -> None:
        """Write nothing any more."""
        self._last.detach()
        self._due = math.inf


def _write(files: Seq[_File]) -> None:
    for file in files:
        file.write()


class _File:
    """One part's counts."""

    def __init__(self, key: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        self._path, self._key = cache_folder() / "rates" / f"{name}.json", key
        self._rates: Rates | None = None
        self._known: Any = None
        self._writing = threading.Lock()

    def read(self, rates: Rates) -> None:
        try:
            if os.path.exists(self._path):  # False in a folder that can't be read
                _add(rates, read_json(self._path, "acceptance rates", schema=_SCHEMA))
        except ForetokenError as error:
            _log.warning("%s What is accepted is learned anew.", error)
        self._rates, self._known = rates, _counts(rates)

    def write(self) -> None:
        with self._writing:
            counts = _counts(self._rates) if self._rates is not None else None
            if counts == self._known:
                return
            self._known = counts
            try:
                write_json(self._path, {"schema": _SCHEMA, "of": self._key, "counts": counts})
            except ForetokenError as error:
                _log.warning("%s What is accepted is learned at every start.", error)


def _counts(rates: Rates) -> list[list[list[float]]]:
    """[kind][depth] the tested and the accepted nodes."""
    pairs = zip(rates.tested, rates.accepted, strict=True)
    return [
        [[round(n, 3), round(hits, 3)] for n, hits in zip(list(tested), list(accepted))]  # noqa: B905
        for tested, accepted in pairs
    ]


def _add(rates: Rates, data: Mapping[str, Any]) -> None:
    """Raises `ForetokenError` where these aren't counts; then nothing is added."""
    counts = data.get("counts")
    if not isinstance(counts, list) or len(counts) != KINDS or not all(map(_is_kind, counts)):
        raise ForetokenError("A file of acceptance rates has no counts of accepted nodes.")
    for kind, levels in enumerate(counts):
        for tested, accepted in levels:
            share = min(1.0, _WEIGHT / tested) if tested else 0.0
            rates.tested[kind].append(tested * share)
            rates.accepted[kind].append(min(tested, accepted) * share)


def _is_kind(levels: object) -> bool:
    return isinstance(levels, list) and len(levels) <= _DEEPEST and all(map(_is_pair, levels))


def _is_pair(pair: object) -> bool:
    """Whether these are the tested and the accepted nodes of a level."""
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(n, int | float) and 0 <= n < 1e6 for n in pair)
    )
