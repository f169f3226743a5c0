"""Trains a drafter for a target that stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.config import create_drafter
from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError, shown
from foretoken.methods import METHODS
from foretoken.models import gguf, load
from foretoken.models.native.check import of_layers
from foretoken.registry import drafter_class, drafter_names
from foretoken.train.boost import EarlierDrafters
from foretoken.train.card import write_card
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job, Outcome, Setting
from foretoken.train.loop import Acceptance
from foretoken.train.measure import measure
from foretoken.train.sources import check_sources
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.protocol import Trainable
from foretoken.trainable.small_lm import TrainedLM
from foretoken.trees.plan import AUTO, PAPER


def trainable(method: str) -> type[Any]:
    """The drafter's class. Raises `ForetokenError` for a method that has nothing to train."""
    row = METHODS.get(method)
    name = row.drafter if row else method
    cls = drafter_class(name) if name in drafter_names() else None
    if not isinstance(cls, Trainable):
        names = [n for n in drafter_names() if isinstance(drafter_class(n), Trainable)]
        raise ForetokenError(
            f"There is nothing to train for method {method!r}; choose one of: {', '.join(names)}."
        )
    return cls


_HEADS = ("heads", "kv_heads", "head_width")
_LAYER = ("heads", "kv_heads", "intermediate")
"""What a shape names of a layer that isn't like the target's."""


