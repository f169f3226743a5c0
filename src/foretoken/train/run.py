"""Trains a method's drafter for a target on prompts: a checkpoint and its card."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError, unknown
from foretoken.errors.values import check_range
from foretoken.files import held, read_json, write_file
from foretoken.llm import LLM
from foretoken.models.load import load_model
from foretoken.models.model import CausalLM
from foretoken.train import joint, processes, shards, shared_target
from foretoken.train.batches import Batches, joined
from foretoken.train.data import digest_of
from foretoken.train.drafter import DrafterTraining, config_of
from foretoken.train.engines import beside
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import PRECISIONS, Job, Outcome, Setting
from foretoken.train.loop import (
    StepRecords,
    Teacher,
    evaluate,
    kept,
    note_held_out_counts,
    precision_of,
    train,
)
from foretoken.train.metrics import check_trackers
from foretoken.train.records import Records
from foretoken.train.sources import (
    are_written,
    estimated_on,
    hold_out,
    step_records,
    texts,
    write_missing,
)
from foretoken.train.stored_states import StoredStates, check_states_suffice, stored_states
from foretoken.train.subject import Subject
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.lesson import Estimate
from foretoken.tree import MOST_NODES

_DIFFERENTIABLE = "plain", "transformers"
"""Backends that gradients pass through; the latter is of models that don't run natively."""
_WRITTEN = 64
"""Texts that the target writes side by side, where there is memory for them."""
_LARGEST_SEED = 10**12
"""Of a training: the seeds of its batches, which follow from it, have 64 bits."""


def make(job: Job) -> Outcome:
    """Write the texts, train, measure, and leave checkpoint and card in the job's folder.

    A finished training goes on where the recipe has more steps, or more patience. Raises
    `ForetokenError` for what can't be trained like this, and for a folder that has another
    training, or in which another process trains.
    """
    job = replace(job, device=processes.device(job.device))
    kind = checked(job)
    _check_free(job.out, kind.folders)
    with _held(job.out):
        setting = prepare(job)
        return run(setting, kind(setting))


def checked(job: Job) -> type[Subject]:
    """What it trains. Raises `ForetokenError` for what can't be trained like this, as far as that
    can be told before anything is loaded."""
    kind: type[Subject] = joint.JointTraining if job.method == joint.METHOD else DrafterTraining
    check_trackers(job.log_with)
    if job.precision not in PRECISIONS:
        raise unknown("precision", job.precision, PRECISIONS)
    check_range(0, _LARGEST_SEED, seed=job.seed)
    if job.keep_every is not None and job.keep_every < 1:
        raise ForetokenError(f"keep_every is {job.keep_every}; it must be at least 1.")
    kind.check(job)
    if job.shard:
        shards.check("shard", "a drafter")
    if job.shard_target:
        shards.check("shard_target", "the target")
    return kind


def _check_free(out: Path, parts: Seq[str]) -> None:
    """Raise `ForetokenError` for a folder with files that no training has written there and this
    one would replace: a model's, or a page. parts: folders in it that are written to as well."""
    places = [out, *(out / part for part in parts)]
    theirs = [file for place in places for kind in _REPLACED for file in place.glob(kind)]
    if theirs and not (out / _NOTE).exists():
        raise ForetokenError(
            f"{theirs[0]} wasn't written by a training in {out}, and this one would replace it; "
            "give another --out."
        )


def _held(out: Path) -> AbstractContextManager[None]:
    """The folder for this training: its first process holds it for all of a launch."""
    return held(out) if processes.is_first() else nullcontext()


def prepare(job: Job) -> Setting:
    """Load the target and write the texts, or read them where they were written before. A target
    that is to be shared out writes before it is."""
    if job.shard_target:
        if not are_written(job):
            _write(job)
        llm = _shared_out(job)
        given = _given(llm, job)
    else:
        llm = _whole(job)
        with beside(llm, llm.model, job.recipe.length, _WRITTEN) as writer:
            given = _given(writer, job)
    model = differentiable(llm, job.target)
    return Setting(job, llm, model, Facts.of(model), *given)


def _write(job: Job) -> None:
    """Write the texts with a target that is let go afterwards."""
    with _whole(job) as llm, beside(llm, llm.model, job.recipe.length, _WRITTEN) as writer:
        write_missing(writer, job)
    del llm, writer
    gc.collect()  # a model and what runs it may refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _given(llm: LLM, job: Job) -> tuple[dict[str, Records], Records, str]:
    """The records to learn from, the held-out ones, and a digest that identifies the texts."""
    written = texts(llm, job)
    return (*hold_out(llm, job, written), digest_of(Records.joined(list(written.values()))))


def _whole(job: Job) -> LLM:
    """The target in an engine for one text."""
    config = config_of(job.target, job.trust_remote_code).get_text_config()
    length = job.recipe.length
    context = getattr(config, "max_position_embeddings", None) or length
    return LLM(
        job.target,
        dtype=job.dtype,
        device=job.device,
        max_num_seqs=1,
        max_model_len=min(length, context),
        trust_remote_code=job.trust_remote_code,
    )


def _shared_out(job: Job) -> LLM:
    """The target, shared out, in an engine that is never asked for a text: for its tokenizer, its
    context and the ends of its texts."""
    model = shared_target.load(job)
    return LLM(
        model,
        tokenizer=job.target,
        max_num_seqs=1,
        max_model_len=min(job.recipe.length, model.max_length),
        trust_remote_code=job.trust_remote_code,
    )


