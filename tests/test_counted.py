"""benchmarks/counted.py: what is counted along answers is what serving takes."""

from __future__ import annotations

import sys
from pathlib import Path

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
    """Of each prompt at temperature 0; a pair's but for the last places, whose drafts serving cuts
    to what is left of the answer. At 1 there are as many tokens, in fewer passes. Answers are
    written once."""
    asked = find_suite("bundled").round_robin(1)[:4]
    texts = counted.written("mini", asked, {0.0: 1, 1.0: 2}, MOST, tmp_path / "answers.json")
    assert counted.written("", asked, {}, 0, tmp_path / "answers.json") == texts
    keep = [prompt for prompt in asked if prompt.id in texts["0.0"]]
    along = counted.Along("mini", texts, MOST, 4)
    one = {"method": "sps", "model": str(folders[0]), "num_speculative_tokens": 4}
    alone, other, pair = (along.counts(own) for own in (folders[:1], folders[1:], folders))
    assert alone["0.0"] == served("mini", one, 0.0, keep, 1, MOST)
    both = served("mini", merged(folders, 4), 0.0, keep, 1, MOST)
    for name, (tokens, passes) in pair["0.0"].items():
        assert tokens == both[name][0] and 0 <= both[name][1] - passes <= 2
        assert passes <= min(alone["0.0"][name][1], other["0.0"][name][1])
    assert alone["0.0"] != other["0.0"] != pair["0.0"]
    for name, (tokens, passes) in alone["1.0"].items():
        assert tokens == sum(len(answer) for _, answer in texts["1.0"][name])
        assert tokens / 5 <= passes <= tokens and passes != other["1.0"][name][1]
