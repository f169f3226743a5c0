"""A drafter's trained module, its checkpoint, and the facts of the target that it was trained for.

A checkpoint is a folder: config.json (the method, the target's facts, the module's shape and notes)
and model.safetensors. Nothing in it is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.errors import ForetokenError, one_line, shown
from foretoken.errors.values import typed
from foretoken.files import read_json, write_file
from foretoken.trainable import formats
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import FEATURE, Objective

_WEIGHTS, _CONFIG, _METHOD = "model.safetensors", "config.json", "foretoken_method"
_COUNTS = ("num_layers", "num_heads")  # of the parts that a module is built of, one by one
_MOST_PARTS = 1024
_NEEDED = ("num_heads", "unroll", "blocks", "anchors", "num_tokens", "draft_vocab_size")
"""Numbers of which 0 would leave nothing to draft with, or to learn from."""


@dataclass(frozen=True)
class Facts:
    """The numbers of a target that a drafter depends on; None where a checkpoint doesn't give
    them."""

    hidden_size: int
    vocab_size: int
    layers: int
    kv_heads: int | None = None
    head_dim: int | None = None

    @classmethod
    def of(cls, target: Any) -> Facts:
        """The facts of an `Access` or a `CausalLM`."""
        return cls(target.width, target.vocab_size, target.layers, target.kv_heads, target.head_dim)

    def updated(self, given: Mapping[str, Any]) -> Facts:
        """With the numbers that a checkpoint gives in their place."""
        named = {name: number for name, number in given.items() if number is not None}
        return Facts(**{**asdict(self), **named})

    def check(self, target: Facts, what: str) -> None:
        """Raises `ForetokenError` that names the first number that differs, and both values."""
        actual = asdict(target)
        for name, expected in asdict(self).items():
            if expected != actual[name] and None not in (expected, actual[name]):
                raise ForetokenError(
                    f"{what} was trained for a target of {name} {expected} and this target has "
                    f"{actual[name]}; use a checkpoint that was trained for this target."
                )


class VocabularyLayers(Protocol):
    """A target's embedding, ids -> [..., D], and head, normed states [..., D] -> [..., V]."""

    def embed(self, tokens: Tensor) -> Tensor: ...

    def head(self, states: Tensor) -> Tensor: ...


