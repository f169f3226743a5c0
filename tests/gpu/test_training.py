"""Training on the GPU: every recipe, checkpoints, precisions, resuming, stored states, pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM, METHODS, SamplingParams
from foretoken.models.load import load_tokenizer
from foretoken.testing import tiny_transformers
from foretoken.testing.checks import texts
from on_device import DEVICE, MARKS

pytest.importorskip("accelerate")
pytest.importorskip("yaml")

from foretoken.train.job import Job, Outcome
from foretoken.train.prune import Size, prune, write
from foretoken.train.recipe import read_recipe, recipes
from foretoken.train.run import make
from trainings import PROMPTS, SHAPE

pytestmark = MARKS

TINY: dict[str, Any] = {
    "length": 64,
    "max_tokens": 24,
    "held": 2,
    "rows": 2,
    "steps": 3,
    "evaluate_every": 3,
    "patience": 9,
    "distinct": 0.0,
    "own_texts": 2,
}
SHAPES: dict[str, dict[str, Any]] = {
    "sps": SHAPE,
    "glide": {"block_size": 3, "heads": 2, "kv_heads": 1},
    "dflash": {"num_layers": 1, "block_size": 4, "anchors": 8},
    "dflash2": {"num_layers": 1, "block_size": 4, "anchors": 8, "selector_rank": 4},
    "kangaroo": {"exit_layer": 1},
    "eagle3": {"unroll": 2, "draft_vocab_size": 40, "norms": []},
    "eagle3-sglang": {"unroll": 2, "draft_vocab_size": 40, "norms": []},
    "peagle": {"num_layers": 1, "depths": 3, "blocks": 8, "draft_vocab_size": 40, "norms": []},
    "medusa2-lora": {"num_heads": 2, "num_layers": 1, "own_lm_heads": False, "lora_rank": 4},
}
"""What a tiny target needs another shape for."""
TRAINED = {"hydra-plus": "hydra", "eagle3-sglang": "eagle3", "medusa2-lora": "medusa2"}
"""Recipes of another method's name."""
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def trained(
    recipe: str,
    checkpoints: tuple[Path, Path],
    out: Path,
    steps: int = 3,
    shape: dict[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """A few steps on the device."""
    own = {"specdec": {"masks": 3, "blocks": 8, "model": str(checkpoints[1])}, **SHAPES}
    changes = {**TINY, "steps": steps}
    if shape or recipe in own:
        changes["shape"] = shape or own[recipe]
    read = read_recipe(recipe, changes)
    given: dict[str, Any] = {"device": str(DEVICE), "show": False, "every": 0.0, **options}
    return make(Job(TRAINED.get(recipe, recipe), str(checkpoints[0]), PROMPTS, read, out, **given))


def check_serves(method: str, target: Path, model: Path) -> None:
    """The checkpoint is read onto the GPU, and greedy text is the target's; in float64, since a
    batch is rounded in another way than a row."""
    config = {"method": method, "model": str(model)}
    given: dict[str, Any] = {"device": DEVICE, "dtype": "float64", "eos_ids": ()}
    written = []
    for own in (config, None):
        with LLM(target, speculative_config=own, **given) as llm:
            outputs = llm.generate(["the sea", "a house a house"], GREEDY, raise_on_error=True)
            written.append(texts(outputs))
    assert written[0] == written[1]


@pytest.mark.parametrize("recipe", recipes())
def test_each_recipe(recipe: str, checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Three steps, a checkpoint, and it serves."""
    if "lora" in recipe:
        pytest.importorskip("peft")
    out, losses = tmp_path / "out", list[float]()
    trained(recipe, checkpoints, out, report=lambda now: losses.append(now.loss))
    assert len(losses) == 3 and all(loss == loss for loss in losses)
    method = TRAINED.get(recipe, recipe)
    if method == "medusa2":
        check_serves("medusa", out / "target", out / "heads")
    else:
        assert METHODS[method].drafter
        check_serves(method, checkpoints[0], out)


@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("recipe", ["medusa", "eagle3", "dflash2", "sps", "parallel_prompt"])
def test_precisions(
    recipe: str, precision: str, dtype: str, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """Of the products, and of the target."""
    losses: list[float] = []
    trained(
        recipe,
        checkpoints,
        tmp_path / "out",
        precision=precision,
        dtype=dtype,
        report=lambda now: losses.append(now.loss),
    )
    assert len(losses) == 3 and all(loss == loss for loss in losses)


@pytest.mark.parametrize("recipe", ["medusa", "sps"])
def test_a_finished_training_goes_on(
    recipe: str, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """From the state that it left, on the GPU, with more steps."""
    steps: list[int] = []
    for more in (3, 5):
        trained(
            recipe,
            checkpoints,
            tmp_path / "out",
            steps=more,
            report=lambda now: steps.append(now.step),
        )
    assert steps == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("source", ["target+drafter", "drafter"])
def test_texts_of_its_own(source: str, checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    trained("sps", checkpoints, tmp_path / "out", source=source)
    check_serves("sps", checkpoints[0], tmp_path / "out")


def test_stored_states(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Written from the GPU and read back onto it."""
    from safetensors.torch import load_file

    weights, stored = [], tmp_path / "states"
    given = {"dtype": "float64", "precision": "float32"}
    for name, states in (("live", None), ("stored", stored), ("again", stored)):
        trained("eagle3", checkpoints, tmp_path / name, states=states, **given)
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    for name, weight in weights[0].items():
        for other in weights[1:]:
            off = (other[name].double() - weight.double()).abs().mean()
            assert off < 1e-4  # the steps move them by far more


def test_cut_out_of_a_target(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A small model, cut out on the CPU as `foretoken prune` does, is trained and serves."""
    model = tiny_transformers(97, max_length=4096, dtype=torch.float32)
    small = prune(model, Size(1, intermediate_size=32), [[1, 2, 3, 4, 5], [9, 8, 7]])
    write(small, load_tokenizer(checkpoints[0]), tmp_path / "small")
    check_serves("sps", checkpoints[0], tmp_path / "small")
    trained("sps", checkpoints, tmp_path / "out", shape={"model": str(tmp_path / "small")})
    check_serves("sps", checkpoints[0], tmp_path / "out")
