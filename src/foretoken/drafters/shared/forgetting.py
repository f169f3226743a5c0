"""What a drafter shares across requests where it also counts what no file keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from foretoken.protocols import Shared


class Forgetting:
    """own: what is saved and loaded, if anything is. forget: called whenever that is reset; what it
    clears is not saved."""

    def __init__(self, own: Shared | None, forget: Callable[[], None]) -> None:
        self._own, self._forget = own, forget

    def reset(self) -> None:
        self._forget()
        if self._own is not None:
            self._own.reset()

    def save(self, path: str | Path) -> None:
        if self._own is not None:
            self._own.save(path)

    def load(self, path: str | Path) -> None:
        if self._own is not None:
            self._own.load(path)
