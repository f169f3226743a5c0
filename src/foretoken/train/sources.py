"""Where the texts to learn from come from: a file, the target, the drafter itself, or a mixture.

Source of these kinds: Zhou et al. 2024 (DistillSpec), section 3.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np

from foretoken.errors import ForetokenError, unknown
from foretoken.llm import LLM
from foretoken.sampling.params import SamplingParams
from foretoken.train.answers import files_of, warn_of, write
from foretoken.train.drafter_texts import DrafterTexts
from foretoken.train.job import Job, Setting
from foretoken.train.loop import StepRecords
from foretoken.train.recipe import EPOCHS
from foretoken.train.records import Records
from foretoken.train.turns import fixed
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.small_lm import TrainedLM

TARGET, FIXED, DRAFTER = "target", "fixed", "drafter"

_log = logging.getLogger(__name__)


def source_names(source: str) -> list[str]:
    """The sources of a mixture such as "target+drafter" or "target+target@1". Raises
    `ForetokenError` for others."""
    names = [name.strip() for name in source.split("+")]
    for name in names:
        if name not in (TARGET, FIXED, DRAFTER) and _temperature(name) is None:
            raise unknown("source", name, [TARGET, f"{TARGET}@TEMPERATURE", FIXED, DRAFTER])
    return list(dict.fromkeys(names))


def _temperature(name: str) -> float | None:
    """1.0 for "target@1"; None for names without one."""
    match = re.fullmatch(rf"{TARGET}@(\d+\.?\d*)", name)
    return float(match[1]) if match else None


def sampling(job: Job, temperature: float | None = None) -> SamplingParams:
    """How texts are written: at the recipe's temperature, or another one."""
    recipe = job.recipe
    return SamplingParams(
        temperature=recipe.temperature if temperature is None else temperature,
        max_tokens=recipe.max_tokens,
        seed=job.seed,
    )


def texts(llm: LLM, job: Job) -> dict[str, Records]:
    """The records of each source but the drafter, kept in `job.out`/data.

    Estimates are always made on what the target writes at the recipe's temperature. So unless the
    only source is the file's own texts, that is written too and comes first.
    """
    records = {name: _texts_of(llm, job, name) for name in _read(job)}
    for name, part in records.items():
        if len(part) < 2:
            raise ForetokenError(
                f"There are {len(part)} texts to learn from ({name}) that don't loop; give more "
                "prompts."
            )
    return records


def _read(job: Job) -> list[str]:
    """The sources whose texts are there before a drafter is trained."""
    names = source_names(job.source)
    if names != [FIXED]:
        names = list(dict.fromkeys([TARGET, *names]))
    return [name for name in names if name != DRAFTER]


def are_written(job: Job) -> bool:
    """Whether the target has written all of its texts before, if it is to write any."""
    folders = [_folder(job, name) for name in _read(job) if name != FIXED]
    return all(file.exists() for each in folders for file in files_of(job.conversations, each))


def write_missing(llm: LLM, job: Job) -> None:
    """Have the target write those that it hasn't yet."""
    for name in _read(job):
        if name != FIXED:
            _texts_of(llm, job, name)


def _folder(job: Job, name: str) -> Path:
    """Where the target's texts of that name are kept."""
    folder = job.out / "data"
    return folder if name == TARGET else folder / name


def _texts_of(llm: LLM, job: Job, name: str) -> Records:
    """The file's own texts, or what the target writes."""
    recipe, folder = job.recipe, _folder(job, name)
    if name == FIXED:
        return _known(fixed(llm, job.conversations, _room(llm, job)), llm.model.vocab_size)
    params = sampling(job, _temperature(name))
    longest = _room(llm, job) - recipe.max_tokens
    asked, own = job.conversations, job.weights
    written = write(llm, asked, folder, params, longest, weights=own, show=job.show)
    return written.without_loops(recipe.distinct)


def _known(records: Records, vocab_size: int) -> Records:
    """The records without tokens that the tokenizer has and the model lacks; the log says how many
    are left out."""
    if not len(records):
        return records
    highest = np.maximum.reduceat(records.tokens, records.starts[:-1])
    known = np.flatnonzero(highest < vocab_size).tolist()
    if len(known) == len(records):
        return records
    _log.warning(
        "%d texts are left out: they have the token %d, and the model has %d",
        len(records) - len(known),
        highest.max(),
        vocab_size,
    )
    return records.take(known)


def _room(llm: LLM, job: Job) -> int:
    """Tokens of a text: the recipe's, or fewer, where the target's context ends before. Raises
    `ForetokenError` where that holds no prompt and its answer."""
    recipe, context = job.recipe, llm.engine.target.max_length
    if context <= recipe.max_tokens:
        raise ForetokenError(
            f"max_tokens is {recipe.max_tokens} and the target's context {context}, which must "
            "hold a prompt and its answer; set a smaller max_tokens."
        )
    return min(recipe.length, context)