def config_of(target: str, trust_remote_code: bool = False) -> Any:
    """A target's configuration, as the model is loaded with it. Raises `ForetokenError` for an
    encoder–decoder, whose answers don't follow its prompts in one text."""
    place = load.find(target)
    here = gguf.is_named(place) and gguf.is_read_here(place)
    config = gguf.native_config_of(place) if here else load.read_config(place, trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise ForetokenError(
            f"{target} is an encoder–decoder, and drafters are trained for models that are a "
            "decoder alone; recipes/seq2seq trains some for one."
        )
    return config


def with_layer_of(config: Any, shape: Mapping[str, Any]) -> dict[str, Any]:
    """A shape whose layer is like the target's, where it doesn't say otherwise: grouped heads,
    feed-forward and the base of the rotary embedding. Of numbers of heads that it names in part,
    none is taken. Raises `ForetokenError` where the target's configuration doesn't say what such a
    layer has, as code that comes with it may call that otherwise."""
    text = of_layers(config.get_text_config())[0]
    named = ("num_attention_heads", "hidden_size")
    missing = [name for name in named if not isinstance(getattr(text, name, None), int)]
    if missing and all(name in shape for name in _LAYER):
        return dict(shape)
    if missing:
        raise ForetokenError(
            f"The target's configuration has no {missing[0]}, by which a layer like its own would "
            f"be made; name {', '.join(_LAYER)} in the shape."
        )
    rope = getattr(text, "rope_parameters", None) or {}
    theta = rope.get("full_attention", rope).get("rope_theta")  # of Gemma 3, one for each kind
    heads, inner = text.num_attention_heads, getattr(text, "intermediate_size", None)
    inner = inner or getattr(text, "n_inner", None) or getattr(text, "ffn_dim", None)
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    layer = {
        "heads": heads,
        "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "intermediate": inner or 4 * text.hidden_size,
        **({"rope_theta": float(theta)} if theta else {}),
        **({} if width * heads == text.hidden_size else {"head_width": width}),
    }
    if any(name in shape for name in _HEADS):
        layer = {name: number for name, number in layer.items() if name not in _HEADS}
    return {**layer, **shape}


def shape_for(kind: type[Trained], config: Any, shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a new module for a target of this configuration. Raises `ForetokenError` for
    queries that would be rotated in another way than the target's keys that they meet."""
    whole = with_layer_of(config, shape) if kind.like_target else dict(shape)
    if not kind.target_rotary:
        return whole
    rotary = _rotary_of(config.get_text_config(), shape.get("read_layer", -1))
    for name, own in rotary.items():
        if shape.get(name, own) != own:
            raise ForetokenError(
                f"{name} of the shape is {shape[name]!r}, and the target's keys, which the drafter "
                f"attends to, are rotated by {own!r}; leave it out."
            )
    return {**whole, **rotary}


def unfilled(kind: type[Trained], facts: Facts, config: Any, shape: Mapping[str, Any]) -> Trained:
    """A new module without memory (on torch's meta device), for a target of this configuration.
    Raises `ForetokenError` for a shape that doesn't fit."""
    whole = shape_for(kind, config, shape)
    with torch.device("meta"):
        module: Trained = kind.from_shape(facts, whole, "the recipe")
    return module


def _rotary_of(text: Any, layer: int) -> dict[str, Any]:
    """How a layer's keys are rotated, as `LayerShape` has it; nothing where they aren't."""
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = getattr(text, "layer_types", None) or ()
    if kinds and -len(kinds) <= layer < len(kinds):
        rope = rope.get(kinds[layer], rope)
    if rope.get("rope_theta") is None:
        return {}
    if rope.get("partial_rotary_factor", 1.0) != 1.0 or any(
        isinstance(value, list) for value in rope.values()
    ):
        raise ForetokenError(
            "The target rotates its keys in a way that this drafter's queries can't be "
            f"({shown(dict(rope))}); train another method."
        )
    scaled = rope.get("rope_type", "default") != "default"
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {"rope_theta": float(rope["rope_theta"]), "rope_scaling": scaling if scaled else None}


def merged(folders: Seq[Path | str], depth: int) -> dict[str, Any]:
    """The configuration that serves several small models, a chain of each in one tree."""
    models = [str(folder) for folder in folders]
    return {"method": "specinfer", "models": models, "widths": (1,) * depth, "replacement": True}


def papers_tree(drafter: type[Any]) -> dict[str, str]:
    """The option by which a drafter that would plan its tree for this machine drafts its paper's:
    what is measured tells of the drafter, not of the machine."""
    tree = next((field for field in fields(drafter) if field.name == "tree"), None)
    return {"tree": PAPER} if tree is not None and tree.default == AUTO else {}


NUMBERS = ("hidden_size", "vocab_size", "num_hidden_layers")
"""Of a target's configuration, what its facts are read from; code that comes with a target may have
other names."""

_CONSTANT = "constant"
_NOT_ESTIMATED = "num_assistant_tokens_schedule", "draft_vocab_size"
"""Options of a small model by which it is served in another way than its estimate assumes."""


class DrafterTraining:
    """A `Subject`: the drafter of a method, alone or to be served together with earlier ones."""

    folders: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting) -> None:
        job = setting.job
        self._setting, self._class = setting, trainable(job.method)
        self._earlier = EarlierDrafters.load(setting) if job.after else None
        self.identity = {"source": job.source, "after": [str(folder) for folder in job.after]}
        self.extra = {"target_name": job.target, "recipe": asdict(job.recipe)}

    @classmethod
    def check(cls, job: Job) -> None:
        module = trainable(job.method).module
        if job.after and not issubclass(module, TrainedLM):
            raise ForetokenError(
                "Only small models learn after others; use method 'sps' with after."
            )
        module.check_objective(job.recipe.goal)
        check_sources(job, module)
        alone = issubclass(module, TrainedLM) and not (job.recipe.goal.reads_target or job.after)
        if alone and job.states is not None:
            raise ForetokenError(
                "A small model with this objective learns from tokens alone and reads no states of "
                "the target; leave states out."
            )
        for name in _NOT_ESTIMATED:
            if job.recipe.serving.get(name, _CONSTANT) not in (_CONSTANT, None):
                raise ForetokenError(
                    f"{name} is in the recipe's serving, and estimates are of drafts of one length "
                    "over all tokens; leave it out there, and give it where the model is served."
                )
        config = config_of(job.target, job.trust_remote_code)
        named: list[Any] = [getattr(config.get_text_config(), name, None) for name in NUMBERS]
        if all(isinstance(number, int) for number in named):
            _drafter_of(job, unfilled(module, Facts(*named), config, job.recipe.shape))

    @property
    def weigh(self) -> Callable[[Lesson], Tensor] | None:
        """Tokens that earlier drafters miss count more."""
        return self._earlier.weigh if self._earlier else None

    def new_module(self) -> Trained:
        setting, kind = self._setting, self._class.module
        config = config_of(setting.job.target, setting.job.trust_remote_code)
        shape = shape_for(kind, config, setting.job.recipe.shape)
        module: Trained = kind.from_shape(setting.facts, shape, "the recipe")
        return module

    def acceptance(self, module: Trained) -> Acceptance:
        drafter = _drafter_of(self._setting.job, module)
        return self._earlier.together(drafter) if self._earlier else drafter.acceptance

    def serve(self, module: Trained) -> AcceptanceStats:
        job = self._setting.job
        options = {**papers_tree(self._class), **job.recipe.serving}
        config = {"method": job.method, **options, "model": str(job.out)}
        if job.after:
            chains = merged([*job.after, job.out], _drafter_of(job, module).num_speculative_tokens)
            given = {n: x for n, x in job.recipe.serving.items() if n == "draft_backend"}
            config = {**chains, **given}
        return measure(self._setting, self._setting.llm.model, config)

    def write_card(self, module: Trained, frozen: FrozenTarget, outcome: Outcome) -> None:
        setting = self._setting
        count = sum(map(len, setting.records.values()))
        text = f"{count} records ({setting.job.source}), {len(setting.held_out)} held out"
        write_card(setting.job, module, text, outcome)


def _drafter_of(job: Job, module: Trained) -> Any:
    """The drafter as it will serve, not bound to a target. Raises `ForetokenError` for options of
    the recipe's `serving` that it doesn't have."""
    options = dict(METHODS[job.method].options) if job.method in METHODS else {}
    return create_drafter(
        trainable(job.method), job.method, {**options, **job.recipe.serving, "model": module}
    )
