"""The training loop of all methods, on accelerate, with the target frozen.

What a step does is a function of the weights, the optimiser and the step's number, so a run that
was killed at any moment resumes from its last state and ends with the very same weights.
"""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.train import muon, processes, shards
from foretoken.train.batches import Batches, whole
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import AUTO, BFLOAT16, FLOAT32, Job, Progress
from foretoken.train.metrics import Metrics
from foretoken.train.muon import optimizers_for
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
from foretoken.train.resume import Resumable
from foretoken.train.stored_states import StoredStates
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Estimate, estimate

_log = logging.getLogger(__name__)
_RESUME = "resume"


Acceptance = Callable[[Trained, Any], Tensor]
"""(module, lesson) -> [B, T, N]: see `foretoken.trainable.lesson.estimate`."""

Teacher = FrozenTarget | StoredStates
"""What lessons are read from."""

StepRecords = Callable[[int], Seq[Records]]
"""Step -> the parts that its records are drawn from, each equally often."""


@contextmanager
def _norms_in_float32() -> Iterator[None]:
    """Norms keep their float32 weights among products in half precision, of which torch warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        yield


@_norms_in_float32()
def train(
    module: Trained,
    frozen: FrozenTarget,
    records: StepRecords,
    held_out: Records,
    acceptance: Acceptance,
    job: Job,
    extra: Mapping[str, Any],
    stored: StoredStates | None = None,
    watched: StoredStates | None = None,
) -> Progress:
    """Train to the recipe's end or until the estimate stops rising; `job.out` has the best weights.

    extra: more for config.json. stored: of all the texts that are learned from; watched: of the
    held-out ones, which the first process reads alone. Resumes from the last state in `job.out`, if
    there is one. Raises `ForetokenError` where that is damaged, and for a loss that isn't finite.
    """
    accelerator, recipe, progress = _accelerator(frozen, job), job.recipe, Progress()
    module.train()  # a small model was loaded for serving, and resumed would do without dropout
    working = shards.shared_out(module, accelerator.device) if job.shard else module
    optimizers = optimizers_for(working, recipe)
    wrapped = working if job.shard else accelerator.prepare(module)
    resumable = Resumable(job.out / _RESUME, working, optimizers, progress)
    resumable.resume()
    _say_if_ended(progress, recipe)
    _say_if_emulated(job.precision, accelerator.device)
    metrics = Metrics(accelerator, job.out, progress.step, vars(recipe))
    judge = partial(
        _judge, accelerator, module, watched or frozen, held_out, acceptance, job, extra
    )
    if progress.step >= recipe.steps and not progress.best:  # killed before, and fewer steps now
        if job.shard:
            shards.gather(working, module)
        judge(progress)
    saved, parts, batches = time.monotonic(), None, None
    while progress.step < recipe.steps and progress.stale < recipe.patience:
        _set_rate(optimizers, recipe, progress.step)
        now = records(progress.step)
        if batches is None or now is not parts:
            parts, batches = now, Batches.of(now, recipe, job.seed)
        progress.loss, learned = _step(
            accelerator,
            wrapped,
            optimizers,
            stored or frozen,
            batches,
            job,
            progress.step,
        )
        progress.step += 1
        rate = optimizers[0].param_groups[0]["lr"]
        measured = {"loss": progress.loss, "lr": rate, "learned": learned}
        judging = progress.step % recipe.evaluate_every == 0 or progress.step == recipe.steps
        keeping = job.keep_every is not None and progress.step % job.keep_every == 0
        if job.shard and (judging or keeping):
            shards.gather(working, module)
        if judging:
            measured["acceptance_length"] = judge(progress)
            saved = -math.inf
        if keeping and processes.is_first():
            module.save(kept(job.out, progress.step), extra)
        metrics.log(progress.step, measured)
        if processes.agreed(accelerator, time.monotonic() - saved) > job.every:
            resumable.save()
            saved = time.monotonic()
        job.report(progress)
    # DistributedDataParallel has to go before the processes' group does. As the last to refer to it
    # it would end the group's threads while it holds the GIL, which one of them may wait for.
    del wrapped
    accelerator.free_memory()
    accelerator.end_training()
    return progress


def _say_if_ended(progress: Progress, recipe: Recipe) -> None:
    """The log says where nothing is left to be trained, and what it would take."""
    lacking = []
    if progress.step >= recipe.steps:
        lacking.append(f"more steps (it has had {progress.step})")
    if progress.stale >= recipe.patience:
        lacking.append(f"more patience (its last {progress.stale} estimates were no new best)")
    if lacking and processes.is_first():
        _log.warning(
            "Nothing is trained, as this training has ended: to go on it needs %s.",
            " and ".join(lacking),
        )


def _say_if_emulated(precision: str, device: torch.device) -> None:
    """The log says where half precision is slower than float32."""
    half = precision_of(precision, device) == BFLOAT16
    if half and muon.precision(device.type) != torch.bfloat16 and processes.is_first():
        _log.warning(
            "This machine has no products of bfloat16 that torch tells of, and emulated ones are "
            "far slower than float32's; leave precision out."
        )


def _judge(
    accelerator: Any,
    module: Trained,
    teacher: Teacher,
    held_out: Records,
    acceptance: Acceptance,
    job: Job,
    extra: Mapping[str, Any],
    progress: Progress,
) -> float:
    """The estimate, by the first process; `job.out` gets the weights that have the best so far."""
    length = 0.0
    if processes.is_first():
        found = evaluate(module, teacher, held_out, acceptance, job.recipe.rows)
        length = found.acceptance_length
    length = processes.agreed(accelerator, length)
    if progress.judge(length) and processes.is_first():
        module.save(job.out, extra)
    return length


def kept(out: Path, step: int | str = "*") -> Path:
    """Where the checkpoint of a step stays."""
    number = step if isinstance(step, str) else f"{step:08d}"
    return out / "checkpoints" / f"step-{number}"


def _accelerator(frozen: FrozenTarget, job: Job) -> Any:
    accelerate = processes.accelerate()
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise ForetokenError(
            "accelerate is set to shard the model itself; launch without --use_fsdp, and give "
            "--shard to foretoken train."
        )
    # It keeps the first training's device and precision for the whole process, and takes the first
    # GPU for any other: device and precision of the products are not left to it.
    accelerator = accelerate.Accelerator(
        cpu=processes.launched() and frozen.model.device.type == "cpu",
        device_placement=False,
        mixed_precision="no",
        log_with=list(job.log_with) or None,
        project_dir=str(job.out / "logs"),
    )
    processes.meet_again(accelerator.state)
    return accelerator


def precision_of(precision: str, device: torch.device) -> str:
    """What products run in, for one of `PRECISIONS`; weights stay as they are."""
    # Older GPUs only emulate it.
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return {AUTO: BFLOAT16 if able else FLOAT32}.get(precision, precision)


def _step(
    accelerator: Any,
    module: Any,
    optimizers: Seq[Any],
    teacher: Teacher,
    batches: Batches,
    job: Job,
    step: int,
) -> tuple[float, float]:
    """One step of the optimisers: the mean loss of its tokens and what they weigh, however they are
    spread over batches and processes: a batch's loss is a mean too, and counts as much as it was
    divided by. Dropout and noise depend on the seed and on a batch's number alone, so that they are
    the same whichever process has it."""
    total, counted, recipe, seed = 0.0, 0.0, job.recipe, job.seed
    goal, own = recipe.goal, accelerator.unwrap_model(module)
    first = step * recipe.accumulation * accelerator.num_processes + accelerator.process_index
    numbers = [first + part * accelerator.num_processes for part in range(recipe.accumulation)]
    for number in numbers:
        torch.manual_seed(seed * 1_000_003 + number)
        with shards.gradients(accelerator, module, number == numbers[-1]):
            with _autocast(job.precision, next(module.parameters()).device):
                lesson = teacher.lesson(batches.batch(number), own.hidden)
                loss = module(lesson, goal)
            weight = own.counted(lesson)
            accelerator.backward(loss * weight)
        total, counted = total + float(loss.detach()) * weight, counted + weight
    learned = processes.mean(accelerator, counted)
    counted = learned or 1.0
    total = processes.mean(accelerator, total) / counted
    if not math.isfinite(total):
        raise ForetokenError(f"The loss is {total} at step {step}; lower lr or clip.")
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= counted
    _clip(accelerator, module, recipe.clip, step)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return total, learned * accelerator.num_processes


def _clip(accelerator: Any, module: Any, most: float, step: int) -> None:
    """Bound the norm of the gradients, where `most` isn't 0. Raises `ForetokenError` where it is
    none: weights that aren't numbers would rank every token first, and be taken for the best."""
    norm = shards.whole(accelerator.clip_grad_norm_(module.parameters(), most or math.inf))
    if not math.isfinite(float(norm)):
        raise ForetokenError(f"The gradients' norm is {float(norm)} at step {step}; lower lr.")