def hold_out(llm: LLM, job: Job, records: dict[str, Records]) -> tuple[dict[str, Records], Records]:
    """The records to learn from, without the held-out prompts, which a file may have more than
    once; and the held-out records, which are of the first source's prompts and by `estimated_on`.
    Raises `ForetokenError` where nothing is left to learn from."""
    first = next(iter(records))
    learned, held_out = records[first].split(job.recipe.held)
    parts = {**records, first: learned}
    apart = {name: part.apart(held_out) for name, part in parts.items()}
    for name, part in apart.items():
        if not len(part):
            raise ForetokenError(
                f"All texts to learn from ({name}) have prompts that are held out; give more "
                "different prompts, or a smaller held."
            )
    answers = first == FIXED and estimated_on(job) == TARGET
    return apart, answered(llm, held_out, job) if answers else held_out


def estimated_on(job: Job) -> str:
    """Whose texts estimates are made on: the target's answers, or the file's own, where nothing but
    these is read and the target is shared out, so that it writes nothing."""
    return FIXED if job.shard_target and _read(job) == [FIXED] else TARGET


def answered(llm: LLM, held_out: Records, job: Job) -> Records:
    """What the target writes to the prompts of a file's held-out texts, as it will when serving,
    and after the first half of a text without a prompt; the texts themselves where every prompt is
    too long or its answer loops, and the log says so."""
    recipe, count = job.recipe, len(held_out)
    longest = _room(llm, job) - recipe.max_tokens
    candidates = (held_out.prompt(i) or _begun(held_out.answer(i), longest) for i in range(count))
    prompts = [prompt for prompt in candidates if 0 < len(prompt) <= longest]
    outputs = llm.generate(prompts, sampling(job))
    warn_of([output.error for output in outputs if output.error])
    pairs = [(p, o.token_ids) for p, o in zip(prompts, outputs, strict=True) if not o.error]
    answers = Records.of(pairs, recipe.max_tokens, llm.model.vocab_size)
    answers = answers.without_loops(recipe.distinct)
    if len(answers):
        return answers
    _log.warning(
        "Estimates are made on the file's own texts: of %d held-out prompts %d have at most %d "
        "tokens, and no answer of the target's is without a loop",
        count,
        len(prompts),
        longest,
    )
    return held_out


def _begun(text: list[int], longest: int) -> list[int]:
    """Its first half, of at most so many tokens."""
    return text[: max(0, min(longest, len(text) // 2))]


def check_sources(job: Job, kind: type[Trained]) -> None:
    """Raise `ForetokenError` for sources that there are not, and where a drafter of this kind, or
    any in such a training, can't learn from the texts that it writes itself."""
    names = source_names(job.source)
    if DRAFTER not in names:
        return
    if job.shard or job.states is not None:
        raise ForetokenError(
            "A drafter can't learn from texts that it writes itself while it is shared out, or "
            "where the target's states are stored; leave shard and states out."
        )
    if job.recipe.order == EPOCHS:
        raise ForetokenError(
            "A drafter's own texts are written anew and have no epochs; give order 'random'."
        )
    if not issubclass(kind, TrainedLM):
        raise ForetokenError(
            f"A drafter of method {kind.method!r} can't write texts by itself; use source "
            "'target', or train method 'sps'."
        )
    if names == [DRAFTER] and not job.recipe.goal.reads_target:
        raise ForetokenError(
            "A drafter learns nothing from its own tokens alone; give an objective that reads the "
            "target's distribution, such as {kl_div: 1.0}."
        )


def step_records(setting: Setting, module: Trained) -> StepRecords:
    """The sources that each step's records are drawn from."""
    names = source_names(setting.job.source)
    parts = [setting.records[name] for name in names if name != DRAFTER]
    if DRAFTER not in names:
        return lambda step: parts
    assert isinstance(module, TrainedLM)
    recipe, prompts = setting.job.recipe, setting.records[TARGET]
    written = DrafterTexts(
        module,
        setting.llm,
        prompts,
        setting.job.out / "own",
        sampling(setting.job, recipe.own_temperature),
        recipe.own_texts,
        recipe.own_every,
        recipe.distinct,
    )
    mixed: list[Records] = []

    def records(step: int) -> list[Records]:
        """The same list as long as the drafter's texts are the same."""
        nonlocal mixed
        own = written(step)
        if not mixed or mixed[-1] is not own:
            mixed = [*parts, own]
        return mixed

    return records
