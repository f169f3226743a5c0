"""What to run: methods, temperatures, batch sizes, and which prompts are served together.

Prompts are cut into blocks of one task and one number of turns, so large that every batch size
divides a block. The groups of a batch size are cut from the blocks, so which prompts are served
together depends on the suite and the batch sizes alone, and a shard (every n-th block) has whole
groups.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foretoken.bench.suites import vicuna
from foretoken.bench.suites.suite import Prompt, Suite
from foretoken.config import build, needs_of, options_of, parse
from foretoken.errors import ForetokenError, unknown
from foretoken.files import utf8
from foretoken.methods import METHODS, Need
from foretoken.registry import ALIASES, OPTION_ALIASES, checkpoint_method
from foretoken.repetition import DISTINCT_4
from foretoken.sampling.params import SamplingParams
from foretoken.tuned import read_tuned

TUNED = "tuned:"

Configs = dict[str, dict[str, Any]]
"""A label -> its speculative_config."""

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run on one target at one precision; plain decoding is always added.

    name: the target's, as reported. inflated: the shape where its cost is blown up. max_model_len:
    the most tokens of the context that are used. own_history: each method continues its own
    answers, not plain decoding's. warm: drafters keep what they learn from answer to answer.
    lenient: a method that the target can't serve is left out and is no error. distinct_4: prompts
    that plain decoding answers with a smaller share of different 4-grams are left out of averages.
    template: "vicuna" writes prompts in Vicuna's template instead of the target's own.
    """

    model: str | Path
    name: str
    methods: Mapping[str, Mapping[str, Any]]
    dtype: str = "auto"
    temperatures: tuple[float, ...] = (0.0, 1.0)
    batch_sizes: tuple[int, ...] = (1,)
    max_tokens: int = 64
    seed: int = 0
    repeats: int = 1
    max_model_len: int = 4096
    kv_cache_memory: str | None = None
    weights_memory: str | None = None
    device: str = "auto"
    backend: str = "auto"
    trust_remote_code: bool = False
    inflated: str | None = None
    own_history: bool = False
    warm: bool = False
    lenient: bool = False
    distinct_4: float = DISTINCT_4
    template: str | None = None

    def __post_init__(self) -> None:
        several = len(self.temperatures) * len(self.batch_sizes) * self.repeats > 1
        if self.warm and several:
            raise ForetokenError(
                "A warm drafter would be measured on prompts that it has just learned; with warm, "
                "give one temperature, one batch size and one repeat."
            )
        if self.template not in (None, vicuna.NAME):
            raise unknown("template", self.template, [vicuna.NAME])
        if min(self.batch_sizes) < 1 or self.repeats < 1:
            raise ForetokenError(
                f"batch_sizes are {list(self.batch_sizes)} and repeats {self.repeats}; each must "
                "be at least 1."
            )
        for temperature in self.temperatures:
            try:
                SamplingParams(temperature=temperature)
            except ForetokenError as error:
                raise ForetokenError(f"In temperatures, {error}") from error


@dataclass(frozen=True)
class Unit:
    """Prompts served together by every method, at one temperature: what is recorded at once."""

    prompts: tuple[Prompt, ...]
    batch_size: int
    temperature: float

    @property
    def group(self) -> str:
        """A group as text: its first prompt's id and how many more there are."""
        more = len(self.prompts) - 1
        return f"{self.prompts[0].id}+{more}" if more else self.prompts[0].id


def blocks(prompts: Seq[Prompt], batch_sizes: Seq[int]) -> list[tuple[Prompt, ...]]:
    """The blocks of all prompts; tasks take turns, so a run that stops early has seen them all."""
    by_shape: dict[tuple[str, int], list[Prompt]] = {}
    for prompt in prompts:
        by_shape.setdefault((prompt.task, len(prompt.turns)), []).append(prompt)
    columns = [
        list(_chunks(prompts_of_one, math.lcm(*batch_sizes)))
        for prompts_of_one in by_shape.values()
    ]
    return [block for row in zip_longest(*columns) for block in row if block]


def units(prompts: Seq[Prompt], plan: Plan) -> Iterator[Unit]:
    """The units of a block, in the order in which they are served."""
    for size in plan.batch_sizes:
        for group in _chunks(prompts, size):
            for temperature in plan.temperatures:
                yield Unit(group, size, temperature)


def _chunks(prompts: Seq[Prompt], size: int) -> Iterator[tuple[Prompt, ...]]:
    for start in range(0, len(prompts), size):
        yield tuple(prompts[start : start + size])


