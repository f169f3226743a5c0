"""What a record says of the machine."""

from __future__ import annotations

import json

from foretoken.bench.measure.environment import environment


def test_environment_is_complete() -> None:
    """Every key is there, and JSON can hold it."""
    wanted = (
        "cpu cpu_features cores memory_gib gpu os python torch transformers foretoken git_commit "
        "threads date"
    )
    found = environment()
    assert set(found) == set(wanted.split())
    assert found["cores"] >= 1 and json.dumps(found)
