"""A folder that all test processes of a session share, for what takes long to make."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def shared_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Its path. One process at a time is in the block: who comes second finds what the first made.
    The folder may be missing at first."""
    own = factory.getbasetemp()  # a process's own, in one that they share
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared / name
