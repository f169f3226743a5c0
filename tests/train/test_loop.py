"""The training loop: what ends it, and that its state is found again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foretoken import ForetokenError
from foretoken.models.load import load_model
from foretoken.models.model import CausalLM
from foretoken.train import loop, muon
from foretoken.train.batches import Batches
from foretoken.train.drafter import trainable
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job, Progress
from foretoken.train.loop import train
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.small_lm import TrainedLM
from stored_models import written

accelerate = pytest.importorskip("accelerate")


def train_heads(target: Path, out: Path, broken: bool = False) -> Progress:
    """One step of Medusa's heads, whose weights may be NaN."""
    model = load_model(target, backend="plain")
    module = trainable("medusa").module(Facts.of(model))
    if broken:
        torch.nn.init.constant_(next(iter(module.parameters())), float("nan"))
    records = Records.of([([1, 2], [3, 4, 5])] * 4, 8, model.vocab_size)
    recipe = Recipe(length=16, max_tokens=8, steps=1)
    return train(
        module,
        FrozenTarget(model),
        lambda step: [records],
        records,
        lambda m, lesson: lesson.max_nodes[..., None] > 9,
        Job("medusa", str(target), [], recipe, out),
        {},
    )


def test_a_loss_that_is_none(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """NaN ends the training with a sentence."""
    with pytest.raises(ForetokenError, match="loss is nan at step 0"):
        train_heads(checkpoints[0], tmp_path, broken=True)


def test_gradients_that_are_none(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a loss that is a number: no weights are changed by them, nor kept as the best."""

    def forward(self: Any, lesson: Any, objective: Any) -> torch.Tensor:
        weight = next(iter(self.parameters()))
        return (weight - weight.detach()).abs().sum().sqrt()

    monkeypatch.setattr(trainable("medusa").module, "forward", forward)
    with pytest.raises(ForetokenError, match="gradients' norm is nan at step 0"):
        train_heads(checkpoints[0], tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


OTHERS = count()
"""Seeds of whatever else is random in the process."""


class Killed(Exception):
    """The end of a training that didn't reach its own."""


def weights_after(
    module: Trained, model: CausalLM, job: Job, killed_at: int
) -> dict[str, torch.Tensor]:
    """What a training learns, or one that ends after `killed_at`."""
    records = Records.of([([1, 2], [3, 4, 5, 6])] * 4, 8, model.vocab_size)

    def report(progress: Progress) -> None:
        torch.manual_seed(next(OTHERS))
        if progress.step == killed_at:
            raise Killed

    with nullcontext() if not killed_at else pytest.raises(Killed):
        train(
            module,
            FrozenTarget(model),
            lambda step: [records],
            records,
            lambda m, lesson: lesson.max_nodes[..., None] > 9,
            replace(job, report=report),
            {},
        )
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}


def train_eagle(
    target: Path,
    out: Path,
    killed_at: int = 0,
    accumulation: int = 1,
    steps: int = 4,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Steps of EAGLE's layer, whose training draws noise, by both optimisers."""
    model = load_model(target, backend="plain")
    torch.manual_seed(1)
    module = EagleModule(Facts.of(model))
    numbers = {"length": 16, "max_tokens": 8, "steps": steps, "evaluate_every": 9}
    recipe = Recipe(**numbers, accumulation=accumulation, matrix_lr=0.01)
    job = Job("eagle", str(target), [], recipe, out, every=0.0, seed=seed)
    return weights_after(module, model, job, killed_at)


def test_noise_is_found_again(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A step's random numbers are a function of its number: two runs end with the same weights,
    and so does one that was killed in between and resumed."""
    straight = train_eagle(checkpoints[0], tmp_path / "straight")
    killed = train_eagle(checkpoints[0], tmp_path / "killed", 2)
    resumed = train_eagle(checkpoints[0], tmp_path / "killed")
    assert any(not torch.equal(straight[name], killed[name]) for name in straight)
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def train_with_dropout(
    target: Path, draft: Path, out: Path, killed_at: int = 0
) -> dict[str, torch.Tensor]:
    """Steps of a small model whose attention drops some, judged after the second and the fourth."""
    model = load_model(target, backend="plain")
    module = TrainedLM(Facts.of(model), model=str(draft))
    recipe = Recipe(length=16, max_tokens=8, steps=4, evaluate_every=2)
    job = Job("sps", str(target), [], recipe, out, every=0.0)
    return weights_after(module, model, job, killed_at)


def test_dropout_is_found_again(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A model that was loaded for serving drops none: it has to be put into training before the
    first step, also where the training goes on."""
    draft = written(tmp_path / "draft", vocab_size=97, attention_dropout=0.5)
    straight = train_with_dropout(checkpoints[0], draft, tmp_path / "straight")
    train_with_dropout(checkpoints[0], draft, tmp_path / "killed", 3)
    resumed = train_with_dropout(checkpoints[0], draft, tmp_path / "killed")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_fewer_steps_than_were_done(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A training that was killed before its first estimate, and is to have ended by now: what it
    has learned is judged, and is its checkpoint."""
    killed = train_eagle(checkpoints[0], tmp_path, 3)
    ended = train_eagle(checkpoints[0], tmp_path, steps=2)
    assert all(torch.equal(killed[name], ended[name]) for name in killed)
    assert (tmp_path / "model.safetensors").is_file()


def test_noise_is_the_batchs_own(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a step has several batches, of which other processes might have some; and the
    seed's, by which texts are drawn too."""
    drawn: list[list[float]] = []
    passing, seeds = loop._autocast, list[int]()

    def of(parts: Any, recipe: Recipe, seed: int) -> Batches:
        seeds.append(seed)
        return Batches.of(parts, recipe, seed)

    def autocast(precision: str, device: torch.device) -> torch.autocast:
        """Each batch's pass begins with it."""
        drawn.append(torch.rand(4).tolist())
        return passing(precision, device)

    monkeypatch.setattr(loop, "_autocast", autocast)
    monkeypatch.setattr(loop, "Batches", SimpleNamespace(of=of))
    train_eagle(checkpoints[0], tmp_path / "two", accumulation=2)
    two = drawn.copy()
    drawn.clear()
    assert len(two) == 8 and len({tuple(each) for each in two}) == 8
    train_eagle(checkpoints[0], tmp_path / "one")
    assert two[:4] == drawn
    drawn.clear()
    train_eagle(checkpoints[0], tmp_path / "other", steps=1, seed=1)
    assert drawn[0] not in two and seeds == [*[0] * 8, 1]


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("cosine", [0.5, 1.0, 1.0, 0.55, 0.1]),
        ("linear", [0.5, 1.0, 1.0, 0.55, 0.1]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_schedules(schedule: str, shares: list[float]) -> None:
    """At the first steps, after the warm-up of two, half of the way down, and at the end."""
    optimizer, other = (
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=9.0) for _ in range(2)
    )
    optimizer.param_groups[0].update(peak=2.0, factor=1.5)
    other.param_groups[0].update(peak=0.5, factor=1.0)
    recipe = Recipe(steps=10, warmup=0.2, floor=0.1, schedule=schedule, lr=2.0)
    found = []
    for step in (0, 1, 2, 6, 10):
        loop._set_rate([optimizer, other], recipe, step)
        found.append(optimizer.param_groups[0]["lr"] / 3)
        assert other.param_groups[0]["lr"] == pytest.approx(found[-1] / 2)
    assert found == pytest.approx(shares)
    quarter = {"cosine": 0.1 + 0.9 * (1 + 2**-0.5) / 2, "linear": 0.775, "constant": 1.0}
    loop._set_rate([optimizer], recipe, 4)
    assert optimizer.param_groups[0]["lr"] / 3 == pytest.approx(quarter[schedule])


def test_the_drafter_stays_where_its_target_is(tmp_path: Path) -> None:
    """accelerate would move what it prepares to the first GPU (here: to the CPU)."""
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    elsewhere: Any = SimpleNamespace(model=SimpleNamespace(device=torch.device("meta")))
    accelerator = loop._accelerator(elsewhere, Job("medusa", "mini", [], Recipe(), tmp_path))
    assert accelerator.prepare(module).weight.is_meta


def test_estimates_are_made_without_noise(checkpoints: tuple[Path, Path]) -> None:
    """Nor dropout; and what is learned after one has them again."""
    model, noisy = load_model(checkpoints[0], backend="plain"), list[bool]()
    module = EagleModule(Facts.of(model)).train()
    records = Records.of([([1, 2], [3, 4, 5, 6])] * 3, 8, model.vocab_size)

    def acceptance(one: Any, lesson: Any) -> torch.Tensor:
        noisy.append(one.training)
        none: torch.Tensor = lesson.max_nodes[..., None] > 9
        return none

    loop.evaluate(module, FrozenTarget(model), records, acceptance, 2)
    assert noisy == [False, False] and module.training


def test_counts_are_of_all_held_out_texts() -> None:
    """In however many batches they come; where a module counts nothing it is told nothing."""
    records, noted = Records.of([([1, 2], [3, 4])] * 3, 8, 97), list[list[int]]()
    teacher: Any = SimpleNamespace(lesson=lambda rows, hidden: rows)

    def note(counts: torch.Tensor) -> None:
        noted.append(counts.tolist())

    for counted in (lambda rows: torch.tensor([1, len(rows.tokens)]), lambda rows: None):
        given = {"eval": lambda: None, "hidden": (-1,), "count_held_out": counted}
        module: Any = SimpleNamespace(**given, note_counts=note)
        loop.note_held_out_counts(module, teacher, records, 2)
    assert noted == [[2, 3]]


def new_module(method: str, model: CausalLM) -> Trained:
    """A small module in float64; DFlash's learns from every place."""
    shapes: dict[str, dict[str, Any]] = {
        "medusa": {},
        "sps": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        "dflash": {"num_layers": 1, "block_size": 4, "heads": 2, "anchors": 32},
    }
    torch.manual_seed(1)
    module: Trained = trainable(method).module(Facts.of(model), **shapes[method]).double()
    return module


def known_in_part(lesson: Lesson) -> torch.Tensor:
    """Weights as if earlier drafters knew one token."""
    return lesson.weight * torch.where(lesson.tokens == 3, 0.25, 1.0)


def train_packed(
    method: str, target: Path, out: Path, rows: int, accumulation: int
) -> dict[str, torch.Tensor]:
    """Three steps along answers of very different lengths, of which some is known."""
    model = load_model(target, dtype=torch.float64, backend="plain")
    module = new_module(method, model)
    pairs = [([1] * 25, [2, 3]), ([4], [5, 6, 7, 8, 9] * 6), ([1] * 9, [3] * 20)]
    records = Records.of(pairs, 30, model.vocab_size)
    recipe = Recipe(
        length=32,
        max_tokens=30,
        steps=3,
        rows=rows,
        accumulation=accumulation,
        warmup=0.0,
        prompt_weight=0.25,
        decay=0.5,
    )
    losses: list[float] = []
    train(
        module,
        FrozenTarget(model, weigh=known_in_part),
        lambda step: [records],
        records,
        lambda m, lesson: lesson.max_nodes[..., None] > 9,
        Job(method, str(target), [], recipe, out, report=lambda now: losses.append(now.loss)),
        {},
    )
    weights = {name: weight.detach().clone() for name, weight in module.state_dict().items()}
    return {**weights, "losses": torch.tensor(losses)}


@pytest.mark.parametrize("method", ["medusa", "sps", "dflash"])
def test_a_steps_tokens_count_alike(
    checkpoints: tuple[Path, Path], tmp_path: Path, method: str
) -> None:
    """Whether they come in one batch of four rows or in four of one, which have more and less to
    predict: also where earlier drafters know some of it, and tokens count less the further they
    are in a block."""
    together = train_packed(method, checkpoints[0], tmp_path / "one", rows=4, accumulation=1)
    apart = train_packed(method, checkpoints[0], tmp_path / "four", rows=1, accumulation=4)
    for name, weight in together.items():
        torch.testing.assert_close(apart[name], weight, rtol=1e-5, atol=1e-5)


def test_gradients_that_are_not_bounded() -> None:
    """By a bound of 0; by another one they are."""
    clip: Any = SimpleNamespace(clip_grad_norm_=torch.nn.utils.clip_grad_norm_)
    for most, expected in ((0.0, 5.0), (1.0, 1.0)):
        module = torch.nn.Linear(2, 1, bias=False)
        module.weight.grad = torch.tensor([[3.0, 4.0]])
        loop._clip(clip, module, most, 0)
        assert module.weight.grad.norm().item() == pytest.approx(expected, rel=1e-4)


def test_the_checkpoint_has_the_best_weights(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """Not those of a later estimate that is no better."""
    model = load_model(checkpoints[0], dtype=torch.float64, backend="plain")
    module, judged = new_module("medusa", model), list[dict[str, torch.Tensor]]()
    records = Records.of([([1, 2], [3, 4, 5, 6])] * 4, 8, model.vocab_size)
    shares = iter((0.0, 0.5, 0.5, 0.2))

    def acceptance(one: Trained, lesson: Lesson) -> torch.Tensor:
        judged.append({name: weight.clone() for name, weight in one.state_dict().items()})
        return torch.full((*lesson.max_nodes.shape, 1), next(shares))

    recipe = Recipe(length=16, max_tokens=8, steps=4, evaluate_every=1)
    job = Job("medusa", str(checkpoints[0]), [], recipe, tmp_path)
    done = train(module, FrozenTarget(model), lambda step: [records], records, acceptance, job, {})
    saved = load_file(tmp_path / "model.safetensors")
    same = [all(torch.equal(saved[name], each[name]) for name in saved) for each in judged]
    assert same == [False, True, False, False] and done.stale == 2


def weighing(share: float) -> Callable[[Lesson], torch.Tensor]:
    """Each token by so much more."""
    return lambda lesson: share * lesson.weight


def test_what_a_step_changes(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights, by both optimisers; what is bounded is the mean's gradient, whatever its tokens
    weigh, and the mean is told as it was before. Where none counts, nothing changes."""
    model = load_model(checkpoints[0], dtype=torch.float64, backend="plain")
    records = Records.of([([1, 2], [3, 4, 5, 6])] * 4, 8, model.vocab_size)
    recipe = Recipe(length=16, max_tokens=8, steps=1, matrix_lr=0.01)
    norms, clip, none = list[float](), loop._clip, torch.zeros(1, 1, 1)
    rows = Batches.of([records], recipe, 0).batch(0)

    def noting(accelerator: Any, module: Any, most: float, step: int) -> None:
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in module.parameters()]).item())
        clip(accelerator, module, most, step)

    monkeypatch.setattr(loop, "_clip", noting)
    for share in (1.0, 100.0, 0.0):
        module = new_module("medusa", model)
        before = {name: weight.clone() for name, weight in module.state_dict().items()}
        target = FrozenTarget(model, weigh=weighing(share))
        mean = module(target.lesson(rows, module.hidden), recipe.goal).item()
        job = Job("medusa", str(checkpoints[0]), [], recipe, tmp_path / str(share))
        done = train(module, target, lambda step: [records], records, lambda *given: none, job, {})
        same = [torch.equal(before[name], weight) for name, weight in module.state_dict().items()]
        assert done.loss == pytest.approx(mean) and (not any(same) if share else all(same))
    assert norms == [norms[0], pytest.approx(norms[0]), 0.0] and norms[0] > 0


@pytest.mark.parametrize("own", [False, True])
def test_gpus_that_only_emulate_bfloat16(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in float32, unless they are told otherwise."""

    def supported(including_emulation: bool = True) -> bool:
        return own or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    gpu, wanted = torch.device("cuda"), "bfloat16" if own else "float32"
    assert loop.precision_of("auto", gpu) == wanted
    assert loop.precision_of("bfloat16", gpu) == "bfloat16"


def test_emulated_products_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where they are asked for, on a machine without its own."""
    for own, precision, told in (
        (torch.float32, "bfloat16", True),
        (torch.float32, "auto", False),
        (torch.bfloat16, "bfloat16", False),
    ):
        caplog.clear()
        monkeypatch.setattr(muon, "precision", lambda device, own=own: own)
        loop._say_if_emulated(precision, torch.device("cpu"))
        assert ("slower than float32's" in caplog.text) is told


def test_norms_in_half_precision_warn_of_nothing() -> None:
    """Their weights stay in float32, by design."""
    norm, states = torch.nn.RMSNorm(8), torch.ones(2, 8, dtype=torch.bfloat16)
    torch.set_warn_always(True)  # torch says it once, and may have
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with loop._norms_in_float32():
                norm(states)
            assert not said
            norm(states)  # it would have
            assert "Mismatch dtype" in str(said[0].message)
    finally:
        torch.set_warn_always(False)
