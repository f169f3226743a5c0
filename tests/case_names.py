"""Names of test cases that are the same in every process: pytest-xdist compares them."""

from __future__ import annotations

import re


def case_name(value: object) -> str:
    """`repr(value)` without the address that an object's may hold."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
