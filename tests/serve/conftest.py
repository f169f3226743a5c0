"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from served import Served, serving, toy


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serving(toy()) as server:
        yield server
