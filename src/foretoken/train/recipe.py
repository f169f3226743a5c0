"""Recipes: the settings that a method is trained with, one small YAML file each in `recipes/`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from foretoken.errors import ForetokenError, unknown
from foretoken.errors.values import check_range, typed
from foretoken.repetition import DISTINCT_4
from foretoken.trainable.losses import Objective, exponential

_FOLDER = Path(__file__).parent / "recipes"
RANDOM, EPOCHS = "random", "epochs"
ORDERS = (RANDOM, EPOCHS)
"""How a step's records are chosen; see `batches.py`."""
SCHEDULES = ("cosine", "linear", "constant")
"""How the learning rate falls after the warm-up."""
_COUNTS = (
    "steps",
    "rows",
    "length",
    "accumulation",
    "evaluate_every",
    "patience",
    "held",
    "max_tokens",
    "own_texts",
)
_SHARES = ("warmup", "floor", "known")
_NOT_NEGATIVE = (
    "matrix_lr",
    "weight_decay",
    "clip",
    "prompt_weight",
    "temperature",
    "own_every",
    "own_temperature",
    "distinct",
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training. shape: of the drafter's module. objective: weights by name; decay
    (or gamma) and dynamic weigh a draft's places, as in `foretoken.trainable.losses`.

    steps, rows, length, accumulation: optimiser steps, each of `accumulation` batches of `rows`
    rows of `length` tokens on every process. order: of the records, one of `ORDERS`. lr, warmup,
    schedule, floor: from lr to floor · lr, by one of `SCHEDULES`, after a linear warm-up over a
    share of the steps; constant has no floor. matrix_lr: Muon's rate, for the matrices between
    hidden states (0: AdamW trains them too). betas: AdamW's. weight_decay: of both. clip: largest
    norm of the gradient (0: any). prompt_weight: of a prompt's token, where an answer's is 1.
    held, evaluate_every, patience: held-out records, steps between two estimates on them, and how
    many estimates without a new best end the training. max_tokens, temperature: of written texts.
    own_texts, own_every, own_temperature: how many texts a drafter writes itself at a time, after
    how many steps it writes new ones (0: never), and at which temperature (DistillSpec samples
    them). known: weight of a token that earlier drafters predict. distinct:
    answers with a smaller share of distinct 4-grams are repetitive and left out, as they are easily
    predicted and teach nothing. serving: options of the drafter that the estimate is made for.
    """

    shape: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, float] = field(default_factory=lambda: {"nll": 1.0})
    decay: float = 0.8
    gamma: float | None = None
    dynamic: float = 0.0
    steps: int = 400
    rows: int = 8
    length: int = 512
    accumulation: int = 1
    order: str = RANDOM
    lr: float = 1e-3
    matrix_lr: float = 0.0
    warmup: float = 0.1
    schedule: str = "cosine"
    floor: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 1.0
    prompt_weight: float = 0.0
    held: int = 48
    evaluate_every: int = 50
    patience: int = 4
    max_tokens: int = 128
    temperature: float = 0.0
    own_texts: int = 256
    own_every: int = 50
    own_temperature: float = 1.0
    known: float = 0.3
    distinct: float = DISTINCT_4
    serving: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = vars(self)
        check_range(1, math.inf, **{name: values[name] for name in _COUNTS})
        check_range(0, 1, **{name: values[name] for name in _SHARES})
        check_range(0, math.inf, **{name: values[name] for name in _NOT_NEGATIVE})
        if self.lr <= 0 or not all(0 <= beta < 1 for beta in self.betas):
            raise ForetokenError(
                f"lr is {self.lr} and betas are {list(self.betas)}; lr must be above 0, and betas "
                "from 0 to below 1."
            )
        for kind, known in (("order", ORDERS), ("schedule", SCHEDULES)):
            if values[kind] not in known:
                raise unknown(kind, str(values[kind]), known)
        if self.max_tokens >= self.length:
            raise ForetokenError(
                f"max_tokens is {self.max_tokens} and length {self.length}; a row must hold a "
                "prompt and its answer."
            )
        self.goal  # noqa: B018  names unknown objectives

    @property
    def goal(self) -> Objective:
        decay = self.decay if self.gamma is None else exponential(self.gamma)
        return Objective(dict(self.objective), decay, self.dynamic)


def recipes() -> list[str]:
    """The methods that have a recipe."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def read_recipe(name: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A method's recipe, or that in a .yaml file, with some settings changed.

    Raises `ForetokenError` for unknown names and impossible values.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if str(name) not in recipes():
            raise unknown("recipe", str(name), recipes())
        path = _FOLDER / f"{name}.yaml"
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ForetokenError(f"The recipe {path} can't be read: {error}.") from error
    if not isinstance(settings, dict):
        raise ForetokenError(f"The recipe {path} is no list of names and values.")
    return _recipe({**settings, **(changes or {})})


def _recipe(settings: Mapping[str, Any]) -> Recipe:
    hints = get_type_hints(Recipe)
    for key in settings:
        if key not in hints:
            raise unknown("setting of a recipe", str(key), hints)
    return Recipe(**{key: typed(key, _value(value), hints[key]) for key, value in settings.items()})


def _value(value: Any) -> Any:
    """With 5e-4 as the number that YAML takes only 5.0e-4 for, and numbers in quotes, also within
    lists and mappings; a folder's name may look like one."""
    if isinstance(value, Mapping):
        return {key: part if key == "model" else _value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_value(part) for part in value]
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
