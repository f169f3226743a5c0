"""The options of `foretoken bench` alone."""

from __future__ import annotations

import dataclasses

import pytest

from foretoken.bench.suites.suite import find_suite
from foretoken.cli.bench_options import BenchOptions


def test_the_default_prompts_need_no_network() -> None:
    """They come with the package."""
    assert len(find_suite(BenchOptions().suite, download=False).prompts) == 81


def test_a_server_is_measured_only_when_asked_for() -> None:
    """By default foretoken itself is; `--engine openai` is somebody else's server."""
    assert not BenchOptions().remote and BenchOptions(engine="openai").remote


def test_options_do_not_change_on_the_way() -> None:
    """A job reads what the user gave, wherever it is read."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        BenchOptions().limit = 3  # type: ignore[misc]