def differentiable(llm: LLM, target: str) -> CausalLM:
    """The target on a backend that gradients pass through, loaded once more only where the one
    that writes isn't."""
    if llm.model.backend in _DIFFERENTIABLE:
        return llm.model
    return load_model(
        target,
        dtype=llm.model.dtype,
        device=llm.model.device,
        backend="plain",
        trust_remote_code=llm.trust_remote_code,
    )


def run(setting: Setting, subject: Subject) -> Outcome:
    """Train and measure, from the beginning or from the last saved state. Of several processes the
    first one measures."""
    job = setting.job
    # Serving makes room for as large a tree as the drafter's is.
    given = MOST_NODES, job.recipe.temperature, subject.weigh
    frozen = FrozenTarget(setting.model, *given, together=job.shard_target)
    module = initial_module(setting, subject, frozen)
    acceptance = subject.acceptance(module)
    records = step_records(setting, module)
    if job.states is not None or job.shard_target:
        _check_states_suffice(setting, module, frozen)
    if processes.is_first():  # once nothing is refused any more: the folder is this training's then
        note_run(job.out, _identity(setting, subject))
    stored = _stored(setting, module, frozen, records)
    watched = _watched(setting, module, frozen)
    progress = train(
        module, frozen, records, setting.held_out, acceptance, job, subject.extra, stored, watched
    )
    if not processes.is_first():
        return Outcome(progress, Estimate(), AcceptanceStats())
    teacher = watched or frozen
    finish(setting, subject, module, teacher)
    expected = evaluate(module, teacher, setting.held_out, acceptance, job.recipe.rows)
    served = AcceptanceStats() if job.shard_target else subject.serve(module)
    outcome = Outcome(progress, expected, served)
    subject.write_card(module, frozen, outcome)
    return outcome


def _stored(
    setting: Setting, module: Trained, frozen: FrozenTarget, records: StepRecords
) -> StoredStates | None:
    """The target's states along what is learned from, where the job has a folder for them."""
    job = setting.job
    if job.states is None:
        return None
    return stored_states(
        frozen,
        joined(records(0)),
        module.hidden,
        job.states,
        weights=job.weights,
        show=job.show,
    )


def _watched(setting: Setting, module: Trained, frozen: FrozenTarget) -> StoredStates | None:
    """Its states along the held-out texts, where it is shared out: estimates are made by the first
    process alone, and passes by all."""
    job = setting.job
    if not job.shard_target:
        return None
    given = setting.held_out, module.hidden, job.out / "held-out"
    return stored_states(frozen, *given, weights=job.weights, show=job.show)


def _check_states_suffice(setting: Setting, module: Trained, frozen: FrozenTarget) -> None:
    """Raise `ForetokenError` for a drafter that reads more of the target than its states."""
    recipe = setting.job.recipe
    rows = Batches.of(list(setting.records.values()), recipe, setting.job.seed).batch(0)
    check_states_suffice(module, frozen, rows, recipe.goal)


def _identity(setting: Setting, subject: Subject) -> dict[str, Any]:
    """The settings that must be the same when a training is resumed."""
    job = setting.job
    return {
        "method": job.method,
        "target": asdict(setting.facts),
        "weights": job.weights,
        "texts": setting.digest,
        **subject.identity,
        "seed": job.seed,
        "precision": precision_of(job.precision, setting.model.device),
        "trust_remote_code": job.trust_remote_code,
        "estimated_on": estimated_on(job),
        **asdict(job.recipe),
    }


_NOTE = "training.json"
_REPLACED = ("config.json", "*.safetensors", "README.md")
_GROWING = ("steps", "patience")
"""Settings of a training that a later command may change, so that it goes on or ends earlier."""


def note_run(out: Path, about: Mapping[str, Any]) -> None:
    """Write the training's settings into the folder. Raises `ForetokenError` where it has those of
    another training."""
    path = out / _NOTE
    if not path.exists():
        write_file(path, json.dumps(about, indent=1) + "\n")
        return
    stored = read_json(path, "a training's settings")
    now = json.loads(json.dumps(about))
    keys = [key for key in {**now, **stored} if key not in _GROWING]
    different = next((key for key in keys if stored.get(key) != now.get(key)), None)
    if different is not None:
        raise ForetokenError(
            f"Another training was begun in {out}: {different} was {stored.get(different)!r} "
            f"and is now {now.get(different)!r}; give another --out."
        )
    if now != stored:
        write_file(path, json.dumps(now, indent=1) + "\n")


def initial_module(setting: Setting, subject: Subject, frozen: FrozenTarget) -> Trained:
    """The module as it begins: new weights, or copies of the target's."""
    torch.manual_seed(setting.job.seed)
    module = subject.new_module().to(frozen.model.device, frozen.dtype)
    learned = next(iter(setting.records.values()))
    module.set_token_counts(learned.counts(setting.facts.vocab_size))
    module.copy_from(frozen)
    return module


def finish(setting: Setting, subject: Subject, module: Trained, teacher: Teacher) -> None:
    """Read back the best weights, which may not be the last, and complete their checkpoint."""
    out = setting.job.out
    module.read_weights(out)
    note_held_out_counts(module, teacher, setting.held_out, setting.job.recipe.rows)
    module.save(out, subject.extra)
    for folder in (out, *out.glob(str(kept(Path())))):
        module.save_tokenizer(folder, setting.llm.tokenizer)
