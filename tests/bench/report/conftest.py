"""Fixtures that several tests of this folder share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import synthetic
from compared import Make, answers, measured_folder
from foretoken.bench.report.page import write_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two precisions of made-up numbers, and their pages."""
    found = tmp_path_factory.mktemp("report")
    first = synthetic.results(temperatures=(0.0, 1.0), sizes=(1, 4))
    second = synthetic.results("bfloat16", temperatures=(0.0,), sizes=(1,), inflated="135m")
    write_report(synthetic.write(found, first, second), reference=True)
    return found


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a", pld=1.1): plain decoding, and pld a tenth slower than in its first run."""

    def build(
        name: str, *, seed: int = 0, noise: float = 0.02, size: int = 1, **given: Any
    ) -> Path:
        factors = {key: given.pop(key) for key in list(given) if key in synthetic.METHODS}
        factors = {"autoregressive": 1.0, "pld": 1.0, **factors}
        found = [
            a
            for i, (method, factor) in enumerate(factors.items())
            if factor is not None
            for a in answers(method, 10 * seed + i, factor, noise, size)
        ]
        return measured_folder(tmp_path / name, found, **given)

    return build