class Trained(nn.Module):
    """A drafter's weights. Subclasses name their `method` (the drafter's file name) and the layers
    `hidden` whose states they read (as `Wants.hidden`). `__init__` takes keyword parameters and
    passes all of them on as `shape`; `forward` is the training loss.
    """

    method: ClassVar[str]
    hidden: tuple[int, ...] = (-1,)
    like_target: ClassVar[bool] = False
    """Whether it has decoder layers that a training makes like the target's."""
    target_rotary: ClassVar[bool] = False
    """Whether its queries meet the target's keys, and so have to be rotated as these are."""
    by_reach: ClassVar[bool] = False
    """Whether its loss can weigh places by the chance that a draft reaches them."""
    by_feature: ClassVar[bool] = False
    """Whether its loss can have the distance from the target's next state."""
    serves_itself: ClassVar[bool] = True
    """Whether a drafter drafts with this very module, and not with a copy in another form."""
    norms_embedding: ClassVar[bool] = False
    """Whether it reads the target's embedding only normed, whose scale then doesn't matter."""

    def __init__(self, facts: Facts, **shape: Any) -> None:
        super().__init__()
        self.facts, self.shape = facts, shape
        self.notes: dict[str, Any] = {}  # measured after training, such as acceptance rates
        self.total: Tensor | None = None  # what `forward` divided by, see `counted`

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        """The loss, a mean over the tokens that count."""
        raise NotImplementedError

    def counted(self, lesson: Lesson) -> float:
        """What the lesson's loss, which is the last one, weighs among others': the `total` that
        `forward` divided by, or where it leaves none, what the lesson's tokens weigh."""
        return float(lesson.weight.sum() if self.total is None else self.total)

    def set_token_counts(self, counts: Tensor) -> None:
        """Learn how often each token occurs in the training text, [V]; called before
        `copy_from`."""

    def copy_from(self, target: VocabularyLayers) -> None:
        """Copy the weights that begin as the target's."""

    @classmethod
    def check_objective(cls, objective: Objective) -> None:
        """Raises `ForetokenError` for what its loss would leave out, and where nothing is left."""
        asked = {"dynamic": objective.dynamic, FEATURE: objective.weights.get(FEATURE, 0.0)}
        has = {"dynamic": cls.by_reach, FEATURE: cls.by_feature}
        for name, value in asked.items():
            if value and not has[name]:
                raise ForetokenError(
                    f"{name} is {value:g}, and the loss of {cls.method!r} has no such part; leave "
                    "it out."
                )
        objective.check()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Its parameters as an optimiser's groups; factor: of a group's learning rate."""
        return [{"params": list(self.parameters()), "factor": 1.0}]

    def of_vocabulary(self) -> list[Tensor]:
        """Its embeddings and heads, of tokens and masks: no matrices between hidden states."""
        parts = ("lm_head", "embed")
        named = self.named_parameters()
        return [weight for name, weight in named if any(part in name for part in parts)]

    def count_held_out(self, lesson: Lesson) -> Tensor | None:
        """Counts over a held-out lesson, or None; their sum is given to `note_counts`."""
        return None

    def note_counts(self, counts: Tensor) -> None:
        """Compute from such counts what the checkpoint keeps in `notes`."""

    def save(self, folder: Path, extra: Mapping[str, Any]) -> None:
        """Write the checkpoint, each file whole or not at all. extra: more for config.json."""
        from safetensors.torch import save

        state = self.checkpoint_state()
        # A tensor that is shared is written once, under its first name.
        first = {weight.data_ptr(): name for name, weight in reversed(state.items())}
        weights = {name: state[name].detach().cpu().contiguous() for name in sorted(first.values())}
        write_file(folder / _WEIGHTS, save(weights))
        write_file(folder / _CONFIG, json.dumps(self.checkpoint_config(extra), indent=1) + "\n")

    @property
    def checkpoint_module(self) -> nn.Module:
        """The module whose tensors the checkpoint has, under its names."""
        return self

    def checkpoint_state(self) -> dict[str, Tensor]:
        """The checkpoint's tensors, by name."""
        return self.checkpoint_module.state_dict()

    def checkpoint_config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The checkpoint's config.json."""
        return {
            _METHOD: self.method,
            "target": asdict(self.facts),
            "shape": self.shape,
            "notes": self.notes,
            **extra,
        }

    def save_tokenizer(self, folder: Path, tokenizer: Any) -> None:
        """Add the tokenizer, where the checkpoint is a model by itself."""

    @classmethod
    def load(cls, source: Any, access: Access) -> Self:
        """The module of a checkpoint (folder, hub id or bundled name), or one that is given, for
        this target.

        Raises `ForetokenError` where it is missing, damaged, of another method or another target.
        """
        if isinstance(source, cls):
            source.facts.check(Facts.of(access), f"This {cls.method} module")
            return source
        cls.check_source(source)
        folder = formats.find(source)
        config = read_config(folder)
        if config[_METHOD] != cls.method:
            raise ForetokenError(
                f"{source} is a checkpoint of method {config[_METHOD]!r} and not of {cls.method!r}."
            )
        target = Facts.of(access)
        facts = target.updated(config["target"])
        facts.check(target, str(source))
        with torch.device("meta"):  # nothing is allocated before files and shape agree
            planned = cls.from_shape(facts, config["shape"], str(source))
        if "published" in config:
            tensors = formats.fitting(planned, config["published"].tensors(), access, str(source))
        else:
            planned.check_weights(folder)
        module = cls.from_shape(facts, config["shape"], str(source)).to(access.device, access.dtype)
        module.notes = typed(f"notes of {folder}", config.get("notes", {}), dict)
        if "published" in config:
            formats.fill(module, tensors, access)
        else:
            module.read_weights(folder)
        return module.eval().requires_grad_(False)

    @classmethod
    def check_source(cls, source: Any) -> None:
        """Raises `ForetokenError` early for what can't be a checkpoint."""
        if not isinstance(source, (str, Path, cls)):
            raise ForetokenError(
                f"Method {cls.method!r} drafts with weights that were trained for its target; name "
                f'their folder, e.g. {{"method": "{cls.method}", "model": "my-{cls.method}"}}; '
                f"'foretoken train {cls.method} --help' says how to make them."
            )

    @classmethod
    def from_shape(cls, facts: Facts, shape: Mapping[str, Any], what: str) -> Self:
        """A new module. Raises `ForetokenError` for a shape that doesn't fit; what: whose it is."""
        try:
            _check_counts(shape)
            module = cls(facts, **shape)
        except (TypeError, ValueError, RuntimeError) as error:  # the last of torch, for sizes
            raise ForetokenError(
                f"The shape {shown(dict(shape))} of {what} doesn't fit: {one_line(error)}."
            ) from error
        for layer in module.hidden:
            if type(layer) is not int or not -1 <= layer <= facts.layers:
                raise ForetokenError(
                    f"By its shape {what} reads the states after layer {shown(layer)} and this "
                    f"target has {facts.layers} layers; name layers that it has."
                )
        return module

    def check_weights(self, folder: Path) -> None:
        """Raises `ForetokenError` for a checkpoint of ours whose file holds other tensors, by what
        its header says: the module may be one without memory."""
        expected = self.checkpoint_state()
        for name, shape in _stored_shapes(folder / _WEIGHTS).items():
            if name not in expected or list(expected[name].shape) != shape:
                raise _other_tensors(folder)

    def read_weights(self, folder: Path) -> None:
        """Load the weights of a checkpoint of ours."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        try:
            load_model(self.checkpoint_module, folder / _WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise _damaged(folder / _WEIGHTS) from error
        except RuntimeError as error:
            raise _other_tensors(folder) from error


def _check_counts(shape: Mapping[str, Any]) -> None:
    """Raises `ValueError` for more parts than can be built, and for none where some are needed."""
    for name in _COUNTS:
        count = shape.get(name, 1)
        if type(count) is not int or not 0 <= count <= _MOST_PARTS:
            raise ValueError(
                f"{name} is {shown(count)}, and it must be a whole number, {_MOST_PARTS} at most"
            )
    for name in _NEEDED:
        count = shape.get(name)
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"{name} is {shown(count)}, and it must be a whole number, at least 1")


def _stored_shapes(file: Path) -> dict[str, list[int]]:
    """The tensors of a safetensors file, and their shapes. Raises `ForetokenError` for a damaged
    one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _damaged(file) from error