def select(suite: Suite, tasks: Seq[str] | None, limit: int | None) -> list[Prompt]:
    """The prompts of some tasks (None: of all), at most `limit` of each."""
    names = list(dict.fromkeys(p.task for p in suite.prompts))
    for task in tasks or ():
        if task not in names:
            raise unknown(f"task of suite {suite.name!r}", task, names)
    wanted = set(tasks or names)
    chosen = tuple(p for p in suite.prompts if p.task in wanted)
    return dataclasses.replace(suite, prompts=chosen).round_robin(limit)


def shard_of(text: str) -> tuple[int, int]:
    """(i, n) from "i/n", i counted from 1."""
    first, _, count = text.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise ForetokenError(f"A shard is i/n with 1 <= i <= n, e.g. 1/4, and not {text!r}.")
    return int(first), int(count)


def seed_of(seed: int, prompt_id: str, turn: int) -> int:
    """The seed of one turn; prompts differ in it, or a batch would draw the same numbers."""
    return zlib.crc32(utf8(f"{seed} {prompt_id} {turn}"))


def every_method(
    draft_model: str | None, tokens: int | None, own: Mapping[str, str] = _NONE
) -> tuple[Configs, dict[str, str]]:
    """The configs of all methods of the table that can be built, and why the others can't."""
    configs: Configs = {}
    reasons: dict[str, str] = {}
    for name in METHODS:
        config = method_config(name, draft_model, tokens, own)
        try:
            build(config)
        except ForetokenError as error:
            reasons[name] = str(error)
        else:
            configs[name] = config
    return configs, reasons


def method_config(
    name: str, draft_model: str | None, tokens: int | None, own: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """A method's speculative_config, with the draft model and draft length where it has them.

    own: a method, or a part of methods -> the draft model or the weights of that one. A method
    whose weights are trained for its target is not given the draft model for these. "tuned:NAME" is
    what `foretoken tune` saved under a name or path. Raises `ForetokenError` for a name that no
    method, alias or drafter has.
    """
    if name.startswith(TUNED):
        return read_tuned(name.removeprefix(TUNED))
    options = options_of(name)
    config = {"method": name, **_models(name, draft_model if "model" in options else None, own)}
    if tokens is not None and "num_speculative_tokens" in options:
        config["num_speculative_tokens"] = tokens
    return config


def _models(name: str, small: str | None, own: Mapping[str, str]) -> dict[str, Any]:
    """The options that name what a method drafts with: `model`, and a part's under its name."""
    if (model := own.get(ALIASES.get(name, name))) is not None:
        return {"model": model}
    trained = Need.WEIGHTS in needs_of(name)
    models: dict[str, Any] = {} if trained or small is None else {"model": small}
    for part in parse(name).parts if parse(name).combiner is not None else ():
        model = own.get(ALIASES.get(part, part))
        if model is None and trained and Need.DRAFT_MODEL in needs_of(part):
            model = small
        if model is not None:
            models[part] = {"model": model}
    return models


def trained_configs(checkpoints: Mapping[Path, str]) -> list[dict[str, Any]]:
    """The configs of every lossless method that drafts with trained weights, with each of these
    checkpoints that it reads. checkpoints: folders and what `trainable.checkpoint` calls their
    methods."""
    rows = [row for row in METHODS.values() if row.lossless and row.trained]
    reads = {row.name: checkpoint_method(row.drafter) for row in rows}
    return [
        {"method": row.name, "model": str(path)}
        for row in rows
        for path, method in checkpoints.items()
        if reads[row.name] == method
    ]


_DRAFT_MODEL = {"model", *(key for key, own in OPTION_ALIASES.items() if own == "model")}


def draft_models(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The draft models that configs and their parts name, each once."""
    parts = [
        part
        for config in configs.values()
        for part in (config, *(value for value in config.values() if isinstance(value, Mapping)))
    ]
    named = (str(part[key]) for part in parts for key in _DRAFT_MODEL & {*part})
    return list(dict.fromkeys(named))


def relocated(configs: Mapping[str, Mapping[str, Any]], places: Mapping[str, Path]) -> Configs:
    """The configs with other paths of their draft models, by their names."""
    return {label: _relocated(config, places) for label, config in configs.items()}


def _relocated(config: Mapping[str, Any], places: Mapping[str, Path]) -> dict[str, Any]:
    moved = {key: str(places[config[key]]) for key in _DRAFT_MODEL & {*config}}
    parts = {
        key: _relocated(value, places)
        for key, value in config.items()
        if isinstance(value, Mapping)
    }
    return {**config, **moved, **parts}