def _autocast(precision: str, device: torch.device) -> torch.autocast:
    """The products of a pass in that precision; one of `PRECISIONS`."""
    half = precision_of(precision, device) == BFLOAT16
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def _set_rate(optimizers: Seq[Any], recipe: Recipe, step: int) -> None:
    """Warm-up, then down to the floor."""
    warm = max(1, round(recipe.warmup * recipe.steps))
    done = (step - warm) / max(1, recipe.steps - warm)
    left = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "constant": 1.0}
    falling = recipe.floor + (1 - recipe.floor) * left[recipe.schedule]
    share = (step + 1) / warm if step < warm else falling
    for group in chain.from_iterable(each.param_groups for each in optimizers):
        group["lr"] = group["peak"] * share * group["factor"]


@torch.no_grad()
def evaluate(
    module: Trained, teacher: Teacher, held_out: Records, acceptance: Acceptance, rows: int
) -> Estimate:
    """What serving the held-out prompts would accept, from one teacher-forced pass."""
    module.eval()
    total = Estimate()
    for lesson in lessons(teacher, held_out, module, rows):
        total.add(estimate(lesson.max_nodes, acceptance(module, lesson)))
    module.train()
    return total


@torch.no_grad()
def note_held_out_counts(module: Trained, teacher: Teacher, held_out: Records, rows: int) -> None:
    """Have the module store counts over held-out text, such as how often each rank is right."""
    module.eval()
    parts = [module.count_held_out(lesson) for lesson in lessons(teacher, held_out, module, rows)]
    counts = [part for part in parts if part is not None]
    if counts:
        module.note_counts(torch.stack(counts).sum(0))


def lessons(teacher: Teacher, held_out: Records, module: Trained, rows: int) -> Iterable[Any]:
    """Every held-out record once."""
    for batch in whole(held_out, rows):
        yield teacher.lesson(batch, module.hidden)
