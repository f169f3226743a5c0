"""The shape of the code: what lies on the top level, how large things are, who imports whom."""

from __future__ import annotations

import statistics
from pathlib import Path

import structure

TOP_LEVEL = {
    "__init__", "__main__", "errors", "progress", "machine", "files", "repetition", "logs", "draws",
    "tree", "protocols", "access", "step", "length", "registry", "tuned", "speculative_config",
    "methods", "config", "llm", "async_llm", "hook", "certify", "recommender", "spellings",
    "ray_cluster", "deep_copy",
}  # fmt: skip


def test_the_top_level_is_what_a_newcomer_sees_first() -> None:
    """What more than one part of the library stands on, the front doors, and nothing else."""
    assert {path.stem for path in structure.SOURCE.glob("*.py")} <= TOP_LEVEL


def test_the_core_is_small() -> None:
    """The loop, and what it is made of, can be read in one sitting."""
    assert sum(structure.core_size().values()) <= 990


def test_functions_are_short() -> None:
    """Lines of code of functions: the median, the 90th percentile, the share of long ones."""
    sizes = structure.function_sizes()
    assert statistics.median(sizes) <= 7
    assert statistics.quantiles(sizes, n=10)[-1] <= 20
    assert sum(size > 50 for size in sizes) <= 0.004 * len(sizes)


def test_the_formatter_decides() -> None:
    """Code that the formatter must not touch is the exception."""
    assert structure.skips() < 20


TESTED_ELSEWHERE = {
    "bench/run/server.py": "a protocol",
    "cli/export.py": "with the formats that it writes",
    "models/native/backends/both.py": "test_backends.py, as are the next three",
    "models/native/backends/int4.py": "on a GPU",
    "models/native/backends/packed.py": "against plain",
    "models/native/backends/plain.py": "it is the reference",
    "models/native/layer.py": "types",
    "train/subject.py": "a protocol",
}
"""Modules without a test file of their name, and why."""


def test_every_module_has_its_namesake() -> None:
    """What verify/block.py promises is tested in tests/verify/test_block.py."""
    tests = Path(__file__).parent
    missing = set()
    for path in structure.modules().values():
        inside = path.relative_to(structure.SOURCE)
        if (
            not path.stem.startswith("__")
            and not (tests / inside.with_name(f"test_{path.name}")).is_file()
        ):
            missing.add(inside.as_posix())
    assert missing == set(TESTED_ELSEWHERE)


def test_no_import_circles() -> None:
    """Neither at load nor later: imports inside functions and for types count."""
    assert structure.circle(structure.imports()) == []


def test_a_circle_is_seen() -> None:
    """The check can fail: three modules in a ring, one that only looks on."""
    ring = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert set(structure.circle(ring)) == {"a", "b", "c"}
    assert structure.circle({"a": {"b"}, "b": set()}) == []