def _damaged(file: Path) -> ForetokenError:
    return ForetokenError(f"{file} is missing or damaged; fetch or train it again.")


def _other_tensors(folder: Path) -> ForetokenError:
    return ForetokenError(
        f"{folder / _WEIGHTS} doesn't hold the tensors that its config.json calls for; fetch or "
        "train it again."
    )


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json. For a checkpoint of another project: the same keys where its
    files give them, and its `Published` description under "published". Raises `ForetokenError` for
    any other folder."""
    try:
        config = read_json(folder / _CONFIG, "a checkpoint's config")
        ours = isinstance(config[_METHOD], str) and bool(Facts(**config["target"]))
        if ours and isinstance(config["shape"], dict):
            return config
    except (ValueError, KeyError, TypeError):
        pass
    published = formats.recognise(folder)
    if published is not None:
        return {
            _METHOD: published.method,
            "target": published.target,
            "shape": published.shape,
            "published": published,
        }
    raise ForetokenError(
        f"{folder} is no checkpoint of a trained drafter; give one that 'foretoken train' made, or "
        "one of the formats in docs/formats.md."
    )


def method_of(folder: Path) -> str:
    """The method that a checkpoint drafts for. Raises `ForetokenError` for any other folder."""
    return str(read_config(folder)[_METHOD])


def checkpoints(folders: Iterable[Path], target: Any) -> dict[Path, str]:
    """The methods of those folders that have a drafter trained for such a target (an `Access` or a
    `CausalLM`)."""
    methods = {}
    for folder in folders:
        try:
            config = read_config(folder)
            Facts(**config["target"]).check(Facts.of(target), str(folder))
        except ForetokenError:
            continue
        methods[folder] = config[_METHOD]
    return methods


def weight_of(target: VocabularyLayers, width: int, like: Tensor) -> Tensor:
    """[V, D] the matrix of a target's linear head, by its outputs for unit vectors; like: dtype and
    device."""
    return target.head(torch.eye(width, dtype=like.dtype, device=like.device)).T
