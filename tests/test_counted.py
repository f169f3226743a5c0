"""benchmarks/counted.py: what is counted along answers is what serving takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import zoo
from foretoken.bench.suites.suite import find_suite
from foretoken.models.load import load_model
from foretoken.train.drafter import merged
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import counted  # noqa: E402
from lengths import served  # noqa: E402

MOST = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The bundled draft model, and another that drafts other tokens."""
    first, second = Path(zoo.path("mini-draft")), tmp_path_factory.mktemp("second")
    module = TrainedLM.from_shape(Facts.of(load_model(zoo.path("mini"))), {"model": str(first)}, "")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.2 * weight.std() * torch.randn_like(weight)
    module.save(second, {})
    return [first, second]


def test_counts_are_those_of_serving(folders: list[Path], tmp_path: Path) -> None:
    """Of each prompt at temperature 0, alone and in a pair; at 1 as many tokens, in fewer passes
    than tokens. Answers are written once."""
    asked = find_suite("bundled").round_robin(1)[:4]
    texts = counted.written("mini", asked, {0.0: 1, 1.0: 2}, MOST, tmp_path / "answers.json")
    assert counted.written("", asked, {}, 0, tmp_path / "answers.json") == texts
    keep = [prompt for prompt in asked if prompt.id in texts["0.0"]]
    along = counted.Along("mini", texts, MOST, 4)
    chains: list[tuple[list[Path], dict[str, Any]]] = [
        ([path], {"method": "sps", "model": str(path), "num_speculative_tokens": 4})
        for path in folders[:1]
    ]
    for own, config in [*chains, (folders, merged(folders, 4))]:
        found = along.counts(own)
        assert found["0.0"] == served("mini", config, 0.0, keep, 1, MOST)
        for name, (tokens, passes) in found["1.0"].items():
            assert tokens == sum(len(answer) for _, answer in texts["1.0"][name])
            assert tokens / 5 <= passes <= tokens
    alone = [along.counts([path]) for path in folders]
    assert alone[0]["0.0"] != alone[1]["0.0"] and alone[0]["1.0"] != alone[1]["1.0"]
