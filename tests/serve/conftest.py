"""One server for all tests of this folder, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from served import Served, serving, toy


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serving(toy()) as server:
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """The official client, which doesn't ask twice."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=30) as made:
        yield made
